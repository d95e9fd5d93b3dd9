//! Rankine on real ratings: a multi-hot table built by the test, from CSV to the AUC that its job promises.
//!
//! The ratings are not part of the repository. `RANKINE_TEST_DATA` names the folder that contains `movielens-100k/`
//! with `u.data`, `u.user`, `u.item` and `u.genre` as published by GroupLens (Harper and Konstan, "The MovieLens
//! Datasets", 2015).

use std::collections::HashMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::ExitCode;

use libtest_mimic::{Arguments, Failed};
use support::open_vocabularies::{are_no_worse, dynamic_tables};
use support::{Place, SUCCESS, data_folder, missing, root, run, summary, told, train, trial, word};

mod support;

/// The minimum of the mean over the seeds.
const AUC_MIN: f64 = 0.773;
const CPU: &str = "device.kind=\"cpu\"";
const SCHEMA: &str = "configs/movielens-schema.toml";
/// Seeds of the split and the training.
const SEEDS: [u64; 3] = [1, 2, 3];

fn main() -> ExitCode {
    let folder = data_folder().join("movielens-100k");
    let trial = |name, gpu: bool, body: fn(&Path) -> Result<(), Failed>| {
        let (folder, missing) = (folder.clone(), missing(&folder.join("u.data"), gpu));
        trial(name, missing.as_deref(), move || body(&folder))
    };
    let trials = vec![
        trial("movielens_100k_reaches_its_auc", false, |folder| {
            open_vocabularies_are_no_worse(folder, &reached_aucs(folder, &[CPU])?)
        }),
        trial("movielens_100k_reaches_its_auc_on_a_gpu", true, |folder| {
            reached_aucs(folder, &["device.kind=\"cuda\""]).map(drop)
        }),
        trial("movielens_100k_reaches_its_auc_on_a_gpu_in_f32", true, |folder| {
            reached_aucs(folder, &["device.kind=\"cuda\"", "device.precision=\"fp32\""]).map(drop)
        }),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

/// Returns the AUCs of the seeds, whose mean is what the job promises.
fn reached_aucs(folder: &Path, device: &[&str]) -> Result<Vec<f64>, Failed> {
    let place = Place::new();
    let ratings = place.file("ratings.csv", joined(folder)?);
    let schema = word(&root().join(SCHEMA));
    let aucs = aucs(&place, &ratings, &schema, |_| device.iter().map(ToString::to_string).collect());
    let mean = aucs.iter().sum::<f64>() / aucs.len() as f64;
    let device = device.join(", ");
    told(&format!("movielens-100k, {device}: mean AUC {mean:.5} over the seeds {SEEDS:?}: {aucs:.5?}"));
    if mean < AUC_MIN {
        return Err(format!("the mean AUC {mean:.5} is below {AUC_MIN}").into());
    }
    Ok(aucs)
}

/// Ids that get a row at their first look-up, and films at their second, are as good as exact vocabularies of as many
/// categories.
fn open_vocabularies_are_no_worse(folder: &Path, exact: &[f64]) -> Result<(), Failed> {
    let place = Place::new();
    let schema = fs::read_to_string(root().join(SCHEMA))?
        .replace("{ kind = \"exact\", min_count = 1 }", "{ kind = \"open\" }")
        .replace("{ kind = \"exact\", min_count = 2 }", "{ kind = \"open\" }");
    let (ratings, schema) = (place.file("ratings.csv", joined(folder)?), place.file("schema.toml", schema));
    let open = aucs(&place, &ratings, &schema, |data| {
        let tables = dynamic_tables(&place, data, |column| if column == "film" { 2 } else { 1 });
        vec![CPU.to_owned(), tables]
    });
    are_no_worse("movielens-100k", exact, &open)
}

/// Converts and trains with each of the seeds; returns the AUCs. `sets` changes the job for a dataset of the place.
fn aucs(place: &Place, ratings: &str, schema: &str, sets: impl Fn(&str) -> Vec<String>) -> Vec<f64> {
    let job = word(&root().join("configs/movielens.toml"));
    let auc = |seed: u64| {
        let (name, run_dir) = (format!("data-{seed}"), format!("run-{seed}"));
        let (data, split) = (place.word(&name), format!("random:0.1:{seed}"));
        run(["convert", "csv", ratings, "--schema", schema, "--out", &data, "--split", &split]).with(SUCCESS);
        let own = [format!("seed={seed}"), format!("data.dir={data}")];
        let sets: Vec<_> = own.into_iter().chain(sets(&name)).collect();
        train(place, &job, &run_dir, &sets.iter().map(String::as_str).collect::<Vec<_>>()).with(SUCCESS);
        let auc = summary(place, &run_dir)["eval"]["auc"].as_f64();
        auc.expect("the evaluation part has both labels")
    };
    SEEDS.map(auc).into()
}

/// Joins the ratings with the attributes of user, film and time into one table.
fn joined(folder: &Path) -> Result<String, Failed> {
    let read = |name: &str| -> Result<String, Failed> {
        // Titles are Latin-1 and not used; no other field has a byte above 127.
        Ok(String::from_utf8_lossy(&fs::read(folder.join(name))?).into_owned())
    };
    let (ratings, users, films, genres) =
        (read("u.data")?, read("u.user")?, read("u.item")?, read("u.genre")?);
    let genres: Vec<&str> = genres.lines().filter_map(|line| Some(line.split_once('|')?.0)).collect();
    let users: HashMap<&str, &str> = users.lines().filter_map(|line| line.split_once('|')).collect();
    let genres_of = |line: &str| {
        let flags = line.rsplit('|').take(genres.len()).collect::<Vec<_>>().into_iter().rev();
        let own: Vec<&str> =
            flags.zip(&genres).filter(|(flag, _)| *flag == "1").map(|(_, &genre)| genre).collect();
        own.join("|")
    };
    let films: HashMap<&str, String> =
        films.lines().filter_map(|line| Some((line.split_once('|')?.0, genres_of(line)))).collect();

    let mut table = "user,film,rating,hour,weekday,gender,age,occupation,zip,genres\n".to_owned();
    for line in ratings.lines() {
        let [user, film, rating, time] = fields(line, '\t')?;
        let [age, gender, occupation, zip] = fields(users.get(user).ok_or("an unknown user")?, '|')?;
        let genres = films.get(film).ok_or("an unknown film")?;
        let hours = time.parse::<u64>()? / 3600;
        // The first day of Unix time was a Thursday; weekdays count from Monday.
        let (hour, weekday) = (hours % 24, (hours / 24 + 3) % 7);
        let zip = zip.get(..1).ok_or("an empty zip code")?;
        writeln!(
            table,
            "{user},{film},{rating},{hour},{weekday},{gender},{age},{occupation},{zip},{genres}"
        )?;
    }
    Ok(table)
}

fn fields<const N: usize>(line: &str, separator: char) -> Result<[&str; N], Failed> {
    let fields: Vec<&str> = line.split(separator).collect();
    fields.try_into().map_err(|_| format!("not {N} fields: {line}").into())
}
