//! `rankine bench train`, `bench eval` and `bench time-to-auc` on a CPU.

use crate::support::{
    Place, SHAPE, SUCCESS, USAGE, generate, job as small_job, json_file, json_lines, run, train,
};

fn job(place: &Place) -> String {
    let data = place.path("data");
    let text = format!(
        r#"
        name = "small"
        data.dir = "{}"
        data.generate = {{ shape = "dlrm", rows_cap = 100, samples = 1000, eval_samples = 0, alpha = 1.1, seed = 1 }}
        model = {{ kind = "dlrm", embedding_dim = 4, bottom_mlp = [4], top_mlp = [8] }}
        optimizer.dense = {{ kind = "sgd", learning_rate = 0.1 }}
        optimizer.sparse = {{ kind = "sgd", learning_rate = 0.1 }}
        train.batch_size = 300
        device.kind = "cpu"
        "#,
        data.display()
    );
    place.file("job.toml", &text)
}

#[test]
fn batches_are_read_as_training_reads_them() {
    let place = Place::new();
    let job = job(&place);
    // Nine steps repeat the dataset's four batches: three full ones and a shorter last one.
    let bench =
        run(["bench", "train", &job, "--warm-up", "2", "--steps", "9", "--json"]).with(SUCCESS).json();
    assert_eq!(
        (&bench["name"], &bench["batch_size"], &bench["steps"]),
        (&"small".into(), &300.into(), &9.into())
    );
    let number = |key: &str| bench[key].as_f64().unwrap_or_else(|| panic!("{key} of {bench}"));
    assert!(number("ms_p10") > 0.0 && number("ms_p10") <= number("ms_per_iteration"), "{bench}");
    assert!(number("ms_per_iteration") <= number("ms_p99"), "{bench}");
    // Steps 3 to 11 were timed; steps 4 and 8 have short batches.
    let samples = number("samples_per_second") * number("seconds");
    assert!((samples - (7.0 * 300.0 + 2.0 * 100.0)).abs() < 1e-6, "{samples} samples");
    // Losses are averaged over a tenth of the steps, at least one: here steps 3 and 11 of a training.
    let sets = ["train.epochs=3", "train.log_every_steps=1"];
    train(&place, &job, "run", &sets).with(SUCCESS);
    let log = json_lines(&place.path("run/metrics.jsonl"));
    for (key, step) in [("loss_at_begin", 3), ("loss_at_end", 11)] {
        let line = &log[step - 1];
        assert_eq!((&line["step"], &line["loss"]), (&step.into(), &bench[key]), "{key}");
    }
    let read = &bench["input"]["read"];
    assert_eq!(read["samples"], 1000);
    assert!((0.0..=1.0).contains(&read["reader_wait_share"].as_f64().unwrap()), "{bench}");
    assert!(bench["on_device"].is_null() && bench["memory"].is_null() && bench["trace"].is_null(), "{bench}");
    assert_eq!(bench["phases"].as_array().map(Vec::len), Some(0));

    let text = run(["bench", "train", &job, "--warm-up", "0", "--steps", "2"]).with(SUCCESS).stdout;
    for words in ["1000 samples read with ", "ms/step ", ", 2 steps\n", "loss "] {
        assert!(text.contains(words), "{words}\n{text}");
    }
}

#[test]
fn resident_batches_are_repeated() {
    let place = Place::new();
    let job = job(&place);
    let args = ["bench", "train", &job, "--resident", "--warm-up", "1", "--steps", "5", "--json"];
    let bench = run(args).with(SUCCESS).json();
    assert_eq!((&bench["input"]["resident"]["batches"], &bench["steps"]), (&3.into(), &5.into()));
    assert!(bench["loss_at_begin"].is_null(), "{bench}");

    let too_large = run(["bench", "train", &job, "--set", "train.batch_size=2000"]).with(USAGE);
    too_large.says(&["the training part has 1000 samples, less than one batch of 2000"]);
    let traced = run(["bench", "train", &job, "--trace", "trace.json"]).with(USAGE);
    traced.says(&["traces need a GPU"]);
}

#[test]
fn evaluations_are_timed() {
    let place = Place::new();
    let job = job(&place);
    run(["bench", "eval", &job]).with(USAGE).says(&["no evaluation part", "eval_samples"]);
    let other = ["--set", "data.generate.eval_samples=500", "--set", "eval.batch_size=64"];
    let elsewhere = format!("data.dir=\"{}\"", place.path("evaluated").display());
    let bench =
        run(["bench", "eval", &job, "--set", &elsewhere, "--passes", "3", "--json"].into_iter().chain(other))
            .with(SUCCESS)
            .json();
    assert_eq!((&bench["samples"], &bench["batch_size"]), (&500.into(), &64.into()));
    let seconds: Vec<_> = bench["seconds"].as_array().unwrap().iter().map(|s| s.as_f64().unwrap()).collect();
    let (first, median) =
        (bench["first_seconds"].as_f64().unwrap(), bench["seconds_median"].as_f64().unwrap());
    let is_between = |one: f64, other: f64| one.min(other) <= median && median <= one.max(other);
    let is_median = seconds.contains(&median)
        && [(0, 1), (1, 2), (0, 2)].iter().any(|&(one, other)| {
            let rest = seconds[3 - one - other];
            rest == median && is_between(seconds[one], seconds[other])
        });
    assert!(seconds.len() == 3 && is_median && first > 0.0, "{bench}");
    let rate = bench["samples_per_second"].as_f64().unwrap();
    assert!((rate * median - 500.0).abs() < 1e-6, "{bench}");
    assert_eq!(bench["metrics"]["samples"], 500);
    run(["bench", "train", &job, "--without", "routes"]).with(USAGE).says(&["drop --without"]);
    run(["bench", "train", &job, "--without", "everything"])
        .with(USAGE)
        .says(&["expected one of input, look-ups"]);
}

/// A job whose model learns the labels of 6000 generated samples.
fn learning(place: &Place) -> String {
    let data = generate(place, SHAPE, 6000, 1000);
    let job = small_job(place);
    assert!(job.ends_with("job.toml") && data.ends_with("data"));
    job
}

#[test]
fn the_time_to_an_auc_is_measured_up_to_the_evaluation_that_reaches_it() {
    let place = Place::new();
    let job = learning(&place);
    let measure = |name: &str, more: &[&str]| {
        let dir = place.word(name);
        let own = ["bench", "time-to-auc", &job, "--run-dir", &dir, "--set", "device.kind=cpu"];
        run([&own[..], more].concat())
    };
    let beside = ["--set", "eval.beside_training=false", "--set", "train.epochs=4"];
    let bench = measure("run", &[&beside[..], &["--target-auc", "0.7", "--json"]].concat());
    let bench = bench.with(SUCCESS).json();
    let number = |key: &str| bench[key].as_f64().unwrap_or_else(|| panic!("{key} of {bench}"));
    let target = number("target_auc");
    assert_eq!(target, 0.7);
    assert_eq!(bench["reached"], true, "{bench}");

    // An epoch has 47 steps, and a twentieth of them is 2.35: evaluations follow steps 3, 5, 8, 10, 12.
    let evaluations = bench["evaluations"].as_array().unwrap();
    let of = |key: &str| evaluations.iter().map(|of| of[key].as_f64().unwrap()).collect::<Vec<_>>();
    assert_eq!(of("step")[..5], [3.0, 5.0, 8.0, 10.0, 12.0]);
    let (aucs, seconds) = (of("auc"), of("seconds"));
    assert!(aucs.iter().rev().skip(1).all(|auc| *auc < target) && aucs.last() >= Some(&target), "{aucs:?}");
    assert!(seconds[0] > 0.0 && seconds.is_sorted(), "{seconds:?}");
    assert_eq!(
        (number("seconds"), number("steps")),
        (seconds[seconds.len() - 1], of("step")[aucs.len() - 1])
    );
    let eval_seconds: f64 = of("eval_seconds").iter().sum();
    assert!((number("eval_seconds") - eval_seconds).abs() < 1e-9 && eval_seconds < number("seconds"));
    let first = number("first_step_seconds");
    assert!(first > 0.0 && first < seconds[0], "{bench}");
    // 46 steps of 128 samples, and one of 112.
    let steps = number("steps") as u64;
    let samples = steps / 47 * 6000 + steps % 47 * 128;
    assert_eq!((number("samples"), number("epochs")), (samples as f64, samples as f64 / 6000.0));
    assert!(bench["joules"].is_null() && bench["watts"].is_null(), "there is no GPU");
    let summary = json_file(&place.path("run/summary.json"));
    assert_eq!(
        (&summary["train"]["stopped"], &summary["train"]["steps"]),
        (&"target_auc".into(), &steps.into())
    );

    // While metrics are computed beside the steps, training goes on, but the AUC belongs to the same step.
    let more = ["--target-auc", "0.7", "--set", "train.epochs=4", "--json"];
    let more =
        [&more[..], &["--set", "eval.every=0.05", "--set", "train.early_stopping={ patience = 1 }"]].concat();
    let other = measure("beside", &more).with(SUCCESS).json();
    assert_eq!((&other["steps"], &other["samples"]), (&bench["steps"], &bench["samples"]));
    assert_eq!(other["evaluations"].as_array().unwrap().len(), evaluations.len());
    let auc = |bench: &serde_json::Value| bench["evaluations"][evaluations.len() - 1]["auc"].clone();
    assert_eq!(auc(&other), auc(&bench));
}

#[test]
fn a_target_that_is_not_reached_is_reported_and_one_that_is_missing_refused() {
    let place = Place::new();
    let job = learning(&place);
    let own = ["bench", "time-to-auc", &job, "--set", "device.kind=cpu"];
    let more = ["--set", "train.max_steps=10", "--set", "eval.every_steps=4"];
    let dirs = ["missed", "own", "default"].map(|name| place.word(name));
    let missed = [&more[..], &["--target-auc", "0.99", "--run-dir", &dirs[0]]].concat();
    let text = run([&own[..], &missed].concat()).with(SUCCESS).stdout;
    for words in ["target AUC          0.99000; the best possible AUC is 0.", "the target was not reached\n"]
    {
        assert!(text.contains(words), "{words}\n{text}");
    }
    // After steps 4 and 8, and of the model that is saved.
    let lines: Vec<_> = text.lines().skip_while(|line| !line.contains("epochs")).skip(1).take(3).collect();
    let steps = lines.iter().map(|line| line.split_whitespace().next().unwrap());
    assert_eq!(steps.collect::<Vec<_>>(), ["4", "8", "10"], "{text}");
    assert!(text.contains("steps               10 of 128 samples: 1280, 0.213 epochs\n"), "{text}");
    // By default it is nine tenths of the way from 0.5 to the best possible AUC, which the dataset has.
    let best = json_file(&place.path("data/dataset.json"));
    let best = best["content"]["origin"]["generated"]["auc_achievable"].as_f64().unwrap();
    let bench = run([&own[..], &more, &["--run-dir", &dirs[2], "--json"]].concat()).with(SUCCESS).json();
    assert_eq!((&bench["reached"], bench["auc_achievable"].as_f64()), (&false.into(), Some(best)));
    let target = bench["target_auc"].as_f64().unwrap();
    assert!((target - (0.5 + 0.9 * (best - 0.5))).abs() < 1e-12, "{bench}");
    // The target of the job counts before that.
    let set = [&more[..], &["--set", "eval.target_auc=0.501", "--run-dir", &dirs[1], "--json"]].concat();
    let bench = run([&own[..], &set].concat()).with(SUCCESS).json();
    assert_eq!(bench["target_auc"].as_f64(), Some(0.501));

    let other = Place::new();
    let job = self::job(&other);
    let refused = |more: &[&str], words: &str| {
        run([&["bench", "time-to-auc", &job][..], more].concat()).with(USAGE).says(&[words]);
    };
    refused(&[], "no AUC to reach: give --target-auc");
    refused(&["--target-auc", "0.6"], "no evaluation part");
}
