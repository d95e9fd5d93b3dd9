//! Outputs of the command: complete or absent, and of one writer at a time, with and without flock(2).
//!
//! With `RANKINE_TEST_LONG` set, races are repeated 50 times.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileTypeExt, symlink};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::durable::{self, Call};
use crate::support::process::limit_file_size;
use crate::support::seccomp::{NO_FLOCK, Refused, refuse};
use crate::support::{
    Ended, FAILED, Place, SHAPE, SUCCESS, USAGE, criteo_rows, job, rankine, run, times, train, tree, word,
};

/// A dataset, and a run on it with a model and a checkpoint.
struct Fixture {
    place: Place,
    log: String,
    other_log: String,
    shape: String,
    data: String,
    job: String,
    run: String,
}

impl Fixture {
    fn new(rows: usize) -> Self {
        let place = Place::new();
        let log = place.file("log.tsv", criteo_rows(rows, 5).join("\n") + "\n");
        let other_log = place.file("other.tsv", criteo_rows(rows, 6).join("\n") + "\n");
        let few = place.file("few.tsv", criteo_rows(400, 7).join("\n") + "\n");
        let shape = place.file("shape.toml", SHAPE);
        let data = place.word("data");
        run(["convert", "criteo-tsv", &few, "--out", &data, "--split", "last:0.2"]).with(SUCCESS);
        let job = job(&place);
        train(&place, &job, "run", &["checkpoint.every_steps=2"]).with(SUCCESS);
        let run = place.word("run");
        fs::create_dir(place.path("outputs")).expect("the folder is made");
        Self { place, log, other_log, shape, data, job, run }
    }

    /// Returns the commands that have an `--out`, without that option.
    fn commands(&self) -> BTreeMap<&'static str, Vec<String>> {
        let command = |name, args: &[&str]| (name, args.iter().map(|&arg| arg.to_owned()).collect());
        BTreeMap::from([
            command("convert", &["convert", "criteo-tsv", &self.log]),
            command("fit", &["fit", "criteo-tsv", &self.log]),
            command("generate", &["generate", "--shape", &self.shape, "--samples", "50000"]),
            command("delta", &["ckpt", "delta", &self.place.word("run/checkpoints/step-2"), &self.run]),
            command("export", &["export", &self.run, "--format", "onnx"]),
            command("init", &["init", "--data", &self.data]),
            command("predict", &["predict", "--run", &self.run, &self.log]),
        ])
    }

    /// Returns a path in the folder of outputs, which has no other files.
    fn out(&self, name: &str) -> String {
        self.place.word(&format!("outputs/{name}"))
    }

    /// Checks the names in the folder of outputs.
    #[track_caller]
    fn has(&self, names: &[&str]) {
        let mut found = names_in(&self.place.path("outputs"));
        found.sort();
        assert_eq!(found, names);
    }

    /// Checks the names in the folder of outputs, and returns the bytes of all files in it.
    #[track_caller]
    fn files(&self, names: &[&str]) -> BTreeMap<String, Vec<u8>> {
        self.has(names);
        tree(&self.place.path("outputs"))
    }

    /// Empties the folder of outputs.
    fn clear(&self) {
        let emptied = fs::remove_dir_all(self.place.path("outputs"));
        emptied.and_then(|()| fs::create_dir(self.place.path("outputs"))).expect("the folder is emptied");
    }

    /// Returns the output of a command that nothing disturbs.
    fn undisturbed(&self, args: &[String]) -> BTreeMap<String, Vec<u8>> {
        Ended::of(command(args, &self.out("out"), None)).with(SUCCESS);
        let written = self.files(&["out"]);
        self.clear();
        written
    }
}

/// Returns the names in a folder.
fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("the folder is readable");
    let name = |entry: std::io::Result<fs::DirEntry>| entry.expect("the folder is readable").file_name();
    entries.map(|entry| name(entry).into_string().expect("names are plain")).collect()
}

/// Returns a command with an output, in which flock fails with an error if one is given.
fn command(args: &[String], out: &str, errno: Option<i32>) -> Command {
    let mut command = rankine();
    command.args(args).args(["--out", out]).stdin(Stdio::null());
    without_flock(&mut command, errno);
    command
}

fn without_flock(command: &mut Command, errno: Option<i32>) {
    if let Some(errno) = errno {
        refuse(command, &[Refused { call: libc::SYS_flock, errno }]);
    }
}

/// A running command, or one that was stopped while it held a lock. It is killed when dropped.
struct Running(Option<Child>);

impl Running {
    /// Starts a command.
    fn started(command: &mut Command) -> Self {
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        Self(Some(child.expect("the command starts")))
    }

    /// Starts a command and stops it once it has made a lock file.
    fn at(mut command: Command, lock: &Path) -> Self {
        let mut stopped = Self::started(&mut command);
        let began = Instant::now();
        while !lock.exists() {
            assert!(began.elapsed() < Duration::from_secs(60), "{} did not appear", lock.display());
            let ended = stopped.child().try_wait().expect("it is a child");
            assert!(ended.is_none(), "it ended before it was stopped: {}", stopped.finish().stderr);
            thread::sleep(Duration::from_micros(200));
        }
        stopped.signal(libc::SIGSTOP);
        thread::sleep(Duration::from_millis(5));
        assert!(lock.exists(), "it ended before it was stopped");
        stopped
    }

    fn child(&mut self) -> &mut Child {
        self.0.as_mut().expect("it has not been waited for")
    }

    fn id(&mut self) -> u32 {
        self.child().id()
    }

    fn signal(&mut self, signal: i32) {
        // SAFETY: the child has not been waited for, so no other process has its PID.
        unsafe { libc::kill(self.id() as i32, signal) };
    }

    /// Lets the command continue, and waits for its end.
    fn finish(&mut self) -> Ended {
        self.signal(libc::SIGCONT);
        let child = self.0.take().expect("it has not been waited for");
        let output = child.wait_with_output().expect("it is a child");
        let text = |bytes| String::from_utf8(bytes).expect("the command writes UTF-8");
        let code = output.status.code().unwrap_or_else(|| -output.status.signal().unwrap_or(0));
        Ended { code, stdout: text(output.stdout), stderr: text(output.stderr) }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[test]
fn two_commands_with_one_output_neither_mix_nor_delete_bytes() {
    let fixture = Fixture::new(300);
    for (name, args) in fixture.commands() {
        let mut other_args = args.clone();
        if name == "predict" {
            other_args.pop();
            other_args.push(fixture.other_log.clone());
        }
        let whole = [fixture.undisturbed(&args), fixture.undisturbed(&other_args)];
        for round in 0..times(2) {
            let errno = (round % 2 == 1).then(|| NO_FLOCK[round % 3]);
            let start = |args: &[String]| Running::started(&mut command(args, &fixture.out("out"), errno));
            let mut both = [start(&args), start(&other_args)];
            let both = both.each_mut().map(Running::finish);
            let winners = both.iter().filter(|ended| ended.code == SUCCESS).count();
            // Predictions replace earlier ones: both commands succeed if they run one after the other.
            assert!(winners == 1 || name == "predict" && winners == 2, "{name}: {both:?}");
            for loser in both.iter().filter(|ended| ended.code != SUCCESS) {
                assert_eq!(loser.code, USAGE, "{name}: {loser:?}");
                let why = ["another process is writing", "already exists"];
                assert!(why.iter().any(|why| loser.stderr.contains(why)), "{name}: {loser:?}");
            }
            assert!(
                whole.contains(&fixture.files(&["out"])),
                "{name}: the output is that of neither command"
            );
            fixture.clear();
        }
    }
}

#[test]
fn a_second_writer_is_refused_while_the_first_one_writes() {
    let fixture = Fixture::new(20_000);
    for name in ["convert", "generate", "predict"] {
        let args = &fixture.commands()[name];
        let whole = fixture.undisturbed(args);
        let kinds = [(None, None), (Some(libc::ENOSYS), None), (None, Some(libc::ENOLCK))];
        let kinds = kinds.into_iter().chain([(Some(libc::EOPNOTSUPP), Some(libc::EOPNOTSUPP))]);
        for (first, second) in (0..times(1)).flat_map(|_| kinds.clone()) {
            let out = fixture.out("out");
            let mut first = Running::at(command(args, &out, first), &fixture.place.path("outputs/.out.lock"));
            let holder = format!("process {} on ", first.id());
            let refused = Ended::of(command(args, &out, second)).with(USAGE);
            refused.says(&["another process is writing", "outputs/out", &holder]);
            first.finish().with(SUCCESS);
            assert!(fixture.files(&["out"]) == whole, "{name}: it wrote other bytes");
            fixture.clear();
        }
    }
}

#[test]
fn the_next_command_removes_the_remains_of_a_killed_one() {
    let fixture = Fixture::new(20_000);
    for name in ["convert", "generate", "predict"] {
        let args = &fixture.commands()[name];
        let whole = fixture.undisturbed(args);
        for errno in (0..times(1)).flat_map(|_| [None, Some(libc::ENOSYS)]) {
            let (out, lock) = (fixture.out("out"), fixture.place.path("outputs/.out.lock"));
            let mut first = Running::at(command(args, &out, errno), &lock);
            first.signal(libc::SIGKILL);
            assert_eq!(first.finish().code, -libc::SIGKILL);
            assert!(lock.exists() && !Path::new(&out).exists());
            Ended::of(command(args, &out, errno)).with(SUCCESS);
            assert!(fixture.files(&["out"]) == whole, "{name}: it wrote other bytes");
            fixture.clear();
        }
    }
}

#[test]
fn a_folder_that_only_looks_like_a_leftover_is_kept() {
    let fixture = Fixture::new(100);
    let convert = &fixture.commands()["convert"];
    fs::create_dir(fixture.out("out.partial")).unwrap();
    fs::write(fixture.out("out.partial/precious"), "kept").unwrap();
    Ended::of(command(convert, &fixture.out("out"), None))
        .with(USAGE)
        .says(&["out.partial", "already exists"]);
    assert_eq!(fs::read(fixture.out("out.partial/precious")).unwrap(), b"kept");
    fixture.files(&["out.partial"]);
}

#[test]
fn all_commands_work_without_flock() {
    let fixture = Fixture::new(300);
    for errno in NO_FLOCK {
        for (name, args) in fixture.commands() {
            let whole = fixture.undisturbed(&args);
            Ended::of(command(&args, &fixture.out("out"), Some(errno))).with(SUCCESS);
            assert!(fixture.files(&["out"]) == whole, "{name}: it wrote other bytes");
            fixture.clear();
        }
    }
}

/// Returns a command that trains into the folder of outputs.
fn training(fixture: &Fixture, errno: Option<i32>, more: &[&str]) -> Command {
    let mut command = rankine();
    command.args(["train", &fixture.job, "--quiet", "--run-dir", &fixture.out("run")]);
    command.args(["--set", "checkpoint.every_steps=2"]).args(more);
    without_flock(&mut command, errno);
    command
}

#[test]
fn training_excludes_a_second_one_with_and_without_flock() {
    let fixture = Fixture::new(100);
    let lock = fixture.place.path("outputs/run/.lock");
    let long = ["--set", "train.epochs=60"];
    for errno in [None].into_iter().chain(NO_FLOCK.map(Some)) {
        Ended::of(training(&fixture, errno, &[])).with(SUCCESS);
        let names = names_in(Path::new(&fixture.out("run"))).into_iter();
        let locks: Vec<_> = names.filter(|name| name.contains("lock") || name.contains("partial")).collect();
        assert_eq!(locks, [] as [String; 0]);
        fixture.clear();
    }
    for errno in (0..times(1)).flat_map(|_| [None, Some(libc::ENOLCK)]) {
        let mut first = Running::at(training(&fixture, errno, &long), &lock);
        let holder = format!("process {} on ", first.id());
        for second in [errno, None, Some(libc::ENOSYS)] {
            for more in [&[][..], &["--resume"]] {
                let refused = Ended::of(training(&fixture, second, more)).with(USAGE);
                refused.says(&["another process is writing", &holder]);
            }
        }
        let model = fixture.out("run/model");
        first.signal(libc::SIGKILL);
        assert_eq!(first.finish().code, -libc::SIGKILL);
        Ended::of(training(&fixture, errno, &["--resume", long[0], long[1]])).with(SUCCESS);
        assert!(Path::new(&model).join("model.json").exists());
        fixture.clear();
    }
}

#[test]
fn a_lock_of_another_machine_is_refused_before_any_work_is_done() {
    let fixture = Fixture::new(20_000);
    let lock = fixture.place.path("outputs/.out.lock");
    // A lock of this machine, changed to name another one.
    let args = &fixture.commands()["convert"];
    let held = Running::at(command(args, &fixture.out("out"), Some(libc::ENOLCK)), &lock);
    let mut record: serde_json::Value = serde_json::from_slice(&fs::read(&lock).unwrap()).unwrap();
    drop(held);
    fixture.clear();
    record["host"] = "far".into();
    record["boot_id"] = "another".into();
    let since = record["since"].as_str().unwrap().to_owned();
    let record = record.to_string();
    let remedy = |path: &Path| format!("rm '{}'", path.display());

    for (name, args) in fixture.commands() {
        fs::write(&lock, &record).unwrap();
        let refused = Ended::of(command(&args, &fixture.out("out"), Some(libc::ENOLCK)));
        refused.with(USAGE).says(&["on far", &since, &remedy(&lock)]);
        assert_eq!(fixture.files(&[".out.lock"]).len(), 1, "{name} wrote something");
        fs::remove_file(&lock).unwrap();
        Ended::of(command(&args, &fixture.out("out"), Some(libc::ENOLCK))).with(SUCCESS);
        fixture.clear();
    }

    fs::create_dir(fixture.out("run")).unwrap();
    let made = fixture.out("made");
    let generated =
        format!("data = {{ dir = {made:?}, generate = {{ shape = {:?}, samples = 900 }} }}\n", fixture.shape);
    let text = fs::read_to_string(&fixture.job).unwrap();
    let text = text.lines().map(|line| if line.starts_with("data.dir") { generated.trim() } else { line });
    let generating = fixture.place.file("generating.toml", text.collect::<Vec<_>>().join("\n"));
    let run_dir = fixture.out("run");
    fs::write(Path::new(&run_dir).join(".lock"), &record).unwrap();
    for start in [None, Some("--resume")] {
        let mut command = rankine();
        command.args(["train", &generating, "--quiet", "--run-dir", &run_dir]).args(start);
        without_flock(&mut command, Some(libc::ENOSYS));
        Ended::of(command).with(USAGE).says(&["on far"]);
        assert!(!Path::new(&made).exists(), "it generated its dataset before it was refused");
    }
    for name in [".lock", ".model.lock"] {
        let lock = fixture.place.path("outputs/run").join(name);
        fs::write(&lock, &record).unwrap();
        fs::write(fixture.out("run/metrics.jsonl"), "").unwrap();
        let refused = Ended::of(training(&fixture, Some(libc::ENOSYS), &["--resume"]));
        refused.with(USAGE).says(&["on far", &since, &remedy(&lock)]);
        let log = fs::read(fixture.out("run/metrics.jsonl")).unwrap();
        assert_eq!(log, b"", "it trained before it checked {name}");
        fs::remove_dir_all(fixture.out("run")).unwrap();
        fs::create_dir(fixture.out("run")).unwrap();
    }
    Ended::of(training(&fixture, Some(libc::ENOSYS), &[])).with(SUCCESS);
}

#[test]
fn if_syncing_fails_no_output_appears() {
    let fixture = Fixture::new(300);
    let eio = [libc::SYS_fsync, libc::SYS_fdatasync].map(|call| Refused { call, errno: libc::EIO });
    for (name, args) in fixture.commands() {
        let mut command = command(&args, &fixture.out("out"), None);
        refuse(&mut command, &eio);
        Ended::of(command).with(FAILED).says(&["Input/output error"]);
        assert!(fixture.files(&[]).is_empty(), "{name} left something");
    }
    let mut command = training(&fixture, None, &[]);
    refuse(&mut command, &eio);
    Ended::of(command).with(FAILED).says(&["Input/output error"]);
    assert!(!Path::new(&fixture.out("run/job.toml")).exists());
}

#[test]
fn outputs_are_durable_before_they_get_their_final_name() {
    let fixture = Fixture::new(300);
    let mut commands = fixture.commands();
    let reshard = ["ckpt", "reshard", &fixture.run, "--ranks", "2"];
    commands.insert("reshard", reshard.map(ToOwned::to_owned).to_vec());
    for (name, args) in commands {
        let command = command(&args, &fixture.out("out"), None);
        let (ended, renames) = durable::run(command, &fixture.place.path("outputs"), |_| ());
        ended.with(SUCCESS);
        assert!(renames > 0, "{name} renames nothing");
        fixture.clear();
    }
}

/// Each checkpoint and the log up to it are durable in time, the model is durable before the summary, and so are files
/// that move when a finished run is continued or restarted.
#[test]
fn a_training_makes_its_files_durable_in_time() {
    let fixture = Fixture::new(100);
    let run = fixture.place.path("outputs/run");
    let (log, summary) = (run.join("metrics.jsonl"), run.join("summary.json"));
    let sets = ["train.batch_size=20", "train.log_every_steps=1", "eval.every_steps=2", "device.ranks=2"];
    for (start, incremental, max_steps, checkpoints) in [
        (None, "false", "6", vec![2, 4, 6]),
        (Some("--resume"), "true", "9", vec![8]),
        (Some("--restart"), "true", "7", vec![2, 4, 6]),
    ] {
        let max_steps = format!("train.max_steps={max_steps}");
        let incremental = format!("checkpoint.incremental={incremental}");
        let sets = [&sets[..], &[&max_steps, &incremental]].concat();
        let more: Vec<_> = sets.into_iter().flat_map(|set| ["--set", set]).chain(start).collect();
        let command = training(&fixture, None, &more);
        let (mut synced, mut found) = (String::new(), Vec::new());
        let lines = |text: &str, last_step: u64| {
            let step =
                |line: &&str| serde_json::from_str::<serde_json::Value>(line).unwrap()["step"].as_u64();
            // Another thread may be writing the last line, of a later step.
            let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
            whole.lines().filter(|line| step(line) <= Some(last_step)).count()
        };
        let (ended, _) = durable::run(command, &fixture.place.path("outputs"), |call| match call {
            Call::Sync(path) if path == log => synced = fs::read_to_string(&log).unwrap(),
            Call::Rename { to } if to == summary => {
                assert!(run.join("model/model.json").exists(), "the summary is written before the model");
                assert!(run.join("trained.json").exists(), "the summary is written before trained.json");
                assert_eq!(synced, fs::read_to_string(&log).unwrap(), "the log was not synced");
            }
            Call::Rename { to } if to.ends_with("finished-step-6/summary.json") => {
                // A model without a summary would count as incomplete and be removed.
                assert!(to.with_file_name("model").exists(), "the summary is moved before the model");
            }
            Call::Rename { to } => {
                let name = to.file_name().unwrap().to_str().unwrap();
                let Some(step) = name.strip_prefix("step-").and_then(|step| step.parse().ok()) else {
                    return;
                };
                let written = fs::read_to_string(&log).unwrap();
                let (synced, written) = (lines(&synced, step), lines(&written, step));
                assert_eq!(synced, written, "lines of the log that {name} builds on");
                found.push(step);
            }
            Call::Sync(_) => {}
        });
        ended.with(SUCCESS);
        assert_eq!(found, checkpoints);
    }
    fixture.has(&["run"]);
}

#[test]
fn outputs_follow_links_and_stream_to_pipes_and_devices() {
    let fixture = Fixture::new(300);
    let commands = fixture.commands();
    let written = |name: &str| fixture.undisturbed(&commands[name]).remove("out").unwrap_or_default();
    let (predictions, starter) = (written("predict"), written("init"));
    for (name, text) in [("predict", &predictions), ("init", &starter)] {
        let args = &commands[name];
        // A link to a missing file and, for predictions, to an existing one.
        symlink("elsewhere", fixture.out("link")).unwrap();
        for _ in 0..if name == "predict" { 2 } else { 1 } {
            Ended::of(command(args, &fixture.out("link"), None)).with(SUCCESS);
            assert!(fs::symlink_metadata(fixture.out("link")).unwrap().is_symlink());
            assert!(fs::read(fixture.out("elsewhere")).unwrap() == *text);
        }
        fixture.files(&["elsewhere", "link"]);
        fixture.clear();

        let pipe = fixture.out("pipe");
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let reader = thread::spawn({
            let pipe = pipe.clone();
            move || fs::read(pipe).unwrap()
        });
        Ended::of(command(args, &pipe, None)).with(SUCCESS);
        assert!(reader.join().unwrap() == *text, "{name}: other bytes came through the pipe");
        assert!(fs::symlink_metadata(&pipe).unwrap().file_type().is_fifo());
        fixture.has(&["pipe"]);
        fixture.clear();

        Ended::of(command(args, "/dev/null", None)).with(SUCCESS);
        assert!(fs::metadata("/dev/null").unwrap().file_type().is_char_device());
        Ended::of(command(args, "/dev/full", None)).with(FAILED).says(&["/dev/full", "No space left"]);
        assert!(fs::metadata("/dev/full").unwrap().file_type().is_char_device());

        let streamed = Ended::of(command(args, "/dev/stdout", None)).with(SUCCESS);
        assert!(streamed.stdout.as_bytes().starts_with(text), "{name}: {}", streamed.stdout);
        // If stdout is a file, the output is appended to it.
        fs::write(fixture.out("log"), "earlier\n").unwrap();
        let mut appended = command(args, "/dev/stdout", None);
        appended.stdout(fs::File::options().append(true).open(fixture.out("log")).unwrap());
        assert!(appended.stderr(Stdio::null()).status().unwrap().success());
        assert!(fs::read(fixture.out("log")).unwrap().starts_with(&[b"earlier\n", &text[..]].concat()));
        fixture.clear();
    }
    for (name, args) in &commands {
        if !["predict", "init"].contains(name) {
            Ended::of(command(args, "/dev/null", None));
            assert!(fs::metadata("/dev/null").unwrap().file_type().is_char_device(), "{name}");
        }
    }
}

#[test]
fn an_output_that_is_an_input_is_refused_and_the_input_is_kept() {
    let fixture = Fixture::new(100);
    let commands = fixture.commands();
    fs::hard_link(&fixture.log, fixture.out("twin.tsv")).unwrap();
    symlink(&fixture.log, fixture.out("link.tsv")).unwrap();
    let step = fs::read_dir(fixture.place.path("run/checkpoints")).unwrap().next().unwrap().unwrap().path();
    let in_data = word(&Path::new(&fixture.data).join("train/new"));
    let cases = [
        ("predict", fixture.log.clone()),
        ("predict", fixture.out("twin.tsv")),
        ("predict", fixture.out("link.tsv")),
        ("predict", fixture.place.word("run/job.toml")),
        ("predict", fixture.place.word("run/metrics.jsonl")),
        ("predict", fixture.place.word("run/model/model.safetensors")),
        ("predict", fixture.place.word("run/model/new.csv")),
        ("convert", fixture.log.clone()),
        ("generate", fixture.shape.clone()),
        ("init", in_data.clone()),
        ("export", word(&step.join("model"))),
        ("export", word(&step)),
    ];
    let before = [tree(&fixture.place.path("run")), tree(Path::new(&fixture.data))];
    let kept = [&fixture.log, &fixture.shape].map(|path| fs::read(path).unwrap());
    for (name, out) in cases {
        let refused = Ended::of(command(&commands[name], &out, None)).with(USAGE);
        refused.says(&["is read", "choose another output"]);
    }
    let predict = ["predict", "--run", &fixture.run, "--data", &fixture.data];
    let predict: Vec<_> = predict.iter().map(|&arg| arg.to_owned()).collect();
    Ended::of(command(&predict, &in_data, None)).with(USAGE).says(&["is read as an input"]);
    let step = word(&step);
    let reshard = ["ckpt", "reshard", &step, "--ranks", "2", "--out", &step];
    run(reshard).with(USAGE).says(&["is read as an input"]);
    assert!(before == [tree(&fixture.place.path("run")), tree(Path::new(&fixture.data))]);
    assert_eq!(kept, [&fixture.log, &fixture.shape].map(|path| fs::read(path).unwrap()));
}

/// Files that a command did not write are kept, whether or not it reads them.
#[test]
fn a_file_that_is_no_earlier_output_is_refused_and_kept() {
    let fixture = Fixture::new(100);
    let predict = &fixture.commands()["predict"];
    let notes = fixture.place.file("notes.csv", "row,price\n1,20\n");
    let manifest = word(&Path::new(&fixture.data).join("dataset.json"));
    let space = fixture.place.file("space.toml", "[optimizer]\n");
    let before = [fixture.place.path("run"), fixture.data.clone().into()].map(|folder| tree(&folder));
    let others = [&notes, &manifest, &fixture.job, &fixture.shape, &space];
    let kept = others.map(|path| fs::read(path).unwrap());
    for out in others {
        let in_data = *out == manifest;
        let words =
            if in_data { "choose another" } else { "exists and is not a file of predictions: choose" };
        Ended::of(command(predict, out, None)).with(USAGE).says(&[words]);
        let textfile = format!("metrics.textfile={out}");
        train(&fixture.place, &fixture.job, "outputs/run", &[&textfile]).with(USAGE).says(&[if in_data {
            "is inside"
        } else {
            "exists and is not a file of Rankine's metrics"
        }]);
        run(["bench", "train", &fixture.job, "--trace", out])
            .with(USAGE)
            .says(&["exists and is not a trace: choose another file, or remove it"]);
        run(["report", &fixture.run, "--out", out]).with(USAGE).says(&["exists and is not a report"]);
        run(["tune", &fixture.job, "--trials", "1", "--out", out])
            .with(USAGE)
            .says(&["already exists and is not overwritten"]);
        run(["init", "--data", &fixture.data, "--out", out]).with(USAGE);
    }
    let forced = fixture.place.file("forced.csv", "row,price\n1,20\n");
    let mut force = predict.clone();
    force.push("--force".to_owned());
    Ended::of(command(&force, &forced, None)).with(SUCCESS);
    assert!(fs::read_to_string(&forced).unwrap().starts_with("row,label\n1,0."));
    // Inputs are kept all the same.
    Ended::of(command(&force, &fixture.log, None)).with(USAGE).says(&["is read as an input"]);
    let new = format!("metrics.textfile={}", word(&Path::new(&fixture.data).join("new.prom")));
    train(&fixture.place, &fixture.job, "outputs/run", &[&new])
        .with(USAGE)
        .says(&["is read as an input", "choose another output"]);
    assert!(before == [fixture.place.path("run"), fixture.data.clone().into()].map(|folder| tree(&folder)));
    assert_eq!(kept, others.map(|path| fs::read(path).unwrap()));
    fixture.has(&[]);
    // An earlier output of each is replaced; a training continues a file of metrics.
    let out = fixture.out("out");
    for log in [&fixture.log, &fixture.other_log] {
        Ended::of(command(&[&predict[..3], std::slice::from_ref(log)].concat(), &out, None)).with(SUCCESS);
    }
    let textfile = format!("metrics.textfile={}", fixture.out("rankine.prom"));
    for run_dir in ["outputs/one", "outputs/two"] {
        train(&fixture.place, &fixture.job, run_dir, &[&textfile]).with(SUCCESS);
    }
    fixture.has(&["one", "out", "rankine.prom", "two"]);
}

#[test]
fn resharding_into_a_run_in_use_is_refused() {
    let fixture = Fixture::new(100);
    let lock = fixture.place.path("outputs/run/.lock");
    let mut first = Running::at(training(&fixture, None, &["--set", "train.epochs=60"]), &lock);
    let out = fixture.out("run");
    let reshard = ["ckpt", "reshard", &fixture.run, "--ranks", "2", "--out", &out];
    run(reshard).with(USAGE).says(&["another process is writing"]);
    first.finish().with(SUCCESS);
    fixture.clear();
    run(reshard).with(SUCCESS);
    assert!(fixture.place.path("outputs/run/job.toml").exists() && !lock.exists());
}

#[test]
fn the_probe_of_doctor_does_not_follow_links() {
    let place = Place::new();
    let precious = place.file("precious", "kept");
    fs::create_dir(place.path("shared")).unwrap();
    // The name of the probe has the command's PID. An attacker who guesses it could plant the link.
    let mut shell = Command::new("sh");
    shell.args(["-c", "ln -s \"$1\" \"$2/.rankine-probe-$$\" && exec \"$3\" doctor --dir \"$2\"", "sh"]);
    shell.args([&precious, &place.word("shared")]).arg(rankine().get_program());
    Ended::of(shell).with(SUCCESS);
    assert_eq!(fs::read(&precious).unwrap(), b"kept");
    assert_eq!(fs::read_dir(place.path("shared")).unwrap().count(), 1, "there are other files than the link");
}

/// Like a full disk, but for a chosen file: `ulimit -f` makes larger writes fail, and SIGXFSZ kills a process that does
/// not ignore it.
#[test]
fn a_file_size_limit_is_reported_and_nothing_is_left() {
    let fixture = Fixture::new(2000);
    for (name, args) in fixture.commands() {
        for limit in [0, 500] {
            let mut command = command(&args, &fixture.out("out"), None);
            limit_file_size(&mut command, limit);
            let ended = Ended::of(command).with(FAILED);
            assert_eq!(ended.stdout, "", "{name}");
            ended.says(&["outputs/", "out", "File too large"]);
            fixture.has(&[]);
        }
    }
    // The effective job is the first file of a run, and the model is larger than all others.
    for (limit, file) in [(600, "job.toml"), (6000, "model")] {
        let mut training = rankine();
        let run = fixture.place.word(&format!("limited-{limit}"));
        training.args(["train", &fixture.job, "--run-dir", &run, "--set", "train.max_steps=2"]);
        limit_file_size(&mut training, limit);
        Ended::of(training).with(FAILED).says(&[&run, file, "File too large"]);
        assert!(!Path::new(&run).join("summary.json").exists());
    }
}
