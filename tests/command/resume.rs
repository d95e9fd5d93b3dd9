//! A resumed training continues as if it had never stopped, after kills, signals and failures; on the same ranks with
//! the same bits.

use std::fs;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::{
    self, BAD_DATA, Ended, FAILED, Place, RESUMABLE, SHAPE, SUCCESS, USAGE, flip_a_bit, generate, job,
    json_lines, rankine, run, summary, tree, weights,
};

/// Options of all runs: two epochs with a short last batch, reports and evaluations also between checkpoints, and
/// tables with rows that some batches do not look up.
const COMMON: [&str; 7] = [
    "train.epochs=2",
    "train.batch_size=70",
    "train.log_every_steps=7",
    "train.shuffle_window_blocks=2",
    "eval.every_steps=40",
    "checkpoint.every_steps=25",
    "device.threads=2",
];
const SAMPLES: u64 = 3001;

struct Runs {
    place: Place,
    job: String,
    sets: Vec<String>,
}

impl Runs {
    /// Generates a dataset, and trains the uninterrupted run `whole` on it.
    fn new(sets: &[&str]) -> Self {
        let place = Place::new();
        generate(&place, SHAPE, SAMPLES, 500);
        let job = job(&place);
        let sets = COMMON.iter().chain(sets).map(|&set| set.to_owned()).collect();
        let runs = Self { place, job, sets };
        runs.train("whole", &[]).with(SUCCESS);
        runs
    }

    fn command(&self, name: &str, more: &[&str]) -> Command {
        let mut command = rankine();
        command.args(["train", &self.job, "--quiet", "--run-dir", &self.place.word(name)]);
        command.args(self.sets.iter().flat_map(|set| ["--set", set]));
        command.args(more);
        command
    }

    fn train(&self, name: &str, more: &[&str]) -> Ended {
        Ended::of(self.command(name, more))
    }

    /// Trains a run that is killed at the given file operation of its checkpoints; returns whether it got that far.
    fn killed(&self, name: &str, operation: u64, more: &[&str]) -> bool {
        let mut command = self.command(name, more);
        command.env("RANKINE_TEST_FAULT", format!("{operation}:kill"));
        let output = command.output().expect("the command starts");
        assert!(output.status.code().is_none_or(|code| code == 0), "{output:?}");
        output.status.code().is_none()
    }

    /// Resumes a run to its end, and checks that the result equals that of the uninterrupted run.
    #[track_caller]
    fn resumes_to_the_same_end(&self, name: &str) {
        self.train(name, &["--resume"]).with(SUCCESS);
        assert!(weights(&self.place, name) == weights(&self.place, "whole"), "{name} has another model");
        assert_eq!(self.log(name), self.log("whole"), "{name} has another log");
        let results = |name: &str| {
            let summary = summary(&self.place, name);
            let eval = &summary["eval"];
            let [steps, samples, loss, stopped] =
                ["steps", "samples", "loss", "stopped"].map(|key| summary["train"][key].clone());
            [steps, samples, loss, stopped, eval["auc"].clone(), eval["log_loss"].clone()]
        };
        assert_eq!(results(name), results("whole"));
        let scores = |name: &str| fs::read(self.place.path(name).join("scores.json")).expect("it evaluated");
        assert!(scores(name) == scores("whole"), "{name} has other scores");
    }

    /// Returns the lines of a run's log, without times.
    fn log(&self, name: &str) -> Vec<Value> {
        let mut lines = json_lines(&self.place.path(name).join("metrics.jsonl"));
        for line in &mut lines {
            let line = line.as_object_mut().expect("a line is an object");
            line.remove("samples_per_second");
            line.remove("seconds");
            line.remove("phase_seconds");
            line.remove("time");
        }
        // A stop, or a checkpoint, waits for the metrics of an evaluation that are computed beside the steps.
        lines.sort_by_key(|line| line["step"].as_u64());
        lines
    }

    /// Returns the steps of a run's checkpoints.
    fn steps(&self, name: &str) -> Vec<u64> {
        let entries = fs::read_dir(self.place.path(name).join("checkpoints")).expect("it has checkpoints");
        let names = entries.map(|entry| entry.expect("the folder can be read").file_name());
        let step = |name: std::ffi::OsString| name.to_str()?.strip_prefix("step-")?.parse().ok();
        let mut steps: Vec<_> = names.filter_map(step).collect();
        steps.sort_unstable();
        steps
    }
}

/// A checkpoint has the metrics of its evaluation, but not the scores. Those of an earlier end do not stay.
#[test]
fn without_another_evaluation_a_resumed_run_has_no_scores() {
    let runs = Runs::new(&["eval.every_steps=25", "train.max_steps=50"]);
    let [summary, scores] = ["summary.json", "scores.json"].map(|name| runs.place.path("whole").join(name));
    assert!(scores.exists());
    fs::remove_file(&summary).unwrap();
    runs.train("whole", &["--resume"]).with(SUCCESS);
    assert!(support::json_file(&summary)["eval"]["auc"].is_f64());
    assert!(!scores.exists());
}

#[test]
fn a_killed_run_resumes_to_the_same_end() {
    for sets in [&[][..], &["checkpoint.incremental=true", "checkpoint.full_every=3"][..]] {
        let runs = Runs::new(sets);
        assert_eq!(runs.steps("whole"), [25, 50, 75]);
        // An uninterrupted run has about 65 operations; the long version kills at each.
        let every = if support::is_long() { 1 } else { 17 };
        let mut operation = 1;
        loop {
            let name = format!("killed-{operation}");
            if !runs.killed(&name, operation, &[]) {
                break;
            }
            // It is killed again while it resumes.
            runs.killed(&name, 5, &["--resume"]);
            runs.resumes_to_the_same_end(&name);
            operation += every;
        }
        assert!(operation > 60, "{operation} operations");
    }
}

#[test]
fn a_run_that_a_signal_stopped_can_be_resumed() {
    let runs = Runs::new(&[]);
    let end = |name: &str, signal: &str, times: usize| {
        let mut command =
            runs.command(name, &["--set", "checkpoint.every_steps=1000000", "--set", "train.epochs=400"]);
        let mut child = command.stderr(Stdio::piped()).spawn().expect("the command starts");
        let metrics = runs.place.path(name).join("metrics.jsonl");
        let began = Instant::now();
        // When steps are reported, signal handlers are installed.
        while fs::metadata(&metrics).map_or(true, |metrics| metrics.len() == 0) {
            assert!(began.elapsed() < Duration::from_secs(60), "no step was reported");
            thread::sleep(Duration::from_millis(5));
        }
        for _ in 0..times {
            let sent = Command::new("kill").args([signal, &child.id().to_string()]).status();
            assert!(sent.is_ok_and(|sent| sent.success()));
        }
        let code = child.wait().expect("it ends").code();
        let mut stderr = String::new();
        std::io::Read::read_to_string(&mut child.stderr.take().unwrap(), &mut stderr).unwrap();
        (code, stderr)
    };
    let signals = [("-TERM", "SIGTERM"), ("-USR1", "SIGUSR1"), ("-INT", "SIGINT")];
    for ((signal, name), round) in
        (0..support::times(1)).flat_map(|round| signals.map(|signal| (signal, round)))
    {
        let run = format!("{name}-{round}");
        let (code, stderr) = end(&run, signal, 1);
        assert_eq!(code, Some(RESUMABLE), "{stderr}");
        assert!(
            stderr.contains(&format!("stopped by {name} after step ")) && stderr.contains("--resume"),
            "{stderr}"
        );
        let steps = runs.steps(&run);
        assert_eq!(steps.len(), 1, "{steps:?}");
        assert!(stderr.contains(&format!("after step {};", steps[0])), "{stderr}: {steps:?}");
        // A run that is already past the last step of `whole` cannot be compared with it.
        if steps[0] < 86 {
            runs.resumes_to_the_same_end(&run);
        }
    }
}

#[test]
fn a_run_of_another_build_is_resumed_and_the_log_says_so() {
    let place = Place::new();
    generate(&place, SHAPE, SAMPLES, 500);
    let (job, run_dir) = (job(&place), place.word("run"));
    let train = |steps: u32| {
        let steps = format!("train.max_steps={steps}");
        let sets = ["--set", "checkpoint.every_steps=20", "--set", "train.epochs=9", "--set", &steps];
        run([&["train", &job, "--run-dir", &run_dir, "--resume"], &sets[..]].concat())
    };
    train(20).with(SUCCESS);
    const WORDS: &str = "another build of Rankine trained this run before";
    let again = train(40).with(SUCCESS);
    assert!(again.stderr.contains("resuming after step 20") && !again.stderr.contains(WORDS), "{again:?}");
    // The description that the first build leaves is changed to that of another one.
    let path = place.path("run/devices.json");
    let mut devices: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    for file in ["run/summary.json", "run/devices.json"] {
        let build = &support::json_file(&place.path(file))["build"];
        assert_eq!(build["version"], devices["version"], "{file}");
        let features = build["features"].as_array().unwrap();
        assert!(features.contains(&"test-hooks".into()), "{file}: {features:?}");
    }
    let trained = support::json_file(&place.path("run/trained.json"));
    assert_eq!(trained["content"]["build"], devices["build"]);
    devices["build"]["rustc"] = "0.1".into();
    fs::write(&path, devices.to_string()).unwrap();
    train(60).with(SUCCESS).says(&[WORDS, ", compiled by rustc 0.1: ", "resuming after step 40"]);
    // Earlier versions did not describe themselves.
    devices.as_object_mut().unwrap().remove("build");
    fs::write(&path, devices.to_string()).unwrap();
    let unknown = train(80).with(SUCCESS);
    assert!(!unknown.stderr.contains(WORDS), "{unknown:?}");
}

#[test]
fn resuming_a_finished_or_an_empty_run() {
    let runs = Runs::new(&[]);
    // Resuming a finished run changes nothing and prints its summary.
    let before = tree(&runs.place.path("whole"));
    let stdout = runs.train("whole", &["--resume"]).with(SUCCESS).stdout;
    assert!(stdout.contains("trained             6002 samples"), "{stdout}");
    assert!(tree(&runs.place.path("whole")) == before, "a finished run was changed");
    // Without a checkpoint, training starts; without --resume, a folder in use is refused.
    runs.train("fresh", &["--resume"]).with(SUCCESS);
    assert!(weights(&runs.place, "fresh") == weights(&runs.place, "whole"));
    runs.train("fresh", &[]).with(USAGE).says(&["is not empty", "--resume"]);
    run(["train", &runs.job, "--resume"]).with(USAGE).says(&["--run-dir"]);
    // A folder of something else is refused.
    fs::create_dir(runs.place.path("other")).unwrap();
    runs.place.file("other/notes.txt", "keep");
    runs.train("other", &["--resume"]).with(USAGE).says(&["is not a run folder"]);
}

/// Without memory for a copy of the state, training waits until each checkpoint is written.
#[test]
fn checkpoints_without_a_copy_in_memory_are_the_same() {
    for sets in [&[][..], &["checkpoint.incremental=true", "device.ranks=2", "embedding.placement=row-wise"]]
    {
        let runs = Runs::new(sets);
        let sets = runs.sets.iter().map(String::as_str).chain(["train.max_steps=60"]);
        let mut command = rankine();
        command.args(["train", &runs.job, "--run-dir", &runs.place.word("run")]);
        command.args(sets.flat_map(|set| ["--set", set])).env("RANKINE_TEST_COPY_BYTES", "0");
        Ended::of(command).with(SUCCESS).says(&[
            "step 25: no memory for a copy",
            "step 50: no memory for a copy",
            "step 50: checkpoint saved",
        ]);
        assert_eq!(runs.steps("run"), [25, 50]);
        run(["ckpt", "verify", &runs.place.word("run")]).with(SUCCESS);
        runs.resumes_to_the_same_end("run");
    }
}

#[test]
fn damaged_checkpoints_are_set_aside() {
    let runs = Runs::new(&[]);
    let damage = |name: &str, steps: &[u64]| {
        assert!(runs.killed(name, 55, &[]), "it was not killed while it saved the last checkpoint");
        for step in steps {
            flip_a_bit(&runs.place.path(&format!("{name}/checkpoints/step-{step}/shard-00000.safetensors")));
        }
    };
    damage("one", &[50]);
    let run_dir = runs.place.word("one");
    run(["ckpt", "verify", &run_dir]).with(BAD_DATA).says(&["step-50", "checksum of the piece"]);
    let output = runs.command("one", &["--resume", "--set", "train.max_steps=26"]).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("step-50 is unusable and was set aside"), "{stderr}");
    assert!(runs.place.path("one/checkpoints/step-50.damaged").is_dir());
    fs::remove_file(runs.place.path("one/summary.json")).unwrap();
    runs.resumes_to_the_same_end("one");
    // If no checkpoint is usable, training does not start from scratch.
    damage("all", &[25, 50]);
    runs.train("all", &["--resume"]).with(BAD_DATA).says(&["no checkpoint in", "--restart"]);
    assert_eq!(runs.steps("all"), [25, 50]);
}

/// Early stopping keeps the checkpoint of the best model. Without it, the run goes on and says what that costs.
#[test]
fn a_best_checkpoint_that_is_lost_is_told() {
    let sets = [
        "eval.every_steps=8",
        "checkpoint.every_steps=8",
        "checkpoint.keep=1",
        "train.epochs=40",
        "train.max_steps=120",
        "optimizer.dense.learning_rate=0.2",
        "optimizer.sparse.learning_rate=0.5",
    ];
    let stopping = ["--set", "train.early_stopping={ patience = 1000 }"];
    let runs = Runs::new(&sets);
    let last = weights(&runs.place, "whole");
    runs.train("run", &stopping).with(SUCCESS);
    let best = summary(&runs.place, "run")["best"]["step"].as_u64().expect("early stopping keeps the best");
    assert!(best < 120, "the model of the last step would not be noticed");
    let checkpoint = runs.place.path(&format!("run/checkpoints/step-{best}"));
    let kept = runs.place.path("kept");
    fs::rename(&checkpoint, &kept).unwrap();
    let shard = "shard-00000.safetensors";
    // Each is a copy of the checkpoint, with a damaged or missing shard, or nothing.
    let put_back = || {
        fs::create_dir(&checkpoint).unwrap();
        for entry in fs::read_dir(&kept).unwrap() {
            let entry = entry.unwrap();
            fs::copy(entry.path(), checkpoint.join(entry.file_name())).unwrap();
        }
    };
    let resume = || {
        fs::remove_file(runs.place.path("run/summary.json")).ok();
        runs.train("run", &[&stopping[..], &["--resume"]].concat())
    };
    let lost = format!("step {best} had the best auc, but there is no intact checkpoint of it");
    let told = |ended: Ended, words: &[&str]| {
        ended.with(SUCCESS).says(&[&lost, "evaluations before step 120 are not compared"]).says(words);
        assert_eq!(summary(&runs.place, "run")["best"]["step"], 120);
        assert!(weights(&runs.place, "run") == last);
    };
    told(resume(), &[]);
    put_back();
    fs::remove_file(checkpoint.join(shard)).unwrap();
    let way_out =
        ["Put the missing files back", "To go on without that checkpoint, move its folder elsewhere"];
    resume().with(FAILED).says(&[shard]).says(&way_out);
    fs::copy(kept.join(shard), checkpoint.join(shard)).unwrap();
    flip_a_bit(&checkpoint.join(shard));
    told(resume(), &[&format!("step-{best} is unusable and was set aside: ")]);
    assert!(checkpoint.with_extension("damaged").is_dir() && !checkpoint.exists());
    // Nothing is lost as long as it is there.
    put_back();
    resume().with(SUCCESS);
    assert_eq!(summary(&runs.place, "run")["best"]["step"], best);
}

#[test]
fn changes_that_prevent_resuming_are_named() {
    let runs = Runs::new(&[]);
    assert!(runs.killed("run", 60, &[]));
    let refused = |sets: &[&str], words: &[&str]| {
        let sets: Vec<_> = sets.iter().flat_map(|set| ["--set", set]).chain(["--resume"]).collect();
        runs.train("run", &sets).with(USAGE).says(words);
    };
    refused(&["seed=7"], &["does not match this job", "seed is 7 but was 1"]);
    refused(&["train.shuffle=false"], &["the order of samples", "train.shuffle was true"]);
    refused(&["model.top_mlp=[17]"], &["the model differs: top_mlp.0 is 17 but was 16"]);
    let momentum = "optimizer.sparse={ kind = 'momentum', learning_rate = 0.1 }";
    refused(&[momentum], &["the optimizer of embedding.C1 is \"momentum\" but was \"adagrad\""]);
    let other = runs.place.word("other-data");
    let shape = runs.place.word("shape.toml");
    run(["generate", "--shape", &shape, "--samples", "3001", "--seed", "5", "--out", &other]).with(SUCCESS);
    let data = format!("data.dir={other:?}");
    refused(&[&data], &["the training part has different samples", "Undo this change"]);
    // Options that do not affect training may change, and the result stays the same.
    runs.train("run", &["--resume", "--set", "train.log_every_steps=5", "--set", "device.threads=1"])
        .with(SUCCESS);
    assert!(weights(&runs.place, "run") == weights(&runs.place, "whole"));
    let job = fs::read_to_string(runs.place.path("run/job.toml")).unwrap();
    assert!(job.contains("log_every_steps = 5"), "{job}");
}

#[test]
fn a_checkpoint_that_cannot_be_saved_is_an_error() {
    let runs = Runs::new(&[]);
    let with_fault = |name: &str, fault: &str, more: &[&str]| {
        let mut command = runs.command(name, more);
        command.env("RANKINE_TEST_FAULT", fault);
        Ended::of(command)
    };
    // The disk is full at the third checkpoint: training ends, and can be resumed once there is space.
    with_fault("stop", "56:enospc", &[]).with(FAILED).says(&["No space left on device", "step-75.partial"]);
    assert_eq!(runs.steps("stop"), [25, 50]);
    run(["ckpt", "verify", &runs.place.word("stop")]).with(SUCCESS);
    runs.resumes_to_the_same_end("stop");
    let ended = with_fault("on", "40:eio", &["--set", "checkpoint.on_failure=continue"]).with(SUCCESS);
    ended.says(&["step 50: checkpoint not saved", "Input/output error", "training continues"]);
    assert_eq!(runs.steps("on"), [25, 75]);
    assert!(weights(&runs.place, "on") == weights(&runs.place, "whole"));
    with_fault("wrong", "eio", &[]).with(USAGE).says(&["`eio` is not a fault"]);
}

/// A checkpoint of four CPU ranks can be resumed on any number of CPU ranks: the tables are the same, and training has
/// the same result as on one rank.
#[test]
fn ranks_and_placements_may_change() {
    const SHAPE: &str = "name = \"mixed\"\ndense = 4\nrows = [3, 40, 500, 3000]\nhotness = [1, 1, 3, 2]\n";
    let place = Place::new();
    generate(&place, SHAPE, 6000, 1000);
    let job = job(&place);
    let common = ["train.batch_size=100", "checkpoint.every_steps=20", "checkpoint.incremental=true"];
    let four = ["device.ranks=4", "device.nodes=2"];
    let trained = |name: &str, sets: &[&str], more: &[&str]| {
        let mut command = rankine();
        command.args(["train", &job, "--quiet", "--run-dir", &place.word(name)]);
        command.args(common.iter().chain(sets).flat_map(|set| ["--set", set])).args(more);
        Ended::of(command).with(SUCCESS);
    };
    let hybrid = [&four[..], &["embedding.placement=hybrid", "train.max_steps=40"]].concat();
    trained("from", &hybrid, &[]);
    let from = weights(&place, "from");
    run(["ckpt", "verify", &place.word("from")]).with(SUCCESS);
    trained("one-rank", &["train.max_steps=60"], &[]);
    let auc = |name: &str| summary(&place, name)["eval"]["auc"].as_f64().unwrap();
    for (name, sets) in [
        ("one", &["device.ranks=1"][..]),
        ("two", &["device.ranks=2", "embedding.placement=row-wise"][..]),
        ("three", &["device.ranks=3", "embedding.placement=column-wise", "device.dense_update=sharded"][..]),
        ("eight", &["device.ranks=8", "device.nodes=2", "embedding.placement=table-wise"][..]),
        ("same", &four[..]),
    ] {
        let copy = |to: &str| {
            let from = place.path("from");
            for path in support::files_below(&from) {
                let relative = path.strip_prefix(&from).unwrap();
                if relative.starts_with("model") || relative == std::path::Path::new("summary.json") {
                    continue;
                }
                let to = place.path(to).join(relative);
                fs::create_dir_all(to.parent().unwrap()).unwrap();
                fs::copy(&path, to).unwrap();
            }
        };
        // Without a further step, the loaded weights are saved as the model.
        copy(&format!("{name}-still"));
        trained(&format!("{name}-still"), &[sets, &["train.max_steps=40"]].concat(), &["--resume"]);
        assert!(weights(&place, &format!("{name}-still")) == from, "{name} ranks have other tables");
        copy(name);
        trained(name, &[sets, &["train.max_steps=60"]].concat(), &["--resume"]);
        // Sums over samples are computed in another order.
        assert!((auc(name) - auc("one-rank")).abs() < 1e-4, "{name}: {} and {}", auc(name), auc("one-rank"));
    }
    // Resharding changes neither weights nor optimizer state.
    let (one, two) = (place.word("one/checkpoints/step-60"), place.word("again"));
    run(["ckpt", "reshard", &one, "--ranks", "3", "--out", &two]).with(SUCCESS).stdout_says("in 3 shards");
    run(["ckpt", "verify", &two]).with(SUCCESS);
    run(["ckpt", "diff", &one, &two]).with(SUCCESS).stdout_says("embedding.C4: the same");
    let eight = place.word("eight");
    run(["ckpt", "diff", &one, &eight]).with(FAILED).stdout_says("differ, by").says(&["differ"]);
}

#[test]
fn checkpoints_are_inspected_and_exported() {
    let runs = Runs::new(&["checkpoint.incremental=true"]);
    let whole = runs.place.word("whole");
    let text = run(["ckpt", "inspect", &whole]).with(SUCCESS).stdout;
    for words in [
        "step 75, 5241 samples; continues in epoch 1 at sample 2240",
        "incremental, based on step 25",
        "embedding.C1: 40 rows of 4 fp32, optimizer adagrad with sum",
        "shard-00000.safetensors",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    let json = run(["ckpt", "inspect", &whole, "--json"]).with(SUCCESS).json();
    assert_eq!(json["manifest"]["train"]["position"], serde_json::json!({ "epoch": 1, "sample": 2240 }));
    // The export of a run's last checkpoint equals the model that the run saves.
    runs.train("short", &["--set", "train.max_steps=75"]).with(SUCCESS);
    let out = runs.place.word("exported/model");
    fs::create_dir(runs.place.path("exported")).unwrap();
    run(["ckpt", "export", &runs.place.word("short"), "--out", &out]).with(SUCCESS).stdout_says("step 75");
    assert!(weights(&runs.place, "exported") == weights(&runs.place, "short"), "another model was exported");
    let expected = tree(&runs.place.path("short/model"));
    assert!(tree(&runs.place.path("exported/model")) == expected, "another model was exported");
    // Another folder is named as such.
    run(["ckpt", "inspect", &runs.place.word("data")]).with(USAGE).says(&["no checkpoint at"]);
}

/// A disk that is really full, if one can be mounted here.
#[test]
fn a_full_disk_loses_nothing() {
    let runs = Runs::new(&[]);
    let disk = runs.place.path("disk");
    fs::create_dir(&disk).unwrap();
    let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=96k", "tmpfs"]).arg(&disk).output();
    if !mounted.is_ok_and(|mounted| mounted.status.success()) {
        return support::skipped("this user cannot mount a file system");
    }
    let run_dir = "disk/run";
    let ended = runs.train(run_dir, &["--set", "checkpoint.keep=100", "--set", "checkpoint.every_steps=2"]);
    let checked = std::panic::catch_unwind(|| {
        ended.with(FAILED).says(&["No space left on device"]);
        let steps = runs.steps(run_dir);
        assert!(!steps.is_empty() && steps.len() < 40, "{steps:?}");
        run(["ckpt", "verify", &runs.place.word(run_dir)]).with(SUCCESS);
        // With more space, training resumes from the last checkpoint.
        fs::create_dir(runs.place.path("copy")).unwrap();
        let mut copy = Command::new("cp");
        copy.args(["-r", &runs.place.word("disk/run/.")]).arg(runs.place.path("copy"));
        assert!(copy.status().is_ok_and(|copied| copied.success()));
        runs.resumes_to_the_same_end("copy");
    });
    let unmounted = Command::new("umount").arg(&disk).status();
    assert!(unmounted.is_ok_and(|unmounted| unmounted.success()), "the test's own file system stays mounted");
    if let Err(panic) = checked {
        std::panic::resume_unwind(panic);
    }
}

/// The script of `docs/reference/checkpoint-format.md` reads checkpoints of a training.
#[test]
fn the_documented_script_reads_checkpoints() {
    if !support::python::has_numpy() {
        return;
    }
    let ranks = ["device.ranks=3", "embedding.placement=hybrid", "checkpoint.incremental=true"];
    let runs = Runs::new(&[&ranks[..], &["train.max_steps=75", "embedding.dtype=bf16"]].concat());
    runs.place.file("reader.py", support::python::documented("def table("));
    let call = "import sys, reader; reader.table(sys.argv[1], sys.argv[2]).tofile(sys.argv[3])";
    let model = weights(&runs.place, "whole");
    let tensors = model.len();
    for name in ["embedding.C1", "embedding.C5"] {
        let (out, checkpoint) = (runs.place.path("table.bin"), runs.place.word("whole/checkpoints/step-75"));
        let mut python = Command::new("python3");
        python.args(["-c", call, &checkpoint, name]).arg(&out).current_dir(runs.place.path(""));
        let output = python.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        // The script returns f32; the model has bf16, the upper halves.
        let read: Vec<u8> =
            fs::read(out).unwrap().chunks_exact(4).flat_map(|word| [word[2], word[3]]).collect();
        assert!(
            !read.is_empty() && model.windows(read.len()).any(|part| part == read),
            "{name} of {tensors} bytes"
        );
    }
}
