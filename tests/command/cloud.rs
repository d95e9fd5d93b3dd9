//! Datasets in object stores, against a small store on the loopback (`support/bucket.rs`).

use crate::support::{Place, USAGE, job, run, train};

#[test]
fn outputs_that_need_a_file_system_are_refused_at_urls() {
    let place = Place::new();
    let job = job(&place);
    let needs = "must be on a file system";
    run(["train", &job, "--run-dir", "s3://clicks/runs/a"])
        .with(USAGE)
        .says(&["s3://clicks/runs/a is a url", needs]);
    run(["generate", "--shape", "dlrm", "--samples", "9", "--out", "s3://clicks/a"])
        .with(USAGE)
        .says(&[needs]);
    run(["eval", "--run", "s3://clicks/runs/a"]).with(USAGE).says(&["a model", needs]);
    let cache = r#"data.cache={dir="s3://clicks/cache",bytes="1GB"}"#;
    train(&place, &job, "run", &[cache]).with(USAGE).says(&["a cache is a local folder, not a url"]);
}

#[cfg(not(feature = "cloud"))]
#[test]
fn a_build_without_object_stores_names_the_feature() {
    let place = Place::new();
    let job = job(&place);
    let says = ["cannot read urls of object stores: build it with `cargo build --release --features cloud`"];
    run(["inspect", "s3://clicks/data"]).with(USAGE).says(&says);
    train(&place, &job, "run", &["data.dir=\"s3://clicks/data\""]).with(USAGE).says(&says);
}

#[test]
fn a_file_url_is_a_local_folder() {
    let place = Place::new();
    let data = crate::support::generate(&place, crate::support::SHAPE, 300, 0);
    run(["inspect", &format!("file://{data}"), "--verify"]).with(crate::support::SUCCESS);
}

#[cfg(feature = "cloud")]
mod with_stores {
    use std::fs;
    use std::path::{Path, PathBuf};
    use std::process::Command;
    use std::time::Duration;

    use rankine_base::sealed;
    use serde_json::{Value, json};

    use crate::support::bucket::{Bucket, Fault, SECRET};
    use crate::support::{
        BAD_DATA, Ended, FAILED, Place, SHAPE, SUCCESS, USAGE, criteo_rows, files_below, flip_a_bit,
        generate, job, json_file, rankine, summary, train, weights,
    };

    /// A dataset of many small blocks in the folder `bucket`, and a job.
    fn place() -> (Place, String) {
        let place = Place::new();
        let rows = criteo_rows(2000, 5);
        let like = place.word("bucket/data");
        for (name, rows, args) in [
            ("data", &rows[..1000], &["--split", "last:0.1"][..]),
            ("more", &rows[1000..], &["--like", &like]),
        ] {
            let (log, out) =
                (place.file(name, rows.join("\n") + "\n"), place.word(&format!("bucket/{name}")));
            let words = ["convert", "criteo-tsv", &log, "--out", &out, "--block-samples", "32"];
            crate::support::run([&words, args].concat()).with(SUCCESS);
        }
        let job = job(&place);
        (place, job)
    }

    /// Returns the number of blocks of a part: the index has 16 bytes for each.
    fn blocks(place: &Place, part: &str) -> usize {
        fs::metadata(place.path("bucket").join(part).join("index.bin"))
            .map_or(0, |index| index.len() as usize / 16)
    }

    fn command(bucket: &Bucket, args: &[&str]) -> Command {
        let mut command = rankine();
        bucket.set(&mut command).args(args);
        command
    }

    fn ended(bucket: &Bucket, args: &[&str]) -> Ended {
        let ended = Ended::of(command(bucket, args));
        for text in [&ended.stdout, &ended.stderr] {
            assert!(!text.contains("hunter2"), "the secret is printed: {text}");
        }
        ended
    }

    /// Trains with `--set` options on a store.
    fn train_at(bucket: &Bucket, place: &Place, job: &str, run_dir: &str, sets: &[&str]) -> Ended {
        let run_dir = place.word(run_dir);
        let mut args = vec!["train", job, "--quiet", "--run-dir", &run_dir];
        args.extend(sets.iter().flat_map(|set| ["--set", set]));
        args.extend(["--set", "train.epochs=2", "--set", "train.shuffle_window_blocks=3"]);
        ended(bucket, &args)
    }

    /// Trains on the local folders; returns the weights.
    fn expected(place: &Place, job: &str, dirs: &[&str]) -> Vec<u8> {
        let dirs: Vec<_> = dirs.iter().map(|dir| place.word(dir)).collect();
        let sets = [&format!("data.dir={dirs:?}"), "train.epochs=2", "train.shuffle_window_blocks=3"];
        train(place, job, "local", &sets).with(SUCCESS);
        weights(place, "local")
    }

    fn cache(place: &Place, bytes: &str) -> String {
        format!("data.cache={{dir={:?},bytes={bytes:?}}}", place.word("cache"))
    }

    fn cached(place: &Place) -> Vec<PathBuf> {
        let mut files = files_below(&place.path("cache"));
        files.retain(|file| file.extension().is_some_and(|suffix| suffix == "block"));
        files
    }

    #[test]
    fn a_bucket_a_list_a_collection_and_a_cache_train_to_the_bits_of_a_folder() {
        let (place, job) = place();
        let expected = expected(&place, &job, &["bucket/data", "bucket/more"]);
        let bucket = Bucket::of(&place.path("bucket"));
        let (data, more) = (bucket.url("data"), bucket.url("more"));
        let merged = place.word("bucket/all");
        ended(&bucket, &["dataset", "merge", &data, &more, "--out", &merged]).with(SUCCESS);
        // The collection works where it was made, and in the bucket.
        let mixed = place.word("bucket/more");
        let cache = cache(&place, "100MB");
        let dirs = [
            ("list", format!("[{data:?}, {more:?}]")),
            ("mixed", format!("[{data:?}, {mixed:?}]")),
            ("collection", format!("{merged:?}")),
            ("in-bucket", format!("{:?}", bucket.url("all"))),
        ];
        for (run_dir, dirs) in &dirs {
            train_at(&bucket, &place, &job, run_dir, &[&format!("data.dir={dirs}")]).with(SUCCESS);
            assert!(weights(&place, run_dir) == expected, "{run_dir}");
        }
        for run_dir in ["cold", "warm"] {
            let before = bucket.count("GET", ".blocks");
            train_at(&bucket, &place, &job, run_dir, &[&format!("data.dir={}", dirs[0].1), &cache])
                .with(SUCCESS);
            assert!(weights(&place, run_dir) == expected, "{run_dir}");
            let fetched = bucket.count("GET", ".blocks") - before;
            let parts = ["data/train", "data/eval", "more/train", "more/eval"];
            let blocks: usize = parts.map(|part| blocks(&place, part)).iter().sum();
            // At the end of an epoch, a block may be requested again before it is in the cache.
            let expected = if run_dir == "cold" { blocks..=blocks + 16 } else { 0..=0 };
            assert!(expected.contains(&fetched), "{run_dir}: {fetched} of {blocks}");
            assert_eq!(cached(&place).len(), blocks);
        }
        // The secret is in no file of the runs.
        for file in files_below(&place.path("cold")) {
            let bytes = fs::read(&file).unwrap();
            assert!(!bytes.windows(SECRET.len()).any(|part| part == SECRET.as_bytes()), "{}", file.display());
        }
    }

    #[test]
    fn failing_requests_are_repeated_to_the_same_bits() {
        let (place, job) = place();
        let expected = expected(&place, &job, &["bucket/data"]);
        let faults = [
            Fault::Status(500, "InternalError"),
            Fault::Truncated,
            Fault::Status(503, "SlowDown"),
            Fault::Closed,
            Fault::Status(429, "TooManyRequests"),
            Fault::Flipped,
        ];
        let bucket = Bucket::with_faults(&place.path("bucket"), move |number, path| {
            // No checksum covers an answer's headers, and the manifests are read before the retries of blocks.
            let fault = number.is_multiple_of(4).then(|| faults[number / 4 % faults.len()])?;
            (fault != Fault::Flipped || path.ends_with(".blocks")).then_some(fault)
        });
        let textfile = format!("metrics.textfile={:?}", place.word("metrics.prom"));
        let dir = format!("data.dir={:?}", bucket.url("data"));
        train_at(&bucket, &place, &job, "run", &[&dir, &textfile]).with(SUCCESS);
        assert!(weights(&place, "run") == expected);
        let metrics = fs::read_to_string(place.path("metrics.prom")).unwrap();
        // The value of a metric with this label.
        let value = |name: &str, label: &str| -> usize {
            let mut lines = metrics.lines().filter(|line| !line.starts_with('#'));
            let line = lines.find(|line| line.starts_with(name) && line.contains(label));
            let line = line.unwrap_or_else(|| panic!("{name} is not in {metrics}"));
            line.rsplit_once(' ').unwrap().1.parse().unwrap()
        };
        for status in [200, 206, 429, 500, 503] {
            let seen = bucket.seen().iter().filter(|seen| seen.status == status).count();
            let counted = value("rankine_store_requests_total", &format!("status=\"{status}\""));
            // A closed connection has sent no status.
            assert!(counted > 0 && counted <= seen, "{status}: {counted} of {seen}");
        }
        assert!(value("rankine_store_retries_total", "") > 10, "{metrics}");
        // Two epochs of training, and an evaluation: every block once each time, and more for repeated ones.
        let bytes = |part: &str| fs::metadata(place.path("bucket/data").join(part)).unwrap().len() as usize;
        let blocks = 2 * bytes("train/00000.blocks") + bytes("eval/00000.blocks");
        assert!(value("rankine_store_bytes_total", "") >= blocks);
    }

    #[test]
    fn an_answer_that_comes_too_late_is_asked_for_again() {
        let (place, _) = place();
        let late = Fault::Late(Duration::from_secs(3));
        let bucket =
            Bucket::with_faults(&place.path("bucket"), move |number, _| (number == 5).then_some(late));
        let mut command = command(&bucket, &["inspect", &bucket.url("data"), "--verify"]);
        command.env("AWS_TIMEOUT", "1s");
        Ended::of(command).with(SUCCESS);
    }

    #[test]
    fn an_object_that_is_replaced_ends_the_command() {
        let (place, job) = place();
        let file = place.path("bucket/data/train/00000.blocks");
        let bucket = Bucket::with_faults(&place.path("bucket"), move |number, _| {
            if number == 20 {
                flip_a_bit(&file);
            }
            None
        });
        let url = bucket.url("data");
        let says = [&format!("{url}/train/00000.blocks was replaced while it was in use"), "another url"];
        train_at(&bucket, &place, &job, "run", &[&format!("data.dir={url:?}")]).with(USAGE).says(&says);
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        let (place, _) = place();
        let bucket = Bucket::of(&place.path("bucket"));
        let none = bucket.url("none");
        ended(&bucket, &["inspect", &none]).with(USAGE).says(&[&format!("no dataset at {none}")]);
        let url = bucket.url("data");
        fs::remove_file(place.path("bucket/data/train/00000.blocks")).unwrap();
        let missing = format!("cannot read {url}/train/00000.blocks: there is no such object");
        ended(&bucket, &["inspect", &url, "--verify"]).with(BAD_DATA).says(&[&missing]);

        let inspect = |bucket: &Bucket, variable: &str, value: &str| {
            let mut command = command(bucket, &["inspect", &url]);
            command.env(variable, value);
            Ended::of(command)
        };
        let denied = "403 Forbidden (AccessDenied): check the credentials in the environment";
        inspect(&bucket, "AWS_ACCESS_KEY_ID", "another").with(FAILED).says(&[&url, denied]);
        let down = Bucket::with_faults(&place.path("bucket"), |_, _| Some(Fault::Status(503, "SlowDown")));
        let spent = inspect(&down, "RANKINE_STORE_RETRY_SECONDS", "1").with(FAILED);
        let spent = spent.says(&[
            &format!("cannot read {url}/dataset.json: 503 Service Unavailable (SlowDown)"),
            "attempts",
        ]);
        assert!(!spent.stderr.contains("hunter2"), "{}", spent.stderr);
        let says = ["RANKINE_STORE_RETRY_SECONDS is \"soon\": expected a number of seconds"];
        inspect(&down, "RANKINE_STORE_RETRY_SECONDS", "soon").with(USAGE).says(&says);
        ended(&bucket, &["inspect", "s3://a:hunter2@b/c"]).with(USAGE).says(&["holds credentials"]);
    }

    #[test]
    fn evaluating_and_predicting_take_urls() {
        let (place, job) = place();
        expected(&place, &job, &["bucket/data"]);
        let bucket = Bucket::of(&place.path("bucket"));
        let (run, local, url) = (place.word("local"), place.word("bucket/data"), bucket.url("data"));
        let auc = |data: &str| {
            ended(&bucket, &["eval", "--run", &run, "--data", data, "--json"]).with(SUCCESS).json()["auc"]
                .clone()
        };
        assert_eq!(auc(&url), auc(&local));
        let predict = |data: &str, out: &str| {
            let out = place.word(out);
            ended(&bucket, &["predict", "--run", &run, "--data", data, "--part", "train", "--out", &out])
                .with(SUCCESS);
            fs::read(out).unwrap()
        };
        assert!(predict(&url, "remote.csv") == predict(&local, "local.csv"));
        let set = format!("eval.set=[{{name=\"more\",data={:?}}}]", bucket.url("more"));
        train_at(&bucket, &place, &job, "sets", &[&format!("data.dir={local:?}"), &set]).with(SUCCESS);
        assert!(!summary(&place, "sets")["eval"].is_null());
    }

    /// Returns the files of a dataset, without those that name its sources.
    fn samples(place: &Place, out: &str) -> std::collections::BTreeMap<String, Vec<u8>> {
        let mut files = crate::support::tree(&place.path(out));
        for name in ["dataset.json", "conversion.json"] {
            files.remove(name).expect("it is a dataset");
        }
        assert!(files.contains_key("train/00000.blocks"));
        files
    }

    #[test]
    fn rows_are_converted_from_urls() {
        let place = Place::new();
        let rows = criteo_rows(900, 3);
        let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        std::io::Write::write_all(&mut gz, (rows[600..].join("\n") + "\n").as_bytes()).unwrap();
        fs::create_dir_all(place.path("bucket/logs/day=2/deep")).unwrap();
        fs::create_dir_all(place.path("bucket/logs/day=1")).unwrap();
        place.file("bucket/logs/day=1/a.tsv", rows[..300].join("\n") + "\n");
        place.file("bucket/logs/day=1/b.tsv", rows[300..600].join("\n") + "\n");
        place.file("bucket/logs/day=2/c.tsv.gz", gz.finish().unwrap());
        place.file("bucket/logs/day=1/_SUCCESS", "");
        place.file("bucket/logs/day=2/deep/other.tsv", "not rows");
        let fault = |number: usize, _: &str| match number % 5 {
            1 => Some(Fault::Status(503, "SlowDown")),
            3 => Some(Fault::Truncated),
            _ => None,
        };
        let bucket = Bucket::with_faults(&place.path("bucket"), fault);
        let convert = |out: &str, inputs: &[&str]| {
            let out = place.word(out);
            let args = [&["convert", "criteo-tsv"], inputs, &["--out", &out, "--split", "last:0.2"]].concat();
            ended(&bucket, &args)
        };
        convert("expected", &[&place.word("bucket/logs/day=1"), &place.word("bucket/logs/day=2")])
            .with(SUCCESS);
        let expected = samples(&place, "expected");
        let [day_1, day_2] = ["logs/day=1", "logs/day=2"].map(|day| bucket.url(day));
        for (out, inputs) in [
            ("folders", vec![day_1.clone(), day_2.clone()]),
            (
                "objects",
                vec![format!("{day_1}/a.tsv"), format!("{day_1}/b.tsv"), format!("{day_2}/c.tsv.gz")],
            ),
            ("pattern", vec![bucket.url("logs/day=*/[abc].tsv*")]),
            ("mixed", vec![format!("file://{}/bucket/logs/day=1", place.word("")), bucket.url("*/day=2/c*")]),
        ] {
            let inputs: Vec<_> = inputs.iter().map(String::as_str).collect();
            convert(out, &inputs).with(SUCCESS);
            assert!(samples(&place, out) == expected, "{out}");
        }
        let says = format!("there is no object {}, and none directly below it", bucket.url("logs/day=3"));
        convert("none", &[&bucket.url("logs/day=3")]).with(USAGE).says(&[&says]);
        convert("none", &[&bucket.url("logs/*.csv")])
            .with(USAGE)
            .says(&["no object matches s3://clicks/logs/*.csv"]);
        // An object that is replaced between two passes.
        let path = place.path("bucket/logs/day=1/a.tsv");
        let replaced = Bucket::with_faults(&place.path("bucket"), move |number, _| {
            if number == 3 {
                fs::write(&path, "other rows").unwrap();
            }
            None
        });
        let (log, out) = (format!("{day_1}/a.tsv"), place.word("none"));
        let ended = ended(&replaced, &["convert", "criteo-tsv", &log, "--out", &out]).with(USAGE);
        ended.says(&[&log, "was replaced"]);
        assert!(!place.path("none").exists());
    }

    #[cfg(feature = "parquet")]
    #[test]
    fn parquet_is_converted_from_urls() {
        let place = Place::new();
        fs::create_dir(place.path("bucket")).unwrap();
        let films = crate::support::root().join("tests/support/films.parquet");
        fs::copy(&films, place.path("bucket/films.parquet")).unwrap();
        let films = crate::support::word(&films);
        let schema = place.word("films.toml");
        let bucket = Bucket::with_faults(&place.path("bucket"), |number, _| {
            (number % 3 == 1).then_some(Fault::Truncated)
        });
        let url = bucket.url("films.parquet");
        let drafted = |file: &str, out: &str| {
            ended(&bucket, &["init-schema", file, "--out", &place.word(out)]).with(SUCCESS);
            fs::read_to_string(place.path(out)).unwrap()
        };
        assert_eq!(drafted(&url, "remote.toml").replace(&url, &films), drafted(&films, "films.toml"));
        let convert = |file: &str, out: &str| {
            let out = place.word(out);
            ended(&bucket, &["convert", "parquet", file, "--schema", &schema, "--out", &out]).with(SUCCESS);
        };
        convert(&films, "local");
        convert(&url, "remote");
        assert!(samples(&place, "local") == samples(&place, "remote"));
    }

    /// A finished run whose table takes two parts of an upload.
    fn large_run() -> (Place, String) {
        let place = Place::new();
        generate(&place, "name = \"large\"\ndense = 1\nrows = [600000]\n", 300, 100);
        let job = job(&place);
        train(&place, &job, "run", &["model.embedding_dim=8", "model.bottom_mlp=[8]"]).with(SUCCESS);
        fs::create_dir(place.path("bucket")).expect("it is new");
        let run = place.word("run");
        (place, run)
    }

    #[test]
    fn exports_and_predictions_are_written_to_urls() {
        let (place, run) = large_run();
        let bucket = Bucket::with_faults(&place.path("bucket"), |number, _| match number % 4 {
            1 => Some(Fault::Status(503, "SlowDown")),
            3 => Some(Fault::Closed),
            _ => None,
        });
        let export = |out: &str| ended(&bucket, &["export", &run, "--format", "safetensors", "--out", out]);
        export(&place.word("local")).with(SUCCESS);
        export(&bucket.url("models/large")).with(SUCCESS);
        let [local, remote] =
            ["local", "bucket/models/large"].map(|dir| crate::support::tree(&place.path(dir)));
        assert!(local == remote && local["model.safetensors"].len() > 16 << 20);
        // The parts of the table, of which no upload remains.
        assert!(bucket.count("PUT", "model.safetensors") >= 2 && bucket.open_uploads() == 0);
        let says = ["s3://clicks/models/large has objects already"];
        export(&bucket.url("models/large")).with(USAGE).says(&says);
        let triton = ["export", &run, "--format", "onnx", "--out", "s3://clicks/models/onnx"];
        ended(&bucket, &triton).with(SUCCESS);
        assert!(place.path("bucket/models/onnx/model.onnx").exists());

        let data = place.word("data");
        let predict = |out: &str, args: &[&str]| {
            ended(&bucket, &[&["predict", "--run", &run, "--data", &data, "--out", out], args].concat())
        };
        predict(&place.word("local.csv"), &[]).with(SUCCESS);
        let url = bucket.url("scores/day.csv");
        predict(&url, &[]).with(SUCCESS);
        let written = || fs::read(place.path("bucket/scores/day.csv")).unwrap();
        assert!(written() == fs::read(place.path("local.csv")).unwrap());
        predict(&url, &[]).with(USAGE).says(&["scores/day.csv exists already", "--force"]);
        predict(&url, &["--force", "--part", "train"]).with(SUCCESS);
        assert!(written().len() > 300);
    }

    #[test]
    fn an_upload_that_fails_leaves_nothing() {
        let (place, run) = large_run();
        // The second part never arrives.
        let bucket = Bucket::with_faults(&place.path("bucket"), |number, what| {
            let is_part = what.starts_with("PUT") && what.ends_with("model.safetensors");
            (is_part && number > 3).then_some(Fault::Status(503, "SlowDown"))
        });
        let url = bucket.url("models/large");
        let mut command = command(&bucket, &["export", &run, "--format", "safetensors", "--out", &url]);
        command.env("RANKINE_STORE_RETRY_SECONDS", "1");
        let says = ["cannot write s3://clicks/models/large/model.safetensors: 503 Service Unavailable"];
        Ended::of(command).with(FAILED).says(&says);
        assert_eq!(bucket.open_uploads(), 0);
        // Neither the weights nor the manifest, without which nobody reads the rest.
        for name in ["model.safetensors", "model.json"] {
            assert!(!place.path("bucket/models/large").join(name).exists(), "{name}");
        }
    }

    #[test]
    fn a_damaged_block_of_the_cache_is_fetched_again() {
        let (place, job) = place();
        let expected = expected(&place, &job, &["bucket/data"]);
        let bucket = Bucket::of(&place.path("bucket"));
        let sets = [&format!("data.dir={:?}", bucket.url("data")), &*cache(&place, "100MB")];
        train_at(&bucket, &place, &job, "cold", &sets).with(SUCCESS);
        let files = cached(&place);
        let whole = blocks(&place, "data/train") + blocks(&place, "data/eval");
        assert_eq!(files.len(), whole);
        // A wrong bit, a file cut short, and the bytes of another block.
        flip_a_bit(&files[0]);
        let bytes = fs::read(&files[1]).unwrap();
        fs::write(&files[1], &bytes[..bytes.len() - 1]).unwrap();
        fs::copy(&files[2], &files[3]).unwrap();
        let before = bucket.count("GET", ".blocks");
        train_at(&bucket, &place, &job, "warm", &sets)
            .with(SUCCESS)
            .says(&["is damaged: it was removed from the cache"]);
        assert!(weights(&place, "warm") == expected);
        // The next epoch may ask for a block before it is kept.
        let fetched = bucket.count("GET", ".blocks") - before;
        assert!((3..=6).contains(&fetched), "{fetched} of {whole} blocks");
        assert_eq!(cached(&place).len(), whole);
    }

    #[test]
    fn processes_share_a_cache_within_its_bytes() {
        let (place, job) = place();
        let expected = expected(&place, &job, &["bucket/data"]);
        let bucket = Bucket::of(&place.path("bucket"));
        let whole: u64 = ["train", "eval"]
            .map(|part| {
                fs::metadata(place.path("bucket/data").join(part).join("00000.blocks")).unwrap().len()
            })
            .iter()
            .sum();
        let most = whole / 2;
        let sets = [&format!("data.dir={:?}", bucket.url("data")), &*cache(&place, &format!("{most}B"))];
        std::thread::scope(|scope| {
            for run_dir in ["a", "b", "c"] {
                let (place, job, bucket, sets) = (&place, &job, &bucket, &sets);
                scope.spawn(move || train_at(bucket, place, job, run_dir, sets).with(SUCCESS));
            }
        });
        for run_dir in ["a", "b", "c"] {
            assert!(weights(&place, run_dir) == expected, "{run_dir}");
        }
        let held: u64 = cached(&place).iter().map(|file| fs::metadata(file).unwrap().len()).sum();
        assert!(held <= most && held > most * 3 / 4, "{held} of {most}");
        assert_eq!(fs::read_dir(place.path("cache/partial")).unwrap().count(), 0);
    }

    /// Writes a collection into the bucket whose only shard has this path, and opens it by url.
    fn tampered(place: &Place, bucket: &Bucket, shards: &[&str]) -> Ended {
        let all = place.path("bucket/all/collection.json");
        let text = fs::read(&all).expect("it was merged");
        let mut collection: Value = sealed::from_json("rankine collection", 1, &text).expect("it is intact");
        let entry = collection["shards"][0].clone();
        let entries = shards.iter().map(|path| {
            let mut entry = entry.clone();
            entry["path"] = json!(path);
            entry
        });
        collection["shards"] = entries.collect();
        fs::write(&all, sealed::to_json("rankine collection", 1, &collection)).expect("it is written");
        ended(bucket, &["inspect", &bucket.url("all")])
    }

    #[test]
    fn a_collection_in_a_bucket_names_nothing_outside_of_it() {
        let (place, _) = place();
        let bucket = Bucket::of(&place.path("bucket"));
        let merged = place.word("bucket/all");
        ended(&bucket, &["dataset", "merge", &bucket.url("data"), "--out", &merged]).with(SUCCESS);
        tampered(&place, &bucket, &[&bucket.url("data")]).with(SUCCESS);
        for path in [
            place.word("bucket/data"),
            "../data".into(),
            "s3://clicks/all/../data".into(),
            "s3://other/data".into(),
            "gs://clicks/data".into(),
            "s3://clicks".into(),
            "s3://clicks//data".into(),
            "s3://key:word@clicks/data".into(),
            "s3://clicks/data?x".into(),
            "".into(),
        ] {
            let ended = tampered(&place, &bucket, &[&path]).with(BAD_DATA);
            ended.says(&[
                "all/collection.json is damaged",
                "neither below its folder nor an url of the same bucket",
            ]);
        }
        // Twice, also spelled in two ways.
        for again in ["data", "data/"] {
            let urls = [bucket.url("data"), bucket.url(again)];
            let ended = tampered(&place, &bucket, &[&urls[0], &urls[1]]).with(BAD_DATA);
            ended.says(&["it lists a shard twice"]);
        }
        // A collection that lists itself has no dataset there.
        tampered(&place, &bucket, &[&bucket.url("all")])
            .with(USAGE)
            .says(&["its shard s3://clicks/all is not there"]);
        // Another dataset than the one that was merged.
        let ended = tampered(&place, &bucket, &[&bucket.url("more")]).with(USAGE);
        ended.says(&["s3://clicks/more is not the one that the collection s3://clicks/all was made of"]);
        let dataset = place.path("bucket/all/dataset.json");
        assert!(
            !Path::new(&dataset).exists() && json_file(&place.path("bucket/all/collection.json")).is_object()
        );
    }

    #[test]
    fn a_generated_dataset_is_local() {
        let place = Place::new();
        generate(&place, SHAPE, 100, 0);
        let bucket = Bucket::of(&place.path("data"));
        let sets = ["data.dir=\"s3://clicks/new\"", "data.generate={shape=\"dlrm\",samples=9}"];
        let says = ["a dataset is generated in a local folder, not at s3://clicks/new"];
        train_at(&bucket, &place, &job(&place), "run", &sets).with(USAGE).says(&says);
    }

    /// Copies files below a folder, except one.
    fn sync(from: &Path, to: &Path, except: Option<&str>) {
        for file in files_below(from) {
            let name = file.strip_prefix(from).expect("it is below");
            if except.is_none_or(|except| name != Path::new(except)) {
                let to = to.join(name);
                fs::create_dir_all(to.parent().expect("it has a folder")).expect("it is created");
                fs::copy(&file, to).expect("it is copied");
            }
        }
    }

    #[test]
    fn the_commands_of_the_guide_work() {
        let guide = include_str!("../../docs/guide/buckets.md");
        let place = Place::new();
        let rows = criteo_rows(600, 7);
        place.file("day_0.tsv", rows[..400].join("\n") + "\n");
        fs::create_dir(place.path("bucket")).unwrap();
        let bucket = Bucket::of(&place.path("bucket"));
        let in_bucket = |url: &str| place.path("bucket").join(url.strip_prefix("s3://clicks/").unwrap());
        let mut ran = 0;
        for block in guide.split("\n```").skip(1).step_by(2) {
            let (kind, text) = block.split_once('\n').unwrap();
            if kind == "toml" {
                place.file("bucket.toml", text);
                continue;
            }
            assert_eq!(kind, "sh");
            for line in text.lines() {
                match &line.split(' ').collect::<Vec<_>>()[..] {
                    ["aws", "s3", "sync", from, to, rest @ ..] => {
                        sync(&place.path(from), &in_bucket(to), rest.get(1).copied());
                    }
                    ["aws", "s3", "cp", from, to] => {
                        fs::copy(place.path(from), in_bucket(to)).unwrap();
                    }
                    ["rankine", args @ ..] => {
                        let mut command = command(&bucket, args);
                        Ended::of({
                            command.current_dir(place.path(""));
                            command
                        })
                        .with(SUCCESS);
                        ran += 1;
                    }
                    words => panic!("{words:?}"),
                }
            }
            // Another day, which the guide only names.
            if ran == 1 {
                let day = place.file("day_1.tsv", rows[400..].join("\n") + "\n");
                let (out, like) = (place.word("bucket/day-1"), place.word("data/day-0"));
                let args = ["convert", "criteo-tsv", &day, "--like", &like, "--out", &out];
                crate::support::run(args).with(SUCCESS);
            }
        }
        assert!(ran >= 7, "{ran}");
        assert!(!cached(&place).is_empty());
    }
}
