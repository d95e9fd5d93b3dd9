//! Cases that `--resume` refuses, without changing anything: unreadable or damaged checkpoints, finished runs of other
//! jobs, and other data.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::io::Read;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;
use xxhash_rust::xxh3::xxh3_64;

use crate::support::process::{Running, wait_until};
use crate::support::{
    self, BAD_DATA, Ended, FAILED, Place, RESUMABLE, SHAPE, SUCCESS, USAGE, flip_a_bit, generate, job,
    json_lines, rankine, run, times, weights,
};

const COMMON: [&str; 7] = [
    "train.epochs=2",
    "train.batch_size=70",
    "train.log_every_steps=5",
    "train.shuffle_window_blocks=2",
    "eval.every_steps=40",
    "checkpoint.every_steps=25",
    "device.threads=2",
];
/// The steps of two epochs.
const STEPS: u64 = 86;

/// A dataset, a finished run `whole`, and a run `interrupted` that has checkpoints of steps 25 and 50 and a log up to
/// step 60.
struct Runs {
    place: Place,
    job: String,
}

impl Runs {
    fn new() -> Self {
        let place = Place::new();
        generate(&place, SHAPE, 3001, 500);
        let job = job(&place);
        let runs = Self { place, job };
        runs.train("whole", &[]).with(SUCCESS);
        runs.train("interrupted", &["--set", "train.max_steps=60"]).with(SUCCESS);
        fs::remove_file(runs.place.path("interrupted/summary.json"))
            .expect("the files of a test can be changed");
        fs::remove_dir_all(runs.place.path("interrupted/model")).expect("the files of a test can be changed");
        runs
    }

    fn command(&self, name: &str, more: &[&str]) -> Command {
        let mut command = rankine();
        command.args(["train", &self.job, "--quiet", "--run-dir", &self.place.word(name)]);
        command.args(COMMON.iter().flat_map(|set| ["--set", set])).args(more);
        command
    }

    fn train(&self, name: &str, more: &[&str]) -> Ended {
        Ended::of(self.command(name, more))
    }

    /// Does the same with all log messages.
    fn train_verbosely(&self, name: &str, more: &[&str]) -> Ended {
        let mut command = self.command(name, more);
        command.env("RANKINE_LOG", "info");
        Ended::of(command)
    }

    /// Copies a run to another name, and replaces what has that name.
    fn copy(&self, from: &str, to: &str) {
        let (from, to) = (self.place.path(from), self.place.path(to));
        if to.exists() {
            fs::remove_dir_all(&to).expect("the files of a test can be changed");
        }
        let copied = Command::new("cp").arg("-a").args([&from, &to]).status();
        assert!(copied.is_ok_and(|copied| copied.success()));
    }

    /// Checks that training is refused with these words, and that nothing in the run folder changes.
    #[track_caller]
    fn refuses(&self, name: &str, more: &[&str], code: i32, words: &[&str]) {
        let before = listing(&self.place.path(name));
        self.train(name, more).with(code).says(words);
        let after = listing(&self.place.path(name));
        assert!(after == before, "{name} was changed: {:?} and {:?}", before.keys(), after.keys());
    }

    fn steps_logged(&self, name: &str) -> Vec<u64> {
        let lines = json_lines(&self.place.path(name).join("metrics.jsonl"));
        lines.iter().map(|line| line["step"].as_u64().expect("a line has its step")).collect()
    }
}

/// Returns every name below a folder with its bytes, or with its target if it is a link.
fn listing(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let (mut found, mut folders) = (BTreeMap::new(), vec![dir.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("the folder can be read") {
            let path = entry.expect("the folder can be read").path();
            let name = support::word(&path);
            let kind = fs::symlink_metadata(&path).expect("the file exists").file_type();
            let bytes = if kind.is_symlink() {
                fs::read_link(&path).expect("the link can be read").into_os_string().into_encoded_bytes()
            } else if kind.is_dir() {
                folders.push(path);
                Vec::new()
            } else if kind.is_file() {
                fs::read(&path).expect("the files of a test can be changed")
            } else {
                b"neither a file nor a folder".to_vec()
            };
            found.insert(name, bytes);
        }
    }
    found
}

/// Changes the content of a sealed file and seals it again.
fn reseal(path: &Path, change: impl FnOnce(&str) -> String) {
    let text = fs::read_to_string(path).expect("the files of a test can be changed");
    let begin = text.find("\"content\": ").expect("it is sealed") + "\"content\": ".len();
    let content = text[begin..text.rfind('}').expect("it is sealed")].trim_end();
    let changed = change(content);
    let sums = [content, &changed].map(|content| format!("{:016x}", xxh3_64(content.as_bytes())));
    fs::write(path, text.replace(content, &changed).replace(&sums[0], &sums[1]))
        .expect("the files of a test can be changed");
}

/// Replaces a file or folder with nothing, a folder, a dangling link, a link to itself, or a FIFO.
fn spoil(path: &Path, with: &str) {
    if path.is_dir() {
        fs::remove_dir_all(path).expect("the files of a test can be changed")
    } else {
        fs::remove_file(path).expect("the files of a test can be changed")
    }
    match with {
        "nothing" => {}
        "a folder" => fs::create_dir(path).expect("the files of a test can be changed"),
        "a dangling link" => symlink("nowhere", path).expect("the files of a test can be changed"),
        "a loop" => symlink(path.file_name().expect("the files of a test can be changed"), path)
            .expect("the files of a test can be changed"),
        "a FIFO" => {
            let made = Command::new("mkfifo").arg(path).status();
            assert!(made.is_ok_and(|made| made.success()));
        }
        with => panic!("{with}"),
    }
}

#[test]
fn an_unreadable_checkpoint_ends_the_command_and_changes_nothing() {
    let runs = Runs::new();
    for _ in 0..times(1) {
        for file in ["manifest.json", "shard-00000.json", "shard-00000.safetensors", "job.toml"] {
            for with in ["nothing", "a folder", "a dangling link", "a loop", "a FIFO"] {
                runs.copy("interrupted", "run");
                let path = runs.place.path("run/checkpoints/step-50").join(file);
                spoil(&path, with);
                // Without its manifest, a folder is not a checkpoint.
                let missing = file == "manifest.json" && ["nothing", "a dangling link"].contains(&with);
                let code = if missing { USAGE } else { FAILED };
                let named = if missing { "step-50".to_owned() } else { support::word(&path) };
                runs.refuses("run", &["--resume"], code, &[&named, "Nothing was changed", "--restart"]);
            }
        }
        // The way out of the message works: without that folder, training resumes from the checkpoint before.
        fs::rename(runs.place.path("run/checkpoints/step-50"), runs.place.path("moved")).unwrap();
        runs.train("run", &["--resume"]).with(SUCCESS);
        assert!(weights(&runs.place, "run") == weights(&runs.place, "whole"));
        fs::remove_dir_all(runs.place.path("moved")).unwrap();
    }
    // A link `checkpoints` that cannot be followed does not count as an empty folder.
    for with in ["a dangling link", "a loop"] {
        runs.copy("interrupted", "run");
        spoil(&runs.place.path("run/checkpoints"), with);
        runs.refuses("run", &["--resume"], FAILED, &["cannot read", "run/checkpoints"]);
    }
}

/// Any operation of opening checkpoints may fail, as on a network file system that is unavailable for a moment: the
/// next attempt resumes.
#[test]
fn a_failing_disk_ends_the_command_and_changes_nothing() {
    let runs = Runs::new();
    runs.copy("interrupted", "run");
    let operations = if times(1) > 1 { 1..=16 } else { 2..=4 };
    for operation in operations {
        let before = listing(&runs.place.path("run"));
        let mut command = runs.command("run", &["--resume"]);
        command.env("RANKINE_TEST_FAULT", format!("{operation}:eio"));
        Ended::of(command).with(FAILED).says(&["Input/output error", "checkpoints"]);
        assert!(listing(&runs.place.path("run")) == before, "operation {operation}");
    }
    runs.train("run", &["--resume"]).with(SUCCESS);
    assert!(weights(&runs.place, "run") == weights(&runs.place, "whole"));
}

/// Runs the command as another user, who lacks permission to read a file.
#[test]
fn a_checkpoint_without_permission_ends_the_command() {
    const NOBODY: u32 = 65534;
    let runs = Runs::new();
    fs::set_permissions(runs.place.path(""), Permissions::from_mode(0o755)).unwrap();
    let owned = Command::new("chown").args(["-R", "65534", &runs.place.word("interrupted")]).output();
    let mut command = runs.command("interrupted", &["--resume"]);
    command.uid(NOBODY);
    if !owned.is_ok_and(|owned| owned.status.success()) || command.output().is_err() {
        return support::skipped("this user cannot run commands as another user");
    }
    // That command finished the run. Now one of its files is unreadable.
    fs::remove_file(runs.place.path("interrupted/summary.json")).unwrap();
    let shard = runs.place.path("interrupted/checkpoints/step-75/shard-00000.safetensors");
    for _ in 0..times(1) {
        fs::set_permissions(&shard, Permissions::from_mode(0o000)).unwrap();
        let before = listing(&runs.place.path("interrupted"));
        let mut command = runs.command("interrupted", &["--resume"]);
        command.uid(NOBODY);
        Ended::of(command).with(FAILED).says(&["Permission denied", "step-75", "Nothing was changed"]);
        assert!(listing(&runs.place.path("interrupted")) == before);
    }
}

#[test]
fn a_checkpoint_of_a_newer_version_ends_the_command() {
    let runs = Runs::new();
    for _ in 0..times(1) {
        runs.copy("interrupted", "run");
        let manifest = runs.place.path("run/checkpoints/step-50/manifest.json");
        let text = fs::read_to_string(&manifest).unwrap();
        fs::write(&manifest, text.replacen("\"format\": 1", "\"format\": 2", 1)).unwrap();
        let words =
            ["format 2", "manifest.json", "the version of Rankine that wrote it", "Nothing was changed"];
        runs.refuses("run", &["--resume"], USAGE, &words);
        // Content that is not damaged, but that this version does not know.
        fs::write(&manifest, &text).unwrap();
        reseal(&manifest, |content| content.replacen('{', "{\n    \"signature\": 1,", 1));
        runs.refuses("run", &["--resume"], USAGE, &["its checksum matches", "Nothing was changed"]);
        fs::write(&manifest, &text).unwrap();
        runs.train("run", &["--resume"]).with(SUCCESS);
    }
}

#[test]
fn without_a_usable_checkpoint_only_restart_starts_from_scratch() {
    let runs = Runs::new();
    for _ in 0..times(1) {
        runs.copy("interrupted", "run");
        for step in [25, 50] {
            flip_a_bit(&runs.place.path(&format!("run/checkpoints/step-{step}/shard-00000.safetensors")));
        }
        let words =
            ["no checkpoint in", "step-50", "step-25", "nothing was changed", "--restart", "--run-dir"];
        runs.refuses("run", &["--resume"], BAD_DATA, &words);
        // Checkpoints that an earlier version set aside still count.
        for step in [25, 50] {
            let path = runs.place.path(&format!("run/checkpoints/step-{step}"));
            fs::rename(&path, path.with_extension("damaged")).unwrap();
        }
        runs.refuses("run", &["--resume"], BAD_DATA, &["step-50.damaged", "step-25.damaged", "--restart"]);
        let before = listing(&runs.place.path("run"));
        runs.train("run", &["--restart"]).with(SUCCESS);
        assert!(weights(&runs.place, "run") == weights(&runs.place, "whole"));
        // All earlier files are kept.
        let kept = runs.place.path("run/before-restart");
        let now = listing(&kept);
        for (name, bytes) in before {
            let name = name.replacen("/run/", "/run/before-restart/", 1);
            assert!(now.get(&name) == Some(&bytes), "{name} has changed");
        }
        // Another restart keeps them, too, and each kept run can be resumed.
        runs.train("run", &["--restart", "--set", "train.max_steps=30"]).with(SUCCESS);
        assert!(listing(&kept) == now);
        assert!(weights(&runs.place, "run/before-restart-2") == weights(&runs.place, "whole"));
        runs.train("run/before-restart-2", &["--resume"]).with(SUCCESS);
    }
    runs.train("run", &["--restart", "--resume"]).with(USAGE);
    runs.train("new", &["--restart"]).with(SUCCESS);
    assert!(!runs.place.path("new/before-restart").exists());
    run(["train", &runs.job, "--restart"]).with(USAGE).says(&["--run-dir"]);
}

#[test]
fn the_errors_of_a_restart_name_its_option() {
    let runs = Runs::new();
    fs::create_dir(runs.place.path("other")).unwrap();
    fs::write(runs.place.path("other/notes.txt"), "").unwrap();
    runs.train("other", &["--restart"]).with(USAGE).says(&["is not a run folder, which --restart needs"]);
    runs.train("other", &["--resume"]).with(USAGE).says(&["is not a run folder, which --resume needs"]);
    // Its own option would start over again.
    let mut command = runs.command("whole", &["--restart", "--set", "train.epochs=100000"]);
    let mut running = Running::start(command.stderr(Stdio::piped()));
    wait_until("it started over", || runs.place.path("whole/before-restart/summary.json").exists());
    let log = runs.place.path("whole/metrics.jsonl");
    wait_until("steps are logged", || fs::metadata(&log).is_ok_and(|log| log.len() > 0));
    running.signal(libc::SIGTERM);
    let (code, mut stderr) = (running.end(), String::new());
    running.0.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    let words = "the same command with --resume in place of --restart continues from there";
    assert!(code == RESUMABLE && stderr.contains(words), "{code}: {stderr}");
}

/// If `checkpoints` is a link to another file system, old and new checkpoints stay there.
#[test]
fn a_restart_does_not_move_a_linked_folder_of_checkpoints() {
    let runs = Runs::new();
    runs.copy("interrupted", "run");
    fs::rename(runs.place.path("run/checkpoints"), runs.place.path("scratch")).unwrap();
    symlink(runs.place.path("scratch"), runs.place.path("run/checkpoints")).unwrap();
    runs.train("run", &["--restart"]).with(SUCCESS);
    for name in ["before-restart/step-25", "before-restart/step-50", "step-25", "step-50", "step-75"] {
        assert!(runs.place.path("scratch").join(name).join("manifest.json").is_file(), "{name}");
    }
    assert!(runs.place.path("run/checkpoints").is_symlink());
}

/// A run that was killed before its first checkpoint starts from scratch with a message, and keeps its log.
#[test]
fn a_run_without_checkpoints_starts_from_scratch_and_keeps_its_log() {
    let runs = Runs::new();
    runs.copy("interrupted", "run");
    // The state after a kill while the first checkpoint is written.
    let checkpoints = runs.place.path("run/checkpoints");
    fs::remove_dir_all(checkpoints.join("step-50")).unwrap();
    fs::rename(checkpoints.join("step-25"), checkpoints.join("step-25.partial")).unwrap();
    let log = fs::read(runs.place.path("run/metrics.jsonl")).unwrap();
    let words = [
        "removed",
        "step-25.partial (",
        "no checkpoint to resume from",
        "starting at step 0",
        "before-restart",
    ];
    runs.train_verbosely("run", &["--resume"]).with(SUCCESS).says(&words);
    assert!(fs::read(runs.place.path("run/before-restart/metrics.jsonl")).unwrap() == log);
    assert!(!runs.place.path("run/before-restart/checkpoints/step-25.partial").exists());
    assert_eq!(runs.steps_logged("run"), runs.steps_logged("whole"));
}

/// A torn line in the middle of the log, as a full disk or a power failure leaves it, does not cost any later line.
#[test]
fn the_log_keeps_all_lines_up_to_the_step_that_training_resumes_from() {
    let runs = Runs::new();
    for (number, torn) in ["{\"kind\":\"tra\n", "\0\0\0\0\n", "no line\n"].into_iter().enumerate() {
        runs.copy("interrupted", "run");
        let log = runs.place.path("run/metrics.jsonl");
        let text = fs::read_to_string(&log).unwrap();
        let at = text.match_indices('\n').nth(2 + number).unwrap().0 + 1;
        fs::write(&log, [&text[..at], torn, &text[at..]].concat()).unwrap();
        runs.train("run", &["--resume"]).with(SUCCESS);
        let text = fs::read_to_string(&log).unwrap();
        let lines: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let steps: Vec<_> = lines.iter().map(|line| line["step"].as_u64().unwrap()).collect();
        assert_eq!(steps, runs.steps_logged("whole"), "after {torn:?}");
        assert!(text.contains(torn));
    }
    assert_eq!(runs.steps_logged("whole").last(), Some(&STEPS));
}

#[test]
fn leftovers_of_dead_processes_are_removed_or_reported() {
    let runs = Runs::new();
    for _ in 0..times(1) {
        runs.copy("interrupted", "run");
        let partial = runs.place.path("run/checkpoints/step-60.partial");
        fs::create_dir(&partial).unwrap();
        fs::write(partial.join("shard-00000.safetensors"), vec![0; 123_456]).unwrap();
        flip_a_bit(&runs.place.path("run/checkpoints/step-50/shard-00000.safetensors"));
        let ended = runs.train_verbosely("run", &["--resume"]).with(SUCCESS);
        ended.says(&[
            "removed",
            "step-60.partial (120.6 KiB)",
            "step-50.damaged (",
            "is a damaged checkpoint",
        ]);
        assert!(!partial.exists());
        assert!(runs.place.path("run/checkpoints/step-50.damaged").is_dir());
        assert!(weights(&runs.place, "run") == weights(&runs.place, "whole"));
    }
}

/// Resuming a finished run prints its summary only if the job is the one that it was trained with.
#[test]
fn a_finished_run_is_compared_with_the_job() {
    let runs = Runs::new();
    let shape = runs.place.word("shape.toml");
    for (name, samples, seed) in [("other", "3001", "5"), ("fewer", "2000", "5")] {
        let out = runs.place.word(name);
        let args = ["--samples", samples, "--eval-samples", "500", "--seed", seed, "--out", &out];
        run(["generate", "--shape", &shape].iter().chain(&args)).with(SUCCESS);
    }
    let data = |name: &str| format!("data.dir={:?}", runs.place.word(name));
    let (other, fewer) = (data("other"), data("fewer"));
    for (set, words) in [
        ("seed=7", "seed is 7 but was 1"),
        ("model.top_mlp=[17]", "top_mlp.0 is 17 but was 16"),
        ("optimizer.dense.kind='sgd'", "optimizer.dense"),
        ("optimizer.dense.learning_rate=0.04", "optimizer.dense.learning_rate is 0.04 but was 0.03"),
        ("optimizer.schedule={ kind = 'step', every_steps = 10, factor = 0.5 }", "optimizer.schedule"),
        ("train.batch_size=60", "train.batch_size is 60 but was 70"),
        ("train.shuffle=false", "train.shuffle was true"),
        ("train.epochs=1", "train.epochs is 1, and the run was trained on 6002 samples"),
        ("train.max_steps=50", "train.max_steps is 50, and the run took 86 steps"),
        ("eval.target_auc=0.95", "eval.target_auc is 0.95 but was not set"),
        ("guard.non_finite='skip'", "guard.non_finite"),
        (&other, "the training part has different samples"),
        (&fewer, "the training part has 2000 samples but had 3001"),
    ] {
        let words = ["is finished and was trained with a different job", words, "--restart", "--run-dir"];
        runs.refuses("whole", &["--resume", "--set", set], USAGE, &words);
    }
    // Options that change neither the model nor its metrics may differ, and the dataset may have moved.
    fs::rename(runs.place.path("data"), runs.place.path("moved")).unwrap();
    let moved = data("moved");
    for set in [
        &moved,
        "train.log_every_steps=7",
        "eval.every_steps=20",
        "reader.mode='pread'",
        "device.threads=1",
        "checkpoint.keep=9",
    ] {
        let before = listing(&runs.place.path("whole"));
        let sets = ["--set", &moved, "--set", set];
        let ended = runs.train("whole", &[&sets[..], &["--resume"]].concat()).with(SUCCESS);
        ended.stdout_says("trained             6002 samples");
        assert!(listing(&runs.place.path("whole")) == before, "{set}");
    }
    fs::rename(runs.place.path("moved"), runs.place.path("data")).unwrap();
    // Another evaluation part is refused, too: the run's metrics are those of the old one.
    let index = |name: &str| runs.place.path(name).join("dataset.json");
    let eval_of = |samples: &str| {
        let (out, args) =
            (runs.place.word("eval"), ["--samples", "3001", "--eval-samples", samples, "--out"]);
        let _ = fs::remove_dir_all(&out);
        run(["generate", "--shape", &shape].iter().chain(&args).chain(&[&*out])).with(SUCCESS);
    };
    eval_of("600");
    assert!(index("eval").is_file());
    let words = ["the evaluation part has 600 samples but had 500"];
    runs.refuses("whole", &["--resume", "--set", &data("eval")], USAGE, &words);
    eval_of("0");
    let words = ["the evaluation part is missing; the run had one"];
    runs.refuses("whole", &["--resume", "--set", &data("eval")], USAGE, &words);
    runs.train("without", &["--set", &data("eval")]).with(SUCCESS);
    let words = ["there is an evaluation part; the run had none"];
    runs.refuses("without", &["--resume"], USAGE, &words);
}

/// With more epochs or steps, a finished run continues from its last checkpoint, with the same bits as if the job had
/// asked for them from the start. The earlier result is kept.
#[test]
fn more_epochs_or_steps_continue_a_finished_run() {
    let runs = Runs::new();
    runs.train("long", &["--set", "train.epochs=3"]).with(SUCCESS);
    runs.train("short", &["--set", "train.max_steps=60"]).with(SUCCESS);
    for (from, set, expected, steps) in
        [("whole", "train.epochs=3", "long", 86), ("short", "train.max_steps=1000", "whole", 60)]
    {
        for _ in 0..times(1) {
            runs.copy(from, "run");
            runs.train("run", &["--resume", "--set", set]).with(SUCCESS).says(&[
                &format!("the run ended after step {steps}, and the job asks for more"),
                "finished-step-",
            ]);
            assert!(
                weights(&runs.place, "run") == weights(&runs.place, expected),
                "{from} has another model"
            );
            assert_eq!(runs.steps_logged("run"), runs.steps_logged(expected));
            let kept = format!("run/finished-step-{steps}");
            assert!(weights(&runs.place, &kept) == weights(&runs.place, from));
            let before = support::summary(&runs.place, from);
            assert_eq!(support::summary(&runs.place, &kept), before);
            let scores = |run: &str| fs::read(runs.place.path(run).join("scores.json")).unwrap();
            assert!(scores(&kept) == scores(from), "the scores do not move with the summary");
            assert!(scores("run") == scores(expected), "the scores are of another evaluation");
            assert!(support::summary(&runs.place, "run")["train"]["steps"] != before["train"]["steps"]);
        }
    }
    // The same options may change as when resuming an unfinished run.
    let more = ["--resume", "--set", "train.epochs=3", "--set"];
    let with = |set: &'static str| [&more[..], &[set]].concat();
    runs.refuses("whole", &with("seed=3"), USAGE, &["seed is 3 but was 1"]);
    runs.train("whole", &with("optimizer.dense.learning_rate=0.01")).with(SUCCESS);
    // Without a checkpoint there is nothing to continue from.
    fs::remove_dir_all(runs.place.path("short/checkpoints")).unwrap();
    let words = ["the job asks for more", "no checkpoint to resume from", "--restart"];
    runs.refuses("short", &["--resume"], USAGE, &words);
}

#[test]
fn a_missing_or_damaged_model_is_trained_again_from_the_last_checkpoint() {
    let runs = Runs::new();
    let model = |file: &str| runs.place.path("run/model").join(file);
    let ways: [(&str, &dyn Fn()); 6] = [
        ("no model", &|| fs::remove_dir_all(model("")).unwrap()),
        ("no weights", &|| fs::remove_file(model("model.safetensors")).unwrap()),
        ("a flipped bit", &|| flip_a_bit(&model("model.safetensors"))),
        ("a longer file", &|| fs::write(model("model.safetensors"), vec![1; 100_000]).unwrap()),
        ("a damaged manifest", &|| flip_a_bit(&model("model.json"))),
        ("another run's model", &|| {
            fs::remove_dir_all(model("")).unwrap();
            runs.copy("shorter/model", "run/model");
        }),
    ];
    runs.train("shorter", &["--set", "train.max_steps=60"]).with(SUCCESS);
    for (what, spoil) in ways {
        for _ in 0..times(1) {
            runs.copy("whole", "run");
            spoil();
            runs.train("run", &["--resume"]).with(SUCCESS).says(&["resuming from its last checkpoint"]);
            assert!(weights(&runs.place, "run") == weights(&runs.place, "whole"), "{what}");
            assert_eq!(runs.steps_logged("run"), runs.steps_logged("whole"), "{what}");
            runs.copy("whole", "run");
            fs::remove_dir_all(runs.place.path("run/checkpoints")).unwrap();
            spoil();
            runs.refuses(
                "run",
                &["--resume"],
                USAGE,
                &["model", "no checkpoint to resume from", "--restart"],
            );
        }
    }
    // A model that cannot be read, or only by another version, may be undamaged.
    runs.copy("whole", "run");
    spoil(&model("model.safetensors"), "a folder");
    runs.refuses("run", &["--resume"], FAILED, &["cannot read", "model.safetensors"]);
    runs.copy("whole", "run");
    let text = fs::read_to_string(model("model.json")).unwrap();
    fs::write(model("model.json"), text.replacen("\"format\": ", "\"format\": 9", 1)).unwrap();
    runs.refuses("run", &["--resume"], USAGE, &["model.json cannot be read", "of format 9"]);
}

/// A run of a version that did not record its job and data.
#[test]
fn a_finished_run_that_cannot_be_compared_is_refused() {
    let runs = Runs::new();
    let trained = runs.place.path("whole/trained.json");
    let text = fs::read(&trained).unwrap();
    fs::remove_file(&trained).unwrap();
    runs.refuses("whole", &["--resume"], USAGE, &["did not record its job and data", "--restart"]);
    for (at, words) in
        [(100, "trained.json cannot be read"), (text.len() - 20, "trained.json cannot be read")]
    {
        let mut damaged = text.clone();
        damaged[at] ^= 1;
        fs::write(&trained, damaged).unwrap();
        runs.refuses("whole", &["--resume"], USAGE, &[words, "--restart"]);
    }
    fs::write(&trained, &text).unwrap();
    let summary = runs.place.path("whole/summary.json");
    let text = fs::read(&summary).unwrap();
    fs::write(&summary, &text[..text.len() / 2]).unwrap();
    runs.refuses("whole", &["--resume"], USAGE, &["summary.json is damaged", "--restart"]);
    fs::write(&summary, &text).unwrap();
    runs.train("whole", &["--resume"]).with(SUCCESS);
}
