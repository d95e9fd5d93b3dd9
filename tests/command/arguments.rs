//! The command line: what it prints on stdout and stderr, exit codes, and options that all commands share.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::Stdio;

use crate::support::process::Running;
use crate::support::{
    self, BAD_DATA, Ended, FAILED, Place, SHAPE, SUCCESS, USAGE, criteo_rows, generate, gpus as gpus_here,
    job, rankine, run, train, word,
};

const SOUND_JOB: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/configs/quickstart.toml");

#[test]
fn check_reports_a_valid_job_on_stdout() {
    let ended = run(["check", SOUND_JOB]).with(SUCCESS);
    assert_eq!(ended.stderr, "");
    assert!(ended.stdout.contains("is valid: job `quickstart`\n"), "{}", ended.stdout);
}

/// Whether a job is valid does not depend on the machine; whether this machine can train it is reported separately.
#[test]
fn a_valid_job_that_cannot_be_trained_here_is_still_valid() {
    let place = Place::new();
    let job = job(&place);
    let check = |args: &[&str]| run([&["check", &job], args].concat());
    // Without the dataset.
    let output = check(&[]).with(SUCCESS).stdout;
    assert!(output.contains("here      the job cannot be trained: no dataset at "), "{output}");
    check(&["--here"]).with(USAGE).says(&["no dataset at "]);
    generate(&place, SHAPE, 2000, 100);
    let output = check(&["--here", "--set", "device.kind=cpu"]).with(SUCCESS).stdout;
    assert!(output.contains("here      the job would be trained on the CPU\n"), "{output}");
    assert!(output.contains("here      the dataset is read with ") && !output.contains("cannot"), "{output}");

    // More GPUs than any machine has, in builds with and without them.
    let gpus = ["--set", "device.kind=cuda", "--set", "device.ranks=8", "--set", "device.nodes=1"];
    let few = gpus_here() < 8;
    let output = check(&gpus).with(SUCCESS).stdout;
    assert_eq!(
        output.contains("here      the job cannot be trained: device.kind is \"cuda\", but "),
        few,
        "{output}"
    );
    if few {
        let ended = check(&[&["--here"], &gpus[..]].concat()).with(USAGE);
        ended.says(&["device.kind is \"cuda\", but "]);
        // The same code and message as for training.
        let trained = train(&place, &job, "run", &["device.kind=cuda", "device.ranks=8"]).with(USAGE);
        trained.says(&["device.kind is \"cuda\", but "]);
    }
    // More memory than any machine has: valid, but not here.
    let shape = place.file("huge.toml", SHAPE.replace("40, 30", "4_000_000_000, 4_000_000_000"));
    let made = format!("data.generate={{ shape = {shape:?}, samples = 1000 }}");
    let wide = ["--set", "model.embedding_dim=512", "--set", "model.bottom_mlp=[16, 512]"];
    let data = ["--set", "data.dir=nowhere", "--set", &made, "--set", "device.kind=cpu"];
    let huge = [&wide[..], &data].concat();
    let output = check(&huge).with(SUCCESS).stdout;
    assert!(
        output.contains("here      the job cannot be trained: the tables and their optimizer state take "),
        "{output}"
    );
    check(&[&["--here"], &huge[..]].concat()).with(USAGE).says(&["GiB of memory are free"]);
    // A mode that the file system or the kernel does not support, if any.
    let report = run(["doctor", "--dir", &place.word("data"), "--json"]).with(SUCCESS).json();
    for mode in report["reading"]["modes"].as_array().unwrap() {
        let (name, works) = (mode["name"].as_str().unwrap(), mode["refused"].is_null());
        let set = format!("reader.mode={name}");
        let output = check(&["--set", &set]).with(SUCCESS).stdout;
        let words =
            if works { format!("the dataset is read with {name}\n") } else { format!("{name} is refused") };
        assert!(output.contains(&words), "{name}: {output}");
        check(&["--here", "--set", &set]).with(if works { SUCCESS } else { USAGE });
    }
    // An invalid job always fails.
    check(&["--set", "train.epocs=3"]).with(USAGE).says(&["unknown key"]);
    assert!(!place.path("run").exists());
}

#[test]
fn a_job_with_a_missing_raw_file_is_valid() {
    let place = Place::new();
    let shape = place.file("shape.toml", SHAPE);
    let there = place.file("train.bin", [0; 44 * 10]);
    let job = job(&place);
    let text = fs::read_to_string(&job).unwrap();
    let raw = format!("data.raw = {{ shape = {shape:?}, train = [{there:?}], eval = [\"no/such.bin\"] }}\n#");
    let job = place.file("raw.toml", text.replace("data.dir", &raw));
    let output = run(["check", &job]).with(SUCCESS).stdout;
    assert!(
        output.contains("is valid") && output.contains("here      the job cannot be trained: cannot open"),
        "{output}"
    );
    run(["check", &job, "--here"]).with(FAILED).says(&["no/such.bin"]);
}

#[test]
fn an_invalid_job_ends_with_2_and_a_caret() {
    let ended = run(["check", SOUND_JOB, "--set", "train.epocs=3"]).with(USAGE);
    assert_eq!(ended.stdout, "");
    assert!(ended.stderr.starts_with("error: --set train.epocs=3: unknown key `epocs` in [train]\n"));
    ended.says(&["\n  |       ^^^^^\n", "did you mean `epochs`?"]);
}

#[test]
fn keys_are_removed_before_others_are_set() {
    let place = Place::new();
    let more = "[[eval.set]]\nname = 'first'\ndata = 'a'\n[[eval.set]]\nname = 'second'\ndata = 'b'\n\
                [train.early_stopping]\npatience = 2\n";
    let job = place.file("job.toml", fs::read_to_string(SOUND_JOB).unwrap() + more);
    let check = |more: &[&str]| run([&["check", &job, "--effective"], more].concat());
    let whole = ["--unset", "train.early_stopping", "--unset", "eval.set"];
    let output = check(&whole).with(SUCCESS).stdout;
    assert!(
        !output.contains("first") && !output.contains("second") && !output.contains("patience"),
        "{output}"
    );
    // An element of a list, and a key that is set again.
    let one = ["--unset", "eval.set.0", "--unset", "train.early_stopping", "--set", "train.epochs=7"];
    let output =
        check(&[&one[..], &["--unset", "train.batch_size", "--set", "train.batch_size=77"]].concat());
    let output = output.with(SUCCESS).stdout;
    assert!(!output.contains("first") && output.contains("second"), "{output}");
    assert!(output.contains("batch_size = 77\n") && output.contains("epochs = 7\n"), "{output}");
    check(&["--unset", "train.batch_size"]).with(USAGE).says(&["missing key `batch_size`"]);
    for key in ["train.epocs", "eval.set.2", "eval.set.first", "name.x"] {
        check(&["--unset", key])
            .with(USAGE)
            .says(&[&format!("--unset {key}: there is no such key to remove")]);
    }
}

#[test]
fn the_effective_job_is_a_job() {
    let effective = run(["check", SOUND_JOB, "--set", "seed=5", "--effective"]).with(SUCCESS).stdout;
    let place = Place::new();
    let path = place.file("effective.toml", &effective);
    assert_eq!(run(["check", &path, "--effective"]).with(SUCCESS).stdout, effective);
    assert!(effective.contains("\nseed = 5\n"), "{effective}");
}

#[test]
fn a_missing_job_file_is_named() {
    let stderr = run(["check", "no/such.toml"]).with(USAGE).stderr;
    assert!(stderr.starts_with("error: cannot read the job file no/such.toml: No such file"), "{stderr}");
    assert!(!stderr.contains("caused by"), "the cause is printed twice: {stderr}");
}

#[test]
fn pipes_and_devices_as_job_files_are_refused_at_once() {
    let place = Place::new();
    let pipe = place.path("job.toml");
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RWXU).unwrap();
    let (pipe, link) = (word(&pipe), place.path("link.toml"));
    std::os::unix::fs::symlink("/dev/zero", &link).unwrap();
    let refused = [
        (vec!["check", &pipe], "cannot read the job file: ", "job.toml is a pipe"),
        (vec!["train", "/dev/zero"], "cannot read the job file: ", "/dev/zero is a device"),
        (vec!["check", link.to_str().unwrap()], "cannot read the job file: ", "link.toml is a device"),
        (vec!["check", "/"], "cannot read the job file: ", "/ is a folder"),
        (vec!["plan", SOUND_JOB, "--machine", &pipe], "cannot read the machine file: ", "job.toml is a pipe"),
    ];
    for (args, words, what) in refused {
        let mut command = rankine();
        let mut running = Running::start(command.args(&args).stdout(Stdio::null()).stderr(Stdio::piped()));
        assert_eq!(running.end(), USAGE, "{args:?}");
        let mut output = String::new();
        running.0.stderr.take().unwrap().read_to_string(&mut output).unwrap();
        assert!(output.contains(words) && output.contains(what), "{args:?}: {output}");
    }
}

/// Nothing is allocated before the size is checked: the system would kill the process without a message.
#[test]
fn numbers_beyond_all_memory_are_errors() {
    let place = Place::new();
    generate(&place, SHAPE, 200, 0);
    let job = job(&place);
    let layers = format!("model.top_mlp=[{}]", ["65536"; 64].join(", "));
    let narrower = "use narrower layers in model.bottom_mlp and model.top_mlp";
    run(["check", &job, "--set", &layers])
        .with(SUCCESS)
        .stdout_says("cannot be trained: the dense layers take ");
    run(["check", &job, "--set", &layers, "--here"]).with(USAGE).says(&["the dense layers take ", narrower]);
    train(&place, &job, "run", &[&layers, "device.kind=cpu"]).with(USAGE).says(&[narrower]);
    let on_two_ranks = train(&place, &job, "run", &[&layers, "device.kind=cpu", "device.ranks=2"]);
    on_two_ranks.with(USAGE).says(&["the model does not fit: with 2 ranks, a rank needs up to "]);
    let launch = ["--process", "0", "--processes", "4000000000", "--meet", "127.0.0.1:1"];
    let many = "--processes is `4000000000`: there can be 4096 processes at most";
    run([&["train", &job], &launch[..]].concat()).with(USAGE).says(&[many]);
    run([&["doctor", "--cluster"], &launch[..]].concat()).with(USAGE).says(&[many]);
    let mut launched = rankine();
    launched.args(["train", &job]).envs([
        ("RANK", "0"),
        ("WORLD_SIZE", "99999999999"),
        ("MASTER_ADDR", "127.0.0.1"),
    ]);
    Ended::of(launched)
        .with(USAGE)
        .says(&["WORLD_SIZE is `99999999999`: there can be 4096 processes at most"]);
    run(["ckpt", "reshard", &job, "--ranks", "4000000000", "--out", &place.word("out")])
        .with(USAGE)
        .says(&["'4000000000' for '--ranks <N>'", "from 1 to 4096"]);
    assert!(!place.path("run").exists() && !place.path("out").exists());
}

#[test]
fn bad_usage_ends_with_2() {
    run(["chekc"]).with(USAGE);
    run([""; 0]).with(USAGE);
    let output = rankine().args(["check", SOUND_JOB]).env("RANKINE_LOG", "loud").output().unwrap();
    assert_eq!(output.status.code(), Some(USAGE));
}

#[test]
fn help_lists_the_exit_codes() {
    let stdout = run(["--help"]).with(SUCCESS).stdout;
    assert!(stdout.contains("Exit codes:\n  0              success\n"), "{stdout}");
}

#[test]
fn quiet_and_verbose_choose_the_messages() {
    let place = Place::new();
    generate(&place, SHAPE, 500, 100);
    let job = job(&place);
    let train = |name: &str, flags: &[&str]| {
        let run_dir = place.word(name);
        run([&["train", &job, "--run-dir", &run_dir, "--set", "device.kind=cpu"], flags].concat())
            .with(SUCCESS)
    };
    train("usual", &[]).says(&["training on the CPU"]);
    assert_eq!(train("short", &["-q"]).stderr, "");
    assert_eq!(train("long", &["--quiet"]).stderr, "");
    assert!(!train("again", &[]).stderr.contains("DEBUG"));
    train("verbose", &["-v"]).says(&["training on the CPU", "DEBUG reading "]);
    train("longer", &["--verbose"]).says(&["DEBUG reading "]);
    run(["train", &job, "-q", "-v"]).with(USAGE).says(&["'--quiet' cannot be used with '--verbose'"]);

    // Options of all commands may precede the command.
    let (run_dir, data, out) = (place.word("usual"), place.word("data"), place.word("out.csv"));
    let predict = ["predict", "--run", &run_dir, "--data", &data, "--out", &out];
    run(predict).with(SUCCESS).says(&["predicted 100 rows"]);
    assert_eq!(run([&["-q"], &predict[..]].concat()).with(SUCCESS).stderr, "");
    // The environment variable wins.
    let mut command = rankine();
    command.args(["-q"]).args(predict).env("RANKINE_LOG", "debug");
    Ended::of(command).with(SUCCESS).says(&["DEBUG reading "]);
}

#[test]
fn colors_can_be_chosen() {
    const ESCAPE: char = '\u{1b}';
    // It logs which process this is.
    let colored = |arguments: &[&str], no_color: &str| {
        let mut command = rankine();
        command.args(["doctor", "--cluster"]).args(arguments).env("NO_COLOR", no_color);
        let ended = Ended::of(command).with(SUCCESS);
        assert!(ended.stderr.contains("INFO"), "{}", ended.stderr);
        ended.stderr.contains(ESCAPE)
    };
    assert!(colored(&["--color", "always"], ""));
    assert!(colored(&["--color", "always"], "1"));
    assert!(!colored(&["--color", "never"], "") && !colored(&["--color", "auto"], "") && !colored(&[], ""));
    let help = |color: &str| run(["train", "--help", "--color", color]).with(SUCCESS).stdout.contains(ESCAPE);
    assert!(help("always") && !help("never") && !help("auto"));
    let error = run(["--color=always", "trian"]).with(USAGE).stderr;
    assert!(error.contains(ESCAPE), "{error}");
    run(["check", SOUND_JOB, "--color", "red"]).with(USAGE).says(&["auto, always, never"]);
}

#[test]
fn results_are_printed_as_json() {
    let place = Place::new();
    let shape = place.file("shape.toml", SHAPE);
    let (data, job) = (place.word("data"), job(&place));
    let json = |args: &[&str]| run([args, &["--json"]].concat()).with(SUCCESS).json();
    let generated =
        json(&["generate", "--shape", &shape, "--samples", "500", "--eval-samples", "100", "--out", &data]);
    assert_eq!((&generated["dataset"], &generated["samples"]), (&data.clone().into(), &500.into()));
    assert!(generated["auc_achievable"].as_f64().unwrap() > 0.5);

    let starter = place.word("starter.toml");
    assert_eq!(json(&["init", "--data", &data, "--out", &starter])["job"], starter);
    let checked = json(&["check", &job, "--set", "device.kind=cpu"]);
    assert_eq!((&checked["job"], &checked["dataset_exists"]), (&"small".into(), &true.into()));
    assert_eq!((&checked["model"]["tables"], &checked["model"]["rows"]), (&6.into(), &113.into()));
    assert_eq!(
        (&checked["here"]["device"], &checked["here"]["obstacles"]),
        (&"the CPU".into(), &serde_json::json!([]))
    );
    let absent = json(&["check", &job, "--set", "data.dir=nowhere"]);
    assert_eq!((&absent["dataset_exists"], &absent["model"]), (&false.into(), &serde_json::Value::Null));

    let run_dir = place.word("run");
    let trained =
        json(&["train", &job, "--run-dir", &run_dir, "--set", "checkpoint.every_steps=2", "--threads", "1"]);
    assert_eq!((&trained["run"], &trained["train"]["steps"]), (&run_dir.clone().into(), &4.into()));
    let effective = fs::read_to_string(place.path("run/job.toml")).unwrap();
    assert!(effective.contains("\nthreads = 1\n"), "{effective}");
    assert!(json(&["eval", "--run", &run_dir, "--threads", "2"])["auc"].is_f64());
    assert!(json(&["inspect", &data, "--verify", "--threads", "1"])["verify"].is_object());
    run(["inspect", &data, "--threads", "1"]).with(USAGE).says(&["--verify"]);

    let verified = json(&["ckpt", "verify", &run_dir]);
    assert_eq!(
        (verified["intact"].as_array().unwrap().len(), &verified["damaged"]),
        (2, &serde_json::json!([]))
    );
    let (export, resharded) = (place.word("export"), place.word("resharded"));
    assert_eq!(json(&["ckpt", "export", &run_dir, "--out", &export])["step"], 4);
    let verified = json(&["ckpt", "verify", &export]);
    assert_eq!(verified["intact"][0]["path"], export);
    assert_eq!(json(&["ckpt", "reshard", &run_dir, "--ranks", "2", "--out", &resharded])["shards"], 2);
    let shard = place.path("run/checkpoints/step-4/shard-00000.safetensors");
    let mut bytes = fs::read(&shard).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&shard, bytes).unwrap();
    let ended = run(["ckpt", "verify", &run_dir, "--json"]).with(BAD_DATA).says(&["is damaged"]);
    assert_eq!(ended.json()["damaged"].as_array().unwrap().len(), 1);

    let log = place.file("log.tsv", criteo_rows(50, 1).join("\n"));
    let converted = json(&["convert", "criteo-tsv", &log, "--out", &place.word("criteo"), "--threads", "1"]);
    assert_eq!(
        (&converted["dataset"], &converted["rows"]["kept"]),
        (&place.word("criteo").into(), &50.into())
    );
}

#[test]
fn doctor_reports_as_text_and_as_json() {
    let text = run(["doctor"]).with(SUCCESS).stdout;
    assert!(text.contains("\ntraining  cpu, "), "{text}");
    assert_eq!(run(["doctor", "--json"]).with(SUCCESS).json()["version"], env!("CARGO_PKG_VERSION"));
}

#[test]
#[cfg(not(feature = "cuda"))]
fn a_build_without_cuda_measures_no_gpus() {
    let words = "this build has no CUDA support (the feature `cuda`), so it cannot measure GPUs";
    let ended = run(["doctor", "--bandwidth"]).with(USAGE);
    assert_eq!((ended.stdout, ended.stderr), (String::new(), format!("error: {words}\n")));
    let ended = run(["doctor", "--bandwidth", "--json"]).with(USAGE);
    assert_eq!(ended.stdout, "");
    let error: serde_json::Value = serde_json::from_str(&ended.stderr).unwrap();
    assert_eq!(error["message"], words);
}

#[test]
fn a_closed_stdout_is_no_failure() {
    let mut child = rankine().arg("doctor").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    assert_eq!(stderr, "");
    assert_eq!(child.wait().unwrap().code(), Some(SUCCESS));
}

#[test]
fn a_full_stdout_is_a_failure() {
    if !Path::new("/dev/full").exists() {
        return support::skipped("there is no /dev/full");
    }
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = rankine().args(["check", SOUND_JOB]).stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(FAILED));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.starts_with("error: cannot write to stdout: "), "{stderr}");
}
