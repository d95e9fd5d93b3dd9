//! A dataset of each day, whose vocabularies grow: trained on some days, evaluated on the next.

use std::collections::BTreeSet;
use std::fs;

use serde_json::{Value, json};

use crate::support::{Ended, Place, SUCCESS, criteo_rows, job, rankine, run, summary, train, weights};

const DAYS: usize = 30;
/// Days that are trained on.
const WINDOW: usize = 4;
/// Samples of a block. A day has full blocks, so that blocks are the same in one dataset of several days.
const BLOCK: usize = 64;
/// The first field of categories.
const FIRST_CATEGORY: usize = 14;

fn name(day: usize) -> String {
    format!("data/day-{day:02}")
}

/// The rows of each day, some of which have a category that no earlier day has.
fn rows() -> Vec<Vec<String>> {
    let of_day = |day: usize| {
        let rows = criteo_rows(2 * BLOCK, day as u64).into_iter().enumerate();
        let with_new = |(number, row): (usize, String)| {
            let mut fields: Vec<_> = row.split('\t').map(str::to_owned).collect();
            if number % 5 == 0 {
                fields[FIRST_CATEGORY + number % 3] = format!("{:08x}", 0x1000 + day);
            }
            fields.join("\t")
        };
        rows.map(with_new).collect()
    };
    (0..DAYS).map(of_day).collect()
}

fn convert(place: &Place, rows: &[String], out: &str, args: &[&str]) {
    let log = place.file(&format!("{out}.tsv"), rows.join("\n") + "\n");
    let (out, block) = (place.word(out), BLOCK.to_string());
    run([&["convert", "criteo-tsv", &log, "--out", &out, "--block-samples", &block], args].concat())
        .with(SUCCESS);
}

/// Counts for each column the look-ups of a day's rows whose categories no earlier day has.
fn unknown(rows: &[Vec<String>], day: usize) -> Value {
    let category = |row: &String, column: usize| {
        row.split('\t').nth(FIRST_CATEGORY + column).expect("the row has this column").to_owned()
    };
    let of_column = |column: usize| {
        let known: BTreeSet<_> = rows[..day].iter().flatten().map(|row| category(row, column)).collect();
        rows[day].iter().filter(|row| !known.contains(&category(row, column))).count()
    };
    let counts = (0..26).map(|column| (format!("C{}", column + 1), of_column(column)));
    json!(counts.filter(|&(_, count)| count > 0).collect::<std::collections::BTreeMap<_, _>>())
}

/// The metrics of the next day, without what differs each time.
fn of_next(place: &Place, run_dir: &str) -> Value {
    let mut result = summary(place, run_dir)["eval"]["sets"]["next day"].clone();
    result.as_object_mut().expect("it is evaluated").remove("seconds");
    result
}

/// Runs the script of the guide that begins with these words, with replacements, in a place.
fn run_of_the_guide(place: &Place, begins: &str, replacements: &[(&str, &str)]) {
    let guide = include_str!("../../docs/guide/converting.md");
    let begin = guide.find(&format!("\n```bash\n{begins}")).expect("the guide has it") + 9;
    let mut script = guide[begin..].split("```").next().expect("it ends").to_owned();
    for (words, others) in replacements {
        assert!(script.contains(words), "{words} is not in {script}");
        script = script.replace(words, others);
    }
    let command = rankine();
    let mut bash = std::process::Command::new("bash");
    bash.args(["-ec", &format!("rankine() {{ {:?} \"$@\"; }}\n{script}", command.get_program())]);
    bash.current_dir(place.path(""));
    Ended::of(bash).with(SUCCESS);
}

#[test]
fn a_job_trains_on_four_days_and_is_evaluated_on_the_next() {
    let place = Place::new();
    let rows = rows();
    for (day, rows) in rows.iter().enumerate() {
        place.file(&format!("day_{day:02}.tsv"), rows.join("\n") + "\n");
    }
    let blocks = format!(" --block-samples {BLOCK} --out ");
    run_of_the_guide(&place, "rankine convert criteo-tsv day_00.tsv", &[(" --out ", &blocks)]);
    let job = job(&place);
    let text = fs::read_to_string(&job).unwrap();
    let train_keys = "shuffle_window_blocks = 3, batch_size = 50, epochs = 2";
    fs::write(&job, text.replace("batch_size = 128", train_keys)).unwrap();
    let windows = [0, 13, DAYS - 1 - WINDOW];
    run_of_the_guide(
        &place,
        "for k in $(seq 0 25)",
        &[("$(seq 0 25)", &windows.map(|k| k.to_string()).join(" "))],
    );
    for first in windows {
        let next = first + WINDOW;
        let days: Vec<_> = (first..next).map(|day| place.word(&name(day))).collect();
        let run_on = |run_dir: &str, dirs: &[String], next: &str| {
            let dirs = format!("data.dir={dirs:?}");
            let set = format!("eval.set=[{{name=\"next day\",data={next:?}}}]");
            train(&place, &job, run_dir, &[&dirs, &set]).with(SUCCESS);
            of_next(&place, run_dir)
        };
        let run_dir = format!("runs/from-{first}");
        let mut result = of_next(&place, &run_dir);

        // The same days as a collection, and converted at once with the vocabularies of the last one.
        let merged = format!("days-{first}");
        let words = ["dataset", "merge", "--out", &place.word(&merged)].map(str::to_owned);
        run(words.into_iter().chain(days.iter().cloned())).with(SUCCESS);
        let last = place.word(&name(next - 1));
        convert(&place, &rows[first..next].concat(), &format!("whole-{first}"), &["--like", &last]);
        // And the next day with these vocabularies, in which its new categories are unknown.
        convert(&place, &rows[next], &format!("known-{first}"), &["--like", &last]);
        let known = place.word(&format!("known-{first}"));
        let count = result.as_object_mut().unwrap().remove("ids_out_of_range").unwrap();
        assert_eq!(count, unknown(&rows, next));
        for other in [merged, format!("whole-{first}")] {
            let of_known = run_on(&format!("run-{other}"), &[place.word(&other)], &known);
            assert!(weights(&place, &format!("run-{other}")) == weights(&place, &run_dir), "{other}");
            assert_eq!(of_known, result, "{other}");
        }
        // Earlier days have fewer categories, all of which the training knows.
        let of_first = run_on("run-first", &days[1..], &days[0]);
        assert_eq!((&of_first["samples"], of_first.get("ids_out_of_range")), (&json!(2 * BLOCK), None));
        fs::remove_dir_all(place.path("run-first")).unwrap();
    }
}
