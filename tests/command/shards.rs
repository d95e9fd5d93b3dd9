//! Fits, and conversions with them in several processes.

use std::fs;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::process::Running;
use crate::support::{
    BAD_DATA, Ended, Place, SUCCESS, USAGE, criteo_rows, job, json_file, rankine, run, train, tree, weights,
};

const SPLIT: [&str; 2] = ["--split", "hash:C1:0.3"];
/// No shard has a multiple of it.
const BLOCK: [&str; 2] = ["--block-samples", "64"];

/// Three files of rows, a fit of all of them, and their conversion at once.
fn fitted(rows: [usize; 3]) -> Place {
    let place = Place::new();
    let all = criteo_rows(rows.iter().sum(), 3);
    let mut from = 0;
    for (shard, count) in rows.into_iter().enumerate() {
        place.file(&format!("log-{shard}.tsv"), all[from..from + count].join("\n") + "\n");
        from += count;
    }
    let logs = place.word("log-*.tsv");
    let fit = ["fit", "criteo-tsv", &logs, "--out", &place.word("fit"), "--min-count", "2"];
    run([&fit[..], &SPLIT].concat()).with(SUCCESS);
    let like = ["convert", "criteo-tsv", &logs, "--out", &place.word("whole"), "--like", &place.word("fit")];
    run([&like[..], &SPLIT, &BLOCK].concat()).with(SUCCESS);
    place
}

/// Returns the command that converts a shard.
fn conversion(place: &Place, shard: usize) -> Command {
    let mut command = rankine();
    command.args(["convert", "criteo-tsv", &place.word(&format!("log-{shard}.tsv"))]);
    command.args(["--like", &place.word("fit"), "--out", &place.word(&format!("shards/{shard}"))]);
    command.args(SPLIT).args(BLOCK);
    command
}

#[test]
fn shards_of_several_processes_train_to_the_bits_of_one_conversion() {
    let place = fitted([6001, 5003, 6011]);
    fs::create_dir(place.path("shards")).unwrap();
    let start =
        |shard: usize| Running::start(conversion(&place, shard).stdout(Stdio::null()).stderr(Stdio::null()));
    let mut running: Vec<_> = (0..3).map(start).collect();
    // Killed once it writes, and started again while the others run.
    let (lock, began) = (place.path("shards/.1.lock"), Instant::now());
    while !lock.exists() {
        assert!(began.elapsed() < Duration::from_secs(60), "it has not begun to write");
        thread::sleep(Duration::from_micros(200));
    }
    running[1].signal(libc::SIGKILL);
    assert_eq!(running[1].end(), 128 + libc::SIGKILL);
    assert!(!place.path("shards/1").exists());
    running[1] = start(1);
    for process in &mut running {
        assert_eq!(process.end(), SUCCESS);
    }
    let shards = ["shards/0", "shards/1", "shards/2"].map(|shard| place.word(shard));
    let merged = place.word("merged");
    run([&["dataset", "merge", "--out", &merged][..], &shards.each_ref().map(String::as_str)].concat())
        .with(SUCCESS);
    for shard in ["shards/0", "shards/1", "shards/2"] {
        let [found, mut fit] = [shard, "fit"].map(|dir| tree(&place.path(dir).join("vocabulary")));
        // Only a fit has indexes.
        fit.retain(|name, _| !name.ends_with(".index"));
        assert!(found == fit, "{shard}");
    }
    let statistics = |data: &str| fs::read(place.path(data).join("statistics.bin")).unwrap();
    assert!(statistics("merged") == statistics("whole"));

    let job = job(&place);
    for (data, run_dir) in [("whole", "run"), ("merged", "run-merged")] {
        let dir = format!("data.dir={:?}", place.word(data));
        train(&place, &job, run_dir, &[&dir, "train.shuffle=false", "train.max_steps=20"]).with(SUCCESS);
    }
    assert!(weights(&place, "run-merged") == weights(&place, "run"));
    let auc = |run_dir: &str| json_file(&place.path(run_dir).join("summary.json"))["eval"].clone();
    assert_eq!(auc("run-merged")["auc"], auc("run")["auc"]);
}

#[test]
fn a_fit_is_inspected_and_is_no_dataset() {
    let place = fitted([60, 50, 70]);
    let fit = place.word("fit");
    let shown = run(["inspect", &fit]).with(SUCCESS).stdout;
    for words in [
        &*format!("fit      {fit}\n"),
        "  learned from criteo-tsv, split hash:C1:0.3: 180 rows read, ",
        "  columns: 1 label, 13 dense (f16), 26 categorical\n",
        "exact with min_count 2",
        "(log1p(x) - ",
    ] {
        assert!(shown.contains(words), "{words:?} is not in {shown}");
    }
    let report = run(["inspect", &fit, "--json"]).with(SUCCESS).json();
    assert_eq!(report["kind"], "fit");
    let vocabulary = fs::read_to_string(place.path("fit/vocabulary/C1.tsv")).unwrap();
    assert_eq!(report["tables"][0]["rows"], vocabulary.lines().count());
    let counts = vocabulary.lines().map(|line| line.rsplit_once('\t').unwrap().1.parse::<u64>().unwrap());
    assert_eq!(report["tables"][0]["lookups"], counts.clone().sum::<u64>());
    assert_eq!(report["tables"][0]["most_frequent"][0]["lookups"], counts.max().unwrap());

    let is_fit = |ended: Ended| {
        ended.with(USAGE).says(&[&format!("{fit} is a fit: it has no samples; convert"), "--like"]);
    };
    let job = job(&place);
    let data = format!("data.dir={fit:?}");
    is_fit(train(&place, &job, "run", &[&data]));
    is_fit(run(["check", &job, "--here", "--set", &data]));
    is_fit(run(["plan", &job, "--ranks", "2", "--set", &data]));
    is_fit(run(["dataset", "merge", &place.word("whole"), &fit, "--out", &place.word("merged")]));
    is_fit(run(["init", "--data", &fit, "--out", &place.word("new.toml")]));
    let whole = format!("data.dir={:?}", place.word("whole"));
    train(&place, &job, "run", &[&whole, "train.max_steps=2"]).with(SUCCESS);
    is_fit(run(["eval", "--run", &place.word("run"), "--data", &fit]));
    run(["eval", "--run", &fit]).with(USAGE).says(&["it is a fit, which has vocabularies but no weights"]);
    run(["predict", "--run", &place.word("run"), &fit, "--out", "-"])
        .with(USAGE)
        .says(&["is a fit, not a folder of raw files"]);

    // Every byte is checked.
    let index = fs::read(place.path("fit/vocabulary/C2.index")).unwrap();
    fs::write(place.path("fit/vocabulary/C2.index"), [&index[..index.len() - 1], b"x"].concat()).unwrap();
    run(["inspect", &fit]).with(BAD_DATA).says(&["C2.index", "its checksum does not match fit.json"]);
    fs::write(place.path("fit/vocabulary/C2.index"), &index).unwrap();
    fs::write(place.path("fit/vocabulary/C1.tsv"), vocabulary.replacen('1', "2", 1)).unwrap();
    run(["inspect", &fit]).with(BAD_DATA).says(&["C1.tsv", "its checksum does not match fit.json"]);
}

#[test]
fn a_fit_is_continued() {
    let place = fitted([60, 50, 70]);
    let more = place.file("more.tsv", criteo_rows(90, 8).join("\n") + "\n");
    let fit = |args: &[&str]| {
        run([&["fit", "criteo-tsv", &more, "--out", &place.word("fit-2")][..], args].concat())
    };
    fit(&["--like", &place.word("fit")]).with(USAGE).says(&["--grow"]);
    fit(&["--grow"]).with(USAGE).says(&["--like <DATASET|FIT|RUN>"]);
    fit(&["--like", &place.word("fit"), "--grow", "--min-count", "3"])
        .with(USAGE)
        .says(&["cannot be used with"]);
    fit(&["--block-samples", "64"]).with(USAGE).says(&["unexpected argument"]);
    let said = fit(&["--like", &place.word("fit"), "--grow"]).with(SUCCESS).stdout_says("rows read   90\n");
    said.stdout_says("new categories: ");
    let names = |fit: &str| -> Vec<String> {
        let text = fs::read_to_string(place.path(fit).join("vocabulary/C3.tsv")).unwrap();
        text.lines().map(|line| line.rsplit_once('\t').unwrap().0.to_owned()).collect()
    };
    let (old, new) = (names("fit"), names("fit-2"));
    assert!(new.len() > old.len() && new[..old.len()] == old);
    // A fit has no statistics, so no warning says that they are not added. The split differs.
    let grown = ["convert", "criteo-tsv", &more, "--like", &place.word("fit"), "--grow"];
    let ended = run([&grown[..], &["--out", &place.word("grown")]].concat()).with(SUCCESS);
    assert!(!ended.stderr.contains("statistics"), "{}", ended.stderr);
    ended.says(&["fit was learned with --split hash:C1:0.3, and these rows are converted with --split none"]);
    assert_eq!(names("grown"), new);
    run(["dataset", "merge", &place.word("whole"), &place.word("grown"), "--out", &place.word("both")])
        .with(SUCCESS);
}

#[test]
fn raw_records_have_no_column_to_split_by() {
    let place = Place::new();
    // A record of 1 label, 13 numbers and 26 ids.
    let log = place.file("log.bin", [0; 160]);
    let convert = ["convert", "hugectr-raw", &log, "--shape", "dlrm", "--out", &place.word("data")];
    run([&convert[..], &["--split", "hash:C1:0.1"]].concat())
        .with(USAGE)
        .says(&["--split hash:C1:0.1 needs columns of text", "use last or random, or --eval"]);
    assert!(!place.path("data").exists());
}

/// Returns the block of the guide that begins with these words after the line of backquotes.
fn of_the_guide(info: &str, begins: &str) -> &'static str {
    let guide = include_str!("../../docs/guide/converting.md");
    let begin = guide.find(&format!("\n```{info}\n{begins}")).expect("the guide has it") + info.len() + 5;
    let text = &guide[begin..];
    &text[..text.find("```").expect("it ends")]
}

#[test]
fn the_shards_of_the_guide_are_one_conversion() {
    let place = Place::new();
    place.file("ratings.csv", of_the_guide("csv", "user,"));
    place.file("ratings.toml", of_the_guide("toml", "[label]\ncolumn = \"rating\"\nat_least"));
    place.file("new.csv", of_the_guide("csv", "film,"));
    let at = |line: &str| {
        let mut command = rankine();
        command.current_dir(place.path("")).args(line.split(' '));
        Ended::of(command).with(SUCCESS)
    };
    let mut shown = of_the_guide("", "$ rankine fit csv ratings.csv new.csv").lines().peekable();
    while let Some(line) = shown.next() {
        let ended = at(line.strip_prefix("$ rankine ").expect("it is a command"));
        while let Some(expected) = shown.next_if(|line| !line.starts_with('$')) {
            assert!(
                ended.stdout.lines().any(|line| line == expected),
                "{expected:?} is not in {}",
                ended.stdout
            );
        }
    }
    at("convert csv ratings.csv new.csv --schema ratings.toml --split hash:user:0.5 --out data/plain");
    for file in ["vocabulary/film.tsv", "vocabulary/genres.tsv"] {
        let bytes = |dir: &str| fs::read(place.path("data").join(dir).join(file)).unwrap();
        for dir in ["shard-0", "shard-1", "plain"] {
            assert!(bytes(dir) == bytes("fit"), "{file} of {dir}");
        }
    }
    let bytes = |dir: &str| fs::read(place.path("data").join(dir).join("statistics.bin")).unwrap();
    assert!(bytes("all") == bytes("plain"));
}
