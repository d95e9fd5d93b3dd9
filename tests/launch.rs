//! Processes that meet: real ones, under the variables that launchers set.

#![allow(clippy::unwrap_used, reason = "what prepares a test may end it")]

use std::net::TcpListener;
use std::process::{Child, Stdio};

use support::{LOST, Place, SUCCESS, USAGE, generate, job, rankine};

mod support;

/// A port that nobody has: one that the system has just given away.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn start(arguments: &[&str], variables: &[(&str, String)]) -> Child {
    let mut command = rankine();
    command.args(["doctor", "--cluster", "--meet-timeout", "20"]).args(arguments);
    command.envs(variables.iter().map(|(name, value)| (*name, value)));
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Exit code, stdout and stderr.
fn ended(child: Child) -> (Option<i32>, String, String) {
    let output = child.wait_with_output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn processes_of_each_launcher_meet() {
    let port = free_port().to_string();
    let master = [("MASTER_ADDR", "127.0.0.1".into()), ("MASTER_PORT", port)];
    let families: [(&str, &[&str]); 3] = [
        ("torchrun", &["RANK", "WORLD_SIZE", "LOCAL_RANK"]),
        ("openmpi", &["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"]),
        ("slurm", &["SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"]),
    ];
    for (launcher, names) in families {
        // The last one first: nobody waits for an order.
        let children = [2, 1, 0].map(|rank: usize| {
            let mut variables = master.to_vec();
            let values = [rank, 3, rank].map(|value| value.to_string());
            variables.extend(names.iter().copied().zip(values));
            start(&["--json"], &variables)
        });
        for (child, rank) in children.into_iter().zip([2, 1, 0]) {
            let (code, stdout, stderr) = ended(child);
            assert_eq!(code, Some(SUCCESS), "{stderr}");
            assert!(stderr.contains(&format!("rank {rank} of 3 ({launcher}: ")), "{stderr}");
            if rank != 0 {
                assert_eq!(stdout, "");
                continue;
            }
            let cluster: serde_json::Value = serde_json::from_str(&stdout).unwrap();
            assert_eq!(cluster["launcher"], launcher);
            assert_eq!(cluster["nodes"][0]["ranks"], serde_json::json!([0, 1, 2]));
            assert_eq!(cluster["members"][2]["local"], 2);
            assert!(cluster["exchange_ms"].as_f64().unwrap() > 0.0);
        }
    }
}

#[test]
fn who_does_not_come_is_named_by_all() {
    let meet = format!("127.0.0.1:{}", free_port());
    let children = [0, 2].map(|rank: usize| {
        let rank = rank.to_string();
        let arguments = ["--rank", &rank, "--ranks", "4", "--meet", &meet, "--meet-timeout", "1"];
        let mut command = rankine();
        command.args(["doctor", "--cluster"]).args(arguments);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    });
    for child in children {
        let (code, _, stderr) = ended(child);
        assert_eq!(code, Some(LOST), "{stderr}");
        assert!(stderr.contains("error: ranks 1, 3 did not come, after "), "{stderr}");
    }
}

#[test]
fn without_rank_0_the_address_is_named() {
    let meet = format!("127.0.0.1:{}", free_port());
    let mut command = rankine();
    command.args([
        "doctor",
        "--cluster",
        "--rank",
        "1",
        "--ranks",
        "2",
        "--meet-timeout",
        "0.3",
        "--meet",
        &meet,
    ]);
    let output = command.output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(LOST));
    assert!(stderr.contains(&format!("to reach rank 0 at {meet}: Connection refused")), "{stderr}");
}

#[test]
fn contradictions_are_refused() {
    let variables =
        [("RANK", "0"), ("WORLD_SIZE", "2"), ("SLURM_PROCID", "1"), ("SLURM_STEP_NUM_TASKS", "2")];
    let variables = variables.map(|(name, value)| (name, value.to_owned()));
    let (code, stdout, stderr) = ended(start(&[], &variables));
    assert_eq!((code, stdout.as_str()), (Some(USAGE), ""), "{stderr}");
    assert!(
        stderr.contains("torchrun says rank 0 of 2 (RANK, WORLD_SIZE), and slurm says rank 1 of 2"),
        "{stderr}"
    );
    let refused = rankine().args(["doctor", "--rank", "0", "--ranks", "2"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(USAGE));
    // One alone needs nobody.
    let (code, stdout, stderr) = ended(start(&["--launcher", "none"], &variables));
    assert_eq!(code, Some(SUCCESS), "{stderr}");
    assert!(stdout.contains("1 process on 1 node; an exchange"), "{stdout}");
}

/// Two processes that train a job, each with more arguments.
fn train_on_two(place: &Place, arguments: [&[&str]; 2]) -> [(Option<i32>, String, String); 2] {
    let (job, meet) = (job(place), format!("127.0.0.1:{}", free_port()));
    let children = [0, 1].map(|rank: usize| {
        let (rank, run) = (rank.to_string(), place.word("run"));
        let mut command = rankine();
        command.args(["train", &job, "--run-dir", &run, "--rank", &rank, "--ranks", "2", "--meet", &meet]);
        command.args(arguments[rank.parse::<usize>().unwrap()]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    });
    children.map(ended)
}

#[test]
fn processes_that_cannot_train_together_say_why() {
    let place = Place::new();
    generate(&place, support::SHAPE, 1000, 0);
    let cases: [([&[&str]; 2], [&str; 2]); 3] = [
        ([&["--set", "device.kind=cpu"]; 2], ["2 processes were launched, and device.kind is \"cpu\""; 2]),
        ([&["--set", "device.ranks=3"]; 2], ["device.ranks is 3, and 2 processes were launched"; 2]),
        // The first one has nothing to complain of, and ends for the other.
        (
            [&["--set", "device.ranks=2"], &["--set", "device.ranks=2", "--set", "seed=7"]],
            ["", "rank 1 has another job than rank 0: `seed = 7` here, `seed = 1` there"],
        ),
    ];
    for (arguments, words) in cases {
        for (rank, (code, stdout, stderr)) in train_on_two(&place, arguments).into_iter().enumerate() {
            assert_eq!(stdout, "");
            if words[rank].is_empty() {
                assert_ne!(code, Some(SUCCESS), "{stderr}");
                continue;
            }
            assert_eq!(code, Some(USAGE), "{stderr}");
            assert!(
                stderr.contains(&format!("error (rank {rank}): ")) && stderr.contains(words[rank]),
                "{stderr}"
            );
            // The source is told once.
            let told = stderr.contains(&format!("rank {rank} of 2 (--rank, --ranks), meeting at 127.0.0.1:"));
            assert_eq!(told, rank == 0, "{stderr}");
        }
        assert!(!place.path("run").exists());
    }
}
