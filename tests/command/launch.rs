//! The rendezvous of real processes: with the variables that launchers set, and with strangers attacking the port. With
//! `RANKINE_TEST_LONG` set, each race is repeated 50 times.

#![allow(clippy::unwrap_used, reason = "a failed preparation may end the test")]

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::strangers::Strangers;
use crate::support::{self, LOST, Place, SUCCESS, USAGE, generate, job, rankine};

const SECRET: &str = "tests share this secret: 6c1f09";

/// Returns a port that is probably free: the system has just assigned it.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn start(arguments: &[&str], variables: &[(&str, String)]) -> Child {
    let mut command = rankine();
    command.args(["doctor", "--cluster", "--meet-timeout", "20"]).args(arguments);
    command.envs(variables.iter().map(|(name, value)| (*name, value)));
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Waits for the end; returns exit code, stdout and stderr.
fn ended(child: Child) -> (Option<i32>, String, String) {
    let output = child.wait_with_output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn processes_of_each_launcher_find_each_other() {
    let port = free_port().to_string();
    let master = [("MASTER_ADDR", "127.0.0.1".into()), ("MASTER_PORT", port)];
    let families: [(&str, &[&str]); 3] = [
        ("torchrun", &["RANK", "WORLD_SIZE", "LOCAL_RANK"]),
        ("openmpi", &["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"]),
        ("slurm", &["SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"]),
    ];
    for (launcher, names) in families {
        // The order in which processes start does not matter; the last process starts first.
        let children = [2, 1, 0].map(|process: usize| {
            let mut variables = master.to_vec();
            let values = [process, 3, process].map(|value| value.to_string());
            variables.extend(names.iter().copied().zip(values));
            start(&["--json"], &variables)
        });
        for (child, process) in children.into_iter().zip([2, 1, 0]) {
            let (code, stdout, stderr) = ended(child);
            assert_eq!(code, Some(SUCCESS), "{stderr}");
            assert!(stderr.contains(&format!("process {process} of 3 ({launcher}: ")), "{stderr}");
            if process != 0 {
                assert_eq!(stdout, "");
                continue;
            }
            let cluster: serde_json::Value = serde_json::from_str(&stdout).unwrap();
            assert_eq!(cluster["launcher"], launcher);
            assert_eq!(cluster["nodes"][0]["processes"], serde_json::json!([0, 1, 2]));
            assert_eq!(cluster["members"][2]["local"], 2);
            assert!(cluster["exchange_ms"].as_f64().unwrap() > 0.0);
        }
    }
}

#[test]
fn all_processes_name_those_that_are_missing() {
    let meet = format!("127.0.0.1:{}", free_port());
    let children = [0, 2].map(|process: usize| {
        let process = process.to_string();
        let arguments = ["--process", &process, "--processes", "4", "--meet", &meet, "--meet-timeout", "1"];
        let mut command = rankine();
        command.args(["doctor", "--cluster"]).args(arguments);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    });
    for child in children {
        let (code, _, stderr) = ended(child);
        assert_eq!(code, Some(LOST), "{stderr}");
        assert!(stderr.contains("error: processes 1, 3 did not connect within "), "{stderr}");
    }
}

#[test]
fn without_process_0_the_address_is_named() {
    let meet = format!("127.0.0.1:{}", free_port());
    let mut command = rankine();
    command.args([
        "doctor",
        "--cluster",
        "--process",
        "1",
        "--processes",
        "2",
        "--meet-timeout",
        "0.3",
        "--meet",
        &meet,
    ]);
    let output = command.output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(LOST));
    assert!(stderr.contains(&format!("to reach process 0 at {meet}: Connection refused")), "{stderr}");
}

#[test]
fn contradictions_are_refused() {
    let variables =
        [("RANK", "0"), ("WORLD_SIZE", "2"), ("SLURM_PROCID", "1"), ("SLURM_STEP_NUM_TASKS", "2")];
    let variables = variables.map(|(name, value)| (name, value.to_owned()));
    let (code, stdout, stderr) = ended(start(&[], &variables));
    assert_eq!((code, stdout.as_str()), (Some(USAGE), ""), "{stderr}");
    assert!(
        stderr.contains("torchrun sets process 0 of 2 (RANK, WORLD_SIZE), but slurm sets process 1 of 2"),
        "{stderr}"
    );
    let refused = rankine().args(["doctor", "--process", "0", "--processes", "2"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(USAGE));
    // A single process needs no rendezvous.
    let (code, stdout, stderr) = ended(start(&["--launcher", "none"], &variables));
    assert_eq!(code, Some(SUCCESS), "{stderr}");
    assert!(stdout.contains("1 process on 1 node; an exchange"), "{stdout}");
}

/// Trains a job with two processes, each with additional arguments.
fn train_on_two(place: &Place, arguments: [&[&str]; 2]) -> [(Option<i32>, String, String); 2] {
    let (job, meet) = (job(place), format!("127.0.0.1:{}", free_port()));
    let children = [0, 1].map(|process: usize| {
        let (process, run) = (process.to_string(), place.word("run"));
        let mut command = rankine();
        command.args([
            "train",
            &job,
            "--run-dir",
            &run,
            "--process",
            &process,
            "--processes",
            "2",
            "--meet",
            &meet,
        ]);
        command.args(arguments[process.parse::<usize>().unwrap()]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    });
    children.map(ended)
}

#[test]
fn processes_that_cannot_train_together_report_why() {
    let place = Place::new();
    generate(&place, support::SHAPE, 1000, 0);
    let cases: [([&[&str]; 2], [&str; 2]); 3] = [
        ([&["--set", "device.kind=cpu"]; 2], ["2 processes were launched, and device.kind is \"cpu\""; 2]),
        ([&["--set", "device.ranks=3"]; 2], ["device.ranks is 3, and 2 processes were launched"; 2]),
        // The first process has no error itself; it ends because the other one did.
        (
            [&["--set", "device.ranks=2"], &["--set", "device.ranks=2", "--set", "seed=7"]],
            ["", "the job of process 1 differs from that of process 0: `seed = 7`, not `seed = 1`"],
        ),
    ];
    for (arguments, words) in cases {
        for (process, (code, stdout, stderr)) in train_on_two(&place, arguments).into_iter().enumerate() {
            assert_eq!(stdout, "");
            if words[process].is_empty() {
                assert_ne!(code, Some(SUCCESS), "{stderr}");
                continue;
            }
            assert_eq!(code, Some(USAGE), "{stderr}");
            assert!(
                stderr.contains(&format!("error (process {process}): ")) && stderr.contains(words[process]),
                "{stderr}"
            );
            // Only process 0 prints where its number comes from.
            let printed = stderr.contains(&format!(
                "process {process} of 2 (--process, --processes), rendezvous at 127.0.0.1:"
            ));
            assert_eq!(printed, process == 0, "{stderr}");
            // Every log line of one of several processes starts with its number.
            let logged = stderr.lines().filter(|line| line.contains("INFO") || line.contains("WARN"));
            assert!(logged.clone().all(|line| line.starts_with(&format!("process {process}: "))), "{stderr}");
            assert!(process != 0 || logged.count() > 0, "{stderr}");
        }
        assert!(!place.path("run").exists());
    }
}

/// Returns the command of one of three processes with a rendezvous at a port of this host.
fn member(process: usize, port: u16) -> Command {
    member_at(process, &format!("127.0.0.1:{port}"), "30")
}

fn member_at(process: usize, meet: &str, timeout: &str) -> Command {
    let mut command = rankine();
    command.args(["doctor", "--cluster", "--json", "--meet-timeout", timeout, "--processes", "3"]);
    command.args(["--process", &process.to_string(), "--meet", meet]);
    command.env_remove("RANKINE_SECRET").env_remove("RANKINE_SECRET_FILE").env_remove("RANKINE_JOB_ID");
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn with_secret(process: usize, port: u16) -> Child {
    member(process, port).env("RANKINE_SECRET", SECRET).spawn().unwrap()
}

/// Starts process 0 and waits until it listens; returns it and the rest of its stderr.
fn listening(command: &mut Command) -> (Child, BufReader<impl Read + use<>>) {
    let mut first = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut stderr = BufReader::new(first.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("process 0 listens on") {
        line.clear();
        assert_ne!(stderr.read_line(&mut line).unwrap(), 0, "process 0 ended before it listened");
    }
    (first, stderr)
}

#[test]
fn strangers_neither_end_a_job_nor_keep_its_processes_out() {
    for round in 0..support::times(1) {
        let port = free_port();
        // Few descriptors: a flood that process 0 does not limit uses up all of them.
        let mut first = Command::new("sh");
        let inner = member(0, port);
        first
            .args(["-c", "ulimit -n 150; exec \"$0\" \"$@\""])
            .arg(inner.get_program())
            .args(inner.get_args());
        first.env("RANKINE_SECRET", SECRET).stdout(Stdio::piped());
        let (first, mut stderr) = listening(&mut first);
        let strangers = Strangers::at(port, 3);
        // More than process 0 has descriptors for.
        let flooded = Instant::now() + Duration::from_secs(30);
        while strangers.connected() <= 200 {
            assert!(Instant::now() < flooded, "round {round}: {} connections", strangers.connected());
            thread::sleep(Duration::from_millis(10));
        }
        let begun = Instant::now();
        let others = [1, 2].map(|process| with_secret(process, port));
        for other in others {
            let (code, _, stderr) = ended(other);
            assert_eq!(code, Some(SUCCESS), "round {round}: {stderr}");
        }
        assert!(begun.elapsed() < Duration::from_secs(25), "round {round}: it took {:?}", begun.elapsed());
        let mut words = String::new();
        stderr.read_to_string(&mut words).unwrap();
        let (code, stdout, _) = ended(first);
        assert_eq!(code, Some(SUCCESS), "round {round}: {words}");
        assert!(stdout.contains("\"exchange_ms\""), "{stdout}");
        // A flood of the port does not flood the log.
        assert!(words.lines().count() < 60, "{words}");
    }
}

#[test]
fn a_wrong_secret_and_a_second_process_of_a_number_are_refused_and_the_job_continues() {
    for _ in 0..support::times(1) {
        let port = free_port();
        let (first, mut stderr) = listening(member(0, port).env("RANKINE_SECRET", SECRET));
        let one = with_secret(1, port);
        let wrong = member(2, port).env("RANKINE_SECRET", "tests do not share this one").spawn().unwrap();
        let without = member(2, port).spawn().unwrap();
        // Process 1 is admitted; then a second process claims to be process 1.
        thread::sleep(Duration::from_secs(1));
        let again = with_secret(1, port);
        for (refused, words) in [
            (wrong, "connected as process 2: its secret differs from process 0's"),
            (without, "connected as process 2: process 0 has a secret and it has none"),
            (again, "connected as process 1: another process already has this number"),
        ] {
            let begun = Instant::now();
            let (code, _, stderr) = ended(refused);
            assert_eq!(code, Some(USAGE), "{stderr}");
            let error = stderr.lines().last().unwrap_or_default();
            assert!(error.contains("process 0 at 127.0.0.1") && error.contains(words), "{stderr}");
            assert!(error.contains("\"level\":\"error\""), "{stderr}");
            assert!(begun.elapsed() < Duration::from_secs(15));
        }
        let two = with_secret(2, port);
        for other in [one, two] {
            let (code, _, stderr) = ended(other);
            assert_eq!(code, Some(SUCCESS), "{stderr}");
        }
        let mut words = String::new();
        stderr.read_to_string(&mut words).unwrap();
        assert_eq!(ended(first).0, Some(SUCCESS), "{words}");
        assert!(words.contains("which connected as process 2 of 3, was refused: "), "{words}");
    }
}

#[test]
fn process_0_listens_at_the_given_address_and_warns_if_others_can_reach_it() {
    const OPEN: &str = "without a secret: anyone who can reach this port can join the job";
    for (meet, secret, warned) in [
        ("127.0.0.1", false, false),
        ("localhost", false, false),
        ("0.0.0.0", false, true),
        ("0.0.0.0", true, false),
        ("192.0.2.7", false, true),
    ] {
        let port = free_port();
        let mut command = member_at(0, &format!("{meet}:{port}"), "1.5");
        if secret {
            command.env("RANKINE_SECRET", SECRET);
        }
        let mut child = command.spawn().unwrap();
        let listens = (0..100).any(|_| {
            thread::sleep(Duration::from_millis(10));
            TcpStream::connect(("127.0.0.1", port)).is_ok()
        });
        // All of 127.0.0.0/8 is this host: a process that listens on all addresses is found there, too.
        let everywhere = TcpStream::connect(("127.0.0.2", port)).is_ok();
        let mut words = String::new();
        child.stderr.take().unwrap().read_to_string(&mut words).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(LOST), "{words}");
        let loopback = ["127.0.0.1", "localhost"].contains(&meet);
        assert!(listens && everywhere != loopback, "{meet}: {listens}, {everywhere}: {words}");
        assert_eq!(words.contains(OPEN), warned, "{meet}: {words}");
        assert_eq!(words.contains("RANKINE_SECRET_FILE"), warned, "{meet}: {words}");
        let replaced = words.contains("`192.0.2.7` resolves to 192.0.2.7:")
            && words.contains("is not an address of this");
        assert_eq!(replaced, meet == "192.0.2.7", "{words}");
    }
}

#[test]
fn secrets_are_read_from_the_environment_or_a_private_file_and_never_shown() {
    let (place, port) = (Place::new(), free_port());
    let path = place.file("secret", format!("{SECRET}\n"));
    let mode = |mode| fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    mode(0o644);
    for refused in [
        member(0, port).args(["--secret-file", &path]),
        member(0, port).env("RANKINE_SECRET_FILE", &path),
        member(0, port).env("RANKINE_SECRET_FILE", place.word("missing")),
        member(0, port).env("RANKINE_SECRET", "short"),
        member(0, port).env("RANKINE_SECRET", ""),
        member(0, port).envs([("RANKINE_SECRET", SECRET), ("RANKINE_SECRET_FILE", &path)]),
        // A secret cannot be an argument, because all users of a host can read arguments.
        member(0, port).args(["--secret", SECRET]),
    ] {
        let (code, _, stderr) = ended(refused.spawn().unwrap());
        assert_eq!(code, Some(USAGE), "{stderr}");
        assert!(stderr.contains("secret") || stderr.contains("RANKINE_SECRET"), "{stderr}");
        assert!(!stderr.contains("listens") && !stderr.contains("panicked"), "{stderr}");
    }
    mode(0o600);
    let children = [
        member(0, port).args(["--secret-file", &path]).env("RANKINE_LOG", "trace").spawn().unwrap(),
        member(1, port).env("RANKINE_SECRET_FILE", &path).env("RANKINE_LOG", "trace").spawn().unwrap(),
        with_secret(2, port),
    ];
    for child in children {
        let line = fs::read(format!("/proc/{}/cmdline", child.id())).unwrap();
        assert!(!String::from_utf8_lossy(&line).contains(SECRET));
        let (code, stdout, stderr) = ended(child);
        assert_eq!(code, Some(SUCCESS), "{stderr}");
        assert!(!stdout.contains(SECRET) && !stderr.contains(SECRET), "{stdout}{stderr}");
    }
}

#[test]
fn a_run_folder_contains_no_secret() {
    let place = Place::new();
    generate(&place, support::SHAPE, 1000, 100);
    let job = job(&place);
    let mut command = rankine();
    command.args(["train", &job, "--run-dir", &place.word("run"), "--set", "device.kind=cpu"]);
    let output = command.env("RANKINE_SECRET", SECRET).env("RANKINE_LOG", "trace").output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let mut kept = support::tree(&place.path("run"));
    kept.insert("stdout".into(), output.stdout);
    kept.insert("stderr".into(), output.stderr);
    assert!(kept.len() > 4);
    for (name, bytes) in kept {
        let found = bytes.windows(SECRET.len()).any(|window| window == SECRET.as_bytes());
        assert!(!found, "{name}");
    }
}
