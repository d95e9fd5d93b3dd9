//! `rankine bench train` and `rankine bench eval` on a CPU.

use crate::support::{Place, SUCCESS, USAGE, json_lines, run, train};

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
