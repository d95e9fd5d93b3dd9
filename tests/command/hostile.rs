//! The command in hostile surroundings: without stderr, on a full disk, with terminals that vanish, suspended, and
//! asked to end. No training is lost, and nothing incomplete looks complete.
//!
//! With `RANKINE_TEST_LONG` set, tests that depend on timing are repeated 50 times.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::process::{Running, Stalled, Terminal, close, set_signal, wait_until};
use crate::support::{self, Place, RESUMABLE, SHAPE, SUCCESS, generate, job, rankine, run, times, weights};

/// A folder with a dataset and a job.
struct Runs {
    place: Place,
    job: String,
}

impl Runs {
    fn new() -> Self {
        let place = Place::new();
        generate(&place, SHAPE, 3000, 500);
        let job = job(&place);
        Self { place, job }
    }

    /// Returns a training that finishes, with a log line per step.
    fn short(&self, name: &str) -> Command {
        self.train(name, &["train.epochs=4", "train.log_every_steps=1", "eval.every_steps=20"])
    }

    /// Returns a training that continues until it is stopped.
    fn endless(&self, name: &str) -> Command {
        self.train(name, &["train.epochs=1000000", "train.log_every_steps=20"])
    }

    fn train(&self, name: &str, sets: &[&str]) -> Command {
        let mut command = rankine();
        command.args(["train", &self.job, "--run-dir", &self.place.word(name)]);
        command.args(sets.iter().flat_map(|set| ["--set", set]));
        command
    }

    /// Waits until a run has logged more than this many bytes.
    #[track_caller]
    fn wait_for_log(&self, name: &str, bytes: u64) {
        let metrics = self.place.path(name).join("metrics.jsonl");
        wait_until("steps are logged", || fs::metadata(&metrics).is_ok_and(|metrics| metrics.len() > bytes));
    }

    /// Checks that a stopped run has saved a good checkpoint.
    #[track_caller]
    fn was_saved(&self, name: &str) {
        run(["ckpt", "verify", &self.place.word(name)]).with(SUCCESS);
    }
}

#[test]
fn unwritable_streams_do_not_change_a_training() {
    let runs = Runs::new();
    let ended = runs.short("whole").output().unwrap();
    assert_eq!(ended.status.code(), Some(SUCCESS), "{ended:?}");
    let full = || Stdio::from(File::options().write(true).open("/dev/full").expect("there is a /dev/full"));
    for repeat in 0..times(1) {
        let check = |what: &str, surround: &dyn Fn(&mut Command)| {
            let name = format!("{what}-{repeat}");
            let mut training = runs.short(&name);
            training.env("RANKINE_LOG", "trace").stdin(Stdio::null());
            training.stdout(Stdio::null()).stderr(Stdio::null());
            surround(&mut training);
            assert_eq!(Running::start(&mut training).end(), SUCCESS, "{name}");
            assert!(weights(&runs.place, &name) == weights(&runs.place, "whole"), "{name} is another model");
            assert!(runs.place.path(&name).join("summary.json").exists(), "{name} has no summary");
        };
        check("stderr-closed", &|training| close(training, libc::STDERR_FILENO));
        check("all-closed", &|training| (0..=2).for_each(|stream| close(training, stream)));
        check("stderr-full", &|training| {
            training.stderr(full());
        });
        check("stdout-full", &|training| {
            training.stdout(full());
        });
        check("both-full", &|training| {
            training.stdout(full()).stderr(full());
        });
        // The reading end is closed at once.
        let gone = || std::io::pipe().expect("there are descriptors to spare").1;
        check("stdout-gone", &|training| {
            training.stdout(gone());
        });
        check("both-gone", &|training| {
            training.stdout(gone()).stderr(gone());
        });
    }
}

#[test]
fn lost_output_names_the_file_with_the_results() {
    let runs = Runs::new();
    let mut training = runs.short("run");
    training.stdout(File::options().write(true).open("/dev/full").unwrap());
    let ended = training.output().unwrap();
    let stderr = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(ended.status.code(), Some(SUCCESS), "{stderr}");
    let summary = runs.place.path("run").join("summary.json");
    assert!(stderr.contains("cannot write to stdout: No space left on device"), "{stderr}");
    assert!(stderr.contains(&format!("its results are in {}", summary.display())), "{stderr}");
}

/// `train 2>&1 | head -1`, followed by a signal.
#[test]
fn a_reader_that_exits_after_a_line_does_not_end_a_training() {
    let runs = Runs::new();
    for repeat in 0..times(2) {
        for (signal, exit) in [(None, SUCCESS), (Some(libc::SIGTERM), RESUMABLE)] {
            let name = format!("{exit}-{repeat}");
            let mut training = if signal.is_some() { runs.endless(&name) } else { runs.short(&name) };
            let (reader, writer) = std::io::pipe().unwrap();
            training.stdout(writer.try_clone().unwrap()).stderr(writer);
            let mut running = Running::start(&mut training);
            drop(training);
            let mut line = String::new();
            BufReader::new(reader).read_line(&mut line).unwrap();
            assert!(line.contains("training on the CPU"), "{line}");
            if let Some(signal) = signal {
                runs.wait_for_log(&name, 0);
                running.signal(signal);
            }
            assert_eq!(running.end(), exit, "{name}");
            if signal.is_some() {
                runs.was_saved(&name);
            }
        }
    }
}

/// `train 2>&1 | less` without paging: the pipe is full and stays full.
#[test]
fn a_reader_that_stops_reading_does_not_block_a_training() {
    let runs = Runs::new();
    for repeat in 0..times(1) {
        let name = format!("run-{repeat}");
        let mut training = runs.train(&name, &["train.epochs=1000000", "train.log_every_steps=1"]);
        let (reader, writer) = std::io::pipe().unwrap();
        training.stdout(writer.try_clone().unwrap()).stderr(writer);
        let mut running = Running::start(&mut training);
        drop(training);
        // A pipe holds 64 KiB; a line of the log is longer than one of stderr.
        runs.wait_for_log(&name, 1 << 18);
        running.signal(libc::SIGTERM);
        assert_eq!(running.end(), RESUMABLE);
        runs.was_saved(&name);
        drop(reader);
    }
}

#[test]
fn ctrl_c_on_a_training_piped_to_tee_saves_a_checkpoint() {
    let runs = Runs::new();
    for repeat in 0..times(2) {
        let name = format!("run-{repeat}");
        let (code, log) = (runs.place.path(&format!("{name}.code")), runs.place.word(&format!("{name}.log")));
        let training = runs.endless(&name);
        // The waiting process must survive: otherwise nothing would learn the exit code, and the end of the
        // terminal's first process would send SIGHUP to all.
        let script = r#"
            code=$1; log=$2; shift 2
            trap : INT
            { trap : INT; "$@"; echo $? > "$code.new"; mv "$code.new" "$code"; } 2>&1 | tee "$log"
        "#;
        let mut shell = Command::new("sh");
        shell.args(["-c", script, "sh"]).arg(&code).arg(&log);
        shell.arg(training.get_program()).args(training.get_args());
        let mut terminal = Terminal::open();
        let mut running = terminal.start(shell);
        let shown = terminal.shown();
        runs.wait_for_log(&name, 0);
        terminal.press_ctrl(b'C');
        wait_until("the training ends", || code.exists());
        assert_eq!(fs::read_to_string(&code).unwrap().trim(), RESUMABLE.to_string());
        running.end();
        runs.was_saved(&name);
        assert!(shown.join().unwrap().contains("training on the CPU"));
    }
}

#[test]
fn a_terminal_shows_a_bar_and_ctrl_c_saves_a_checkpoint() {
    let runs = Runs::new();
    let mut terminal = Terminal::open();
    let mut running = terminal.start(runs.endless("run"));
    let shown = terminal.shown();
    runs.wait_for_log("run", 0);
    thread::sleep(Duration::from_millis(300));
    terminal.press_ctrl(b'C');
    assert_eq!(running.end(), RESUMABLE);
    runs.was_saved("run");
    let shown = shown.join().unwrap();
    assert!(shown.contains("\x1b[2K") && shown.contains(" samples  ") && shown.contains("ETA "), "{shown}");
    assert!(shown.contains("error: stopped by SIGINT after step "), "{shown}");
}

/// Ctrl-S stops the terminal's output.
#[test]
fn a_stopped_terminal_does_not_block_a_training() {
    let runs = Runs::new();
    for repeat in 0..times(1) {
        let name = format!("run-{repeat}");
        let mut terminal = Terminal::open();
        let mut running =
            terminal.start(runs.train(&name, &["train.epochs=1000000", "train.log_every_steps=1"]));
        let _shown = terminal.shown();
        runs.wait_for_log(&name, 0);
        terminal.press_ctrl(b'S');
        let logged = fs::metadata(runs.place.path(&name).join("metrics.jsonl")).unwrap().len();
        runs.wait_for_log(&name, logged + (1 << 18));
        running.signal(libc::SIGTERM);
        assert_eq!(running.end(), RESUMABLE);
        runs.was_saved(&name);
    }
}

#[test]
fn a_vanished_terminal_saves_a_checkpoint_or_under_nohup_changes_nothing() {
    let runs = Runs::new();
    for repeat in 0..times(2) {
        let name = format!("run-{repeat}");
        let mut terminal = Terminal::open();
        let mut running = terminal.start(runs.endless(&name));
        runs.wait_for_log(&name, 0);
        drop(terminal);
        assert_eq!(running.end(), RESUMABLE);
        runs.was_saved(&name);

        let name = format!("nohup-{repeat}");
        let mut terminal = Terminal::open();
        let mut training = runs.train(&name, &["train.epochs=200", "train.log_every_steps=20"]);
        set_signal(&mut training, libc::SIGHUP, libc::SIG_IGN);
        let mut running = terminal.start(training);
        runs.wait_for_log(&name, 0);
        drop(terminal);
        assert_eq!(running.end(), SUCCESS);
        assert!(runs.place.path(&name).join("summary.json").exists());
    }
}

#[test]
fn sighup_saves_a_checkpoint_unless_it_was_ignored_at_the_start() {
    let runs = Runs::new();
    for repeat in 0..times(2) {
        let name = format!("run-{repeat}");
        let mut training = runs.endless(&name);
        training.stderr(Stdio::piped());
        let mut running = Running::start(&mut training);
        let stderr = running.0.stderr.take().unwrap();
        let reported = thread::spawn(move || std::io::read_to_string(stderr).unwrap());
        runs.wait_for_log(&name, 0);
        running.signal(libc::SIGHUP);
        assert_eq!(running.end(), RESUMABLE);
        let reported = reported.join().unwrap();
        assert!(reported.contains("stopped by SIGHUP after step "), "{reported}");
        runs.was_saved(&name);

        let name = format!("nohup-{repeat}");
        let mut training = runs.endless(&name);
        training.stderr(Stdio::null());
        set_signal(&mut training, libc::SIGHUP, libc::SIG_IGN);
        let mut running = Running::start(&mut training);
        runs.wait_for_log(&name, 0);
        running.signal(libc::SIGHUP);
        let logged = fs::metadata(runs.place.path(&name).join("metrics.jsonl")).unwrap().len();
        runs.wait_for_log(&name, logged + 1000);
        running.signal(libc::SIGTERM);
        assert_eq!(running.end(), RESUMABLE);
    }
}

/// SIGSTOP, Ctrl-Z or `scontrol suspend`, for longer than the time limit of a step.
#[test]
fn a_training_suspended_for_longer_than_the_step_limit_continues() {
    let runs = Runs::new();
    for repeat in 0..times(3) {
        let name = format!("run-{repeat}");
        let mut training = runs.endless(&name);
        training.args(["--set", "guard.step_timeout_s=1", "--set", "guard.barrier_timeout_s=0.5"]);
        training.stderr(Stdio::null());
        let mut running = Running::start(&mut training);
        runs.wait_for_log(&name, 0);
        running.signal(libc::SIGSTOP);
        thread::sleep(Duration::from_millis(2200));
        let logged = fs::metadata(runs.place.path(&name).join("metrics.jsonl")).unwrap().len();
        running.signal(libc::SIGCONT);
        runs.wait_for_log(&name, logged + 1000);
        running.signal(libc::SIGTERM);
        assert_eq!(running.end(), RESUMABLE, "{name}");
        runs.was_saved(&name);
    }
}

/// Work on a dataset that continues for minutes or until it is stopped.
fn endless_work(place: &Place, name: &str, out: &str) -> Command {
    let mut command = rankine();
    let shape = place.file("shape.toml", SHAPE);
    let criteo = place.word("criteo.tsv.gz");
    match name {
        "generate" => command.args(["generate", "--shape", &shape, "--samples", "1000000000000"]),
        // Counts are written to disk all the time.
        "convert-spills" => command.args(["convert", "criteo-tsv", &criteo, "--memory", "64KiB"]),
        // Rows are counted first.
        "convert-counts" => command.args(["convert", "criteo-tsv", &criteo, "--split", "last:0.1"]),
        "convert-writes" => command.args(["convert", "criteo-tsv", &criteo, "--vocabulary", "hash:1000"]),
        "convert-raw" => {
            let raw = place.path("zeros.bin");
            // A record of this shape has 11 numbers of four bytes. The file takes no disk space.
            File::create(&raw)
                .and_then(|file| file.set_len(44 << 30))
                .expect("the file system has sparse files");
            command.args(["convert", "hugectr-raw", &place.word("zeros.bin"), "--shape", &shape])
        }
        other => panic!("unknown work: {other}"),
    };
    command.args(["--out", &place.word(out)]).stdout(Stdio::null());
    command
}

/// Writes gigabytes of Criteo's rows that take little disk space: identical gzip members.
fn write_criteo(place: &Place) {
    let rows = support::criteo_rows(200, 3).join("\n") + "\n";
    let mut member = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    (0..50).for_each(|_| member.write_all(rows.as_bytes()).expect("memory takes it"));
    let member = member.finish().expect("memory takes it");
    place.file("criteo.tsv.gz", member.repeat(1000));
}

/// A stopped command ends within a second; the rest is for a busy machine.
const SOON: Duration = Duration::from_millis(2500);

#[test]
fn stopped_work_on_data_ends_soon_and_leaves_nothing() {
    let place = Place::new();
    write_criteo(&place);
    for repeat in 0..times(1) {
        for name in ["generate", "convert-spills", "convert-counts", "convert-writes", "convert-raw"] {
            for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
                let out = format!("{name}-{signal}-{repeat}");
                let mut command = endless_work(&place, name, &out);
                command.stderr(Stdio::piped());
                let mut running = Running::start(&mut command);
                let partial = place.path(&format!("{out}.partial"));
                wait_until("work starts", || partial.exists());
                thread::sleep(Duration::from_millis(40 * (repeat as u64 % 10)));
                let asked = Instant::now();
                running.signal(signal);
                let code = running.end();
                assert!(asked.elapsed() < SOON, "{out}: {:?}", asked.elapsed());
                let reported = std::io::read_to_string(running.0.stderr.take().unwrap()).unwrap();
                assert_eq!(code, 128 + signal, "{out}: {reported}");
                assert!(reported.contains("error: stopped by SIG"), "{out}: {reported}");
                assert!(!place.path(&out).exists(), "{out} looks complete");
                // On a machine too busy to stop in time, the process was ended and reported that.
                assert!(
                    reported.contains("while waiting for a file") || !partial.exists(),
                    "{out}: {reported}"
                );
            }
        }
    }
}

/// A file server that does not answer: opening the log blocks, and a flag cannot interrupt it.
#[test]
fn work_that_waits_for_a_file_ends_soon_too() {
    let place = Place::new();
    let log = place.file("log.tsv", support::criteo_rows(10, 1).join("\n"));
    let Some(stalled) = Stalled::new(&log) else {
        return support::skipped("this file system has no leases");
    };
    for repeat in 0..times(1) {
        let out = format!("data-{repeat}");
        let mut command = rankine();
        command.args(["convert", "criteo-tsv", &log, "--out", &place.word(&out)]).stderr(Stdio::null());
        let mut running = Running::start(&mut command);
        thread::sleep(Duration::from_millis(300));
        let asked = Instant::now();
        running.signal(libc::SIGTERM);
        assert_eq!(running.end(), 128 + libc::SIGTERM);
        assert!(asked.elapsed() < SOON, "{:?}", asked.elapsed());
        assert!(!place.path(&out).exists());
    }
    drop(stalled);
}

#[test]
fn a_training_stopped_while_generating_its_data_can_be_restarted() {
    let place = Place::new();
    let shape = place.file("shape.toml", SHAPE);
    let text = format!(
        "\
name = \"small\"
data.dir = {data:?}
data.generate = {{ shape = {shape:?}, samples = 1_000_000_000 }}
model = {{ kind = \"dlrm\", embedding_dim = 4, bottom_mlp = [16, 4], top_mlp = [16] }}
optimizer.dense = {{ kind = \"sgd\", learning_rate = 0.03 }}
optimizer.sparse = {{ kind = \"sgd\", learning_rate = 0.1 }}
train.batch_size = 128
",
        data = place.word("data"),
    );
    let job = place.file("job.toml", text);
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGUSR1] {
        for _ in 0..times(1) {
            let mut command = rankine();
            command.args(["train", &job, "--run-dir", &place.word("run")]).stderr(Stdio::piped());
            let mut running = Running::start(&mut command);
            wait_until("generation starts", || place.path("data.partial").exists());
            let asked = Instant::now();
            running.signal(signal);
            let code = running.end();
            assert!(asked.elapsed() < SOON, "{:?}", asked.elapsed());
            let reported = std::io::read_to_string(running.0.stderr.take().unwrap()).unwrap();
            assert_eq!(code, RESUMABLE, "{reported}");
            assert!(!place.path("data").exists() && !place.path("run").exists(), "{reported}");
        }
    }
    let few = ["data.generate.samples=1000"];
    support::train(&place, &job, "run", &few).with(SUCCESS);
}
