//! The command from outside: what it prints where, and how it ends.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::Stdio;

use support::process::Running;
use support::{
    Ended, FAILED, Place, SHAPE, SUCCESS, USAGE, generate, gpus as gpus_here, job, rankine, run, train, word,
};

mod support;

const SOUND_JOB: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/configs/quickstart.toml");

#[test]
fn a_sound_job_is_told_on_stdout() {
    let ended = run(["check", SOUND_JOB]).with(SUCCESS);
    assert_eq!(ended.stderr, "");
    assert!(ended.stdout.contains("is sound: job `quickstart`\n"), "{}", ended.stdout);
}

/// A job is sound or not wherever it is checked; whether it can be trained here is said beside that.
#[test]
fn a_sound_job_that_cannot_be_trained_here_is_still_sound() {
    let place = Place::new();
    let job = job(&place);
    let check = |args: &[&str]| run([&["check", &job], args].concat());
    // Without the dataset.
    let told = check(&[]).with(SUCCESS).stdout;
    assert!(told.contains("here      it cannot be trained: no dataset at "), "{told}");
    check(&["--here"]).with(USAGE).says(&["no dataset at "]);
    generate(&place, SHAPE, 2000, 100);
    let told = check(&["--here", "--set", "device.kind=cpu"]).with(SUCCESS).stdout;
    assert!(told.contains("here      the CPU would train it\n"), "{told}");
    assert!(told.contains("here      the dataset is read by ") && !told.contains("cannot"), "{told}");

    // More GPUs than any machine has, in builds with and without them.
    let gpus = ["--set", "device.kind=cuda", "--set", "device.ranks=8", "--set", "device.nodes=1"];
    let few = gpus_here() < 8;
    let told = check(&gpus).with(SUCCESS).stdout;
    assert_eq!(told.contains("here      it cannot be trained: device.kind is \"cuda\", but "), few, "{told}");
    if few {
        let ended = check(&[&["--here"], &gpus[..]].concat()).with(USAGE);
        ended.says(&["device.kind is \"cuda\", but "]);
        // The same code and words as training's.
        let trained = train(&place, &job, "run", &["device.kind=cuda", "device.ranks=8"]).with(USAGE);
        trained.says(&["device.kind is \"cuda\", but "]);
    }
    // More memory than any machine has: sound, and not here.
    let shape = place.file("huge.toml", SHAPE.replace("40, 30", "4_000_000_000, 4_000_000_000"));
    let made = format!("data.generate={{ shape = {shape:?}, samples = 1000 }}");
    let wide = ["--set", "model.embedding_dim=512", "--set", "model.bottom_mlp=[16, 512]"];
    let data = ["--set", "data.dir=nowhere", "--set", &made, "--set", "device.kind=cpu"];
    let huge = [&wide[..], &data].concat();
    let told = check(&huge).with(SUCCESS).stdout;
    assert!(
        told.contains("here      it cannot be trained: the tables and their optimizer state take "),
        "{told}"
    );
    check(&[&["--here"], &huge[..]].concat()).with(USAGE).says(&["GiB of memory are free"]);
    // A file system's or a kernel's refusal, where there is one.
    let report = run(["doctor", "--dir", &place.word("data"), "--json"]).with(SUCCESS).json();
    for mode in report["reading"]["modes"].as_array().unwrap() {
        let (name, works) = (mode["name"].as_str().unwrap(), mode["refused"].is_null());
        let set = format!("reader.mode={name}");
        let told = check(&["--set", &set]).with(SUCCESS).stdout;
        let words =
            if works { format!("the dataset is read by {name}\n") } else { format!("{name} is refused") };
        assert!(told.contains(&words), "{name}: {told}");
        check(&["--here", "--set", &set]).with(if works { SUCCESS } else { USAGE });
    }
    // What is not sound fails in any case.
    check(&["--set", "train.epocs=3"]).with(USAGE).says(&["unknown key"]);
    assert!(!place.path("run").exists());
}

#[test]
fn raw_files_of_which_one_is_missing_leave_a_job_sound() {
    let place = Place::new();
    let shape = place.file("shape.toml", SHAPE);
    let there = place.file("train.bin", [0; 44 * 10]);
    let job = job(&place);
    let text = fs::read_to_string(&job).unwrap();
    let raw = format!("data.raw = {{ shape = {shape:?}, train = [{there:?}], eval = [\"no/such.bin\"] }}\n#");
    let job = place.file("raw.toml", text.replace("data.dir", &raw));
    let told = run(["check", &job]).with(SUCCESS).stdout;
    assert!(
        told.contains("is sound") && told.contains("here      it cannot be trained: cannot open"),
        "{told}"
    );
    run(["check", &job, "--here"]).with(FAILED).says(&["no/such.bin"]);
}

#[test]
fn an_unsound_job_ends_with_2_and_a_caret() {
    let ended = run(["check", SOUND_JOB, "--set", "train.epocs=3"]).with(USAGE);
    assert_eq!(ended.stdout, "");
    assert!(ended.stderr.starts_with("error: --set train.epocs=3: unknown key `epocs` in [train]\n"));
    ended.says(&["\n  |       ^^^^^\n", "did you mean `epochs`?"]);
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
fn a_job_that_is_not_there_is_named() {
    let stderr = run(["check", "no/such.toml"]).with(USAGE).stderr;
    assert!(stderr.starts_with("error: cannot read the job file no/such.toml: No such file"), "{stderr}");
    assert!(!stderr.contains("caused by"), "the cause is told twice: {stderr}");
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
        (
            vec!["plan", SOUND_JOB, "--machine", &pipe],
            "cannot read the machine's file: ",
            "job.toml is a pipe",
        ),
    ];
    for (args, words, what) in refused {
        let mut command = rankine();
        let mut running = Running::start(command.args(&args).stdout(Stdio::null()).stderr(Stdio::piped()));
        assert_eq!(running.end(), USAGE, "{args:?}");
        let mut told = String::new();
        running.0.stderr.take().unwrap().read_to_string(&mut told).unwrap();
        assert!(told.contains(words) && told.contains(what), "{args:?}: {told}");
    }
}

/// Nothing is allocated for what is not there: the system would end the process, without a word.
#[test]
fn numbers_beyond_all_memory_are_errors() {
    let place = Place::new();
    generate(&place, SHAPE, 200, 0);
    let job = job(&place);
    let layers = format!("model.top_mlp=[{}]", ["65536"; 64].join(", "));
    let narrower = "Narrower layers in model.bottom_mlp and model.top_mlp";
    run(["check", &job, "--set", &layers])
        .with(SUCCESS)
        .stdout_says("cannot be trained: the dense layers take ");
    run(["check", &job, "--set", &layers, "--here"]).with(USAGE).says(&["the dense layers take ", narrower]);
    train(&place, &job, "run", &[&layers, "device.kind=cpu"]).with(USAGE).says(&[narrower]);
    let on_two_ranks = train(&place, &job, "run", &[&layers, "device.kind=cpu", "device.ranks=2"]);
    on_two_ranks.with(USAGE).says(&["the model does not fit: a rank of 2 would need "]);
    let launch = ["--rank", "0", "--ranks", "4000000000", "--meet", "127.0.0.1:1"];
    let many = "--ranks is `4000000000`: there can be 4096 processes at most";
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
    assert!(stdout.contains("Exit codes:\n  0   success\n"), "{stdout}");
}

#[test]
fn doctor_reports_as_text_and_as_json() {
    let text = run(["doctor"]).with(SUCCESS).stdout;
    assert!(text.contains("\ntraining  cpu, "), "{text}");
    assert_eq!(run(["doctor", "--json"]).with(SUCCESS).json()["version"], env!("CARGO_PKG_VERSION"));
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
