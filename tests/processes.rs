//! Trainings by several processes, started as commands, against those by one process; and the fate of a process when
//! another one is lost. Processes share GPUs if there are too few.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Failed};
use support::exported::Exported;
use support::strangers::Strangers;

mod support;

type Outcome = Result<(), Failed>;

/// A test with its name.
type Body = (&'static str, fn() -> Outcome);

/// Between nodes NCCL transfers data, which needs one GPU per rank: each entry ends with the number of GPUs needed.
const OF_NODES: [(Body, usize); 5] = [
    (("processes_on_two_nodes_train_as_threads_do", || train_as_threads((2, 1), &["device.nodes=2"])), 2),
    (("two_processes_on_each_node_train_as_threads_do", || train_as_threads((4, 1), &["device.nodes=2"])), 4),
    (("nodes_of_one_that_share_nothing_train_as_one_gpu", || nodes_train_as_one_gpu(1)), 2),
    (("nodes_of_two_that_share_nothing_train_as_one_gpu", || nodes_train_as_one_gpu(2)), 2),
    (("processes_on_two_nodes_send_what_the_cpu_sends", || send_what_the_cpu_sends(2)), 2),
];

/// GPUs that one process, or each of two, trains on.
const ON_TWO_GPUS: [(Body, usize); 2] = [
    (("metrics_of_one_process_on_two_gpus_agree_with_its_summary", || metrics_agree_with_the_summary(1)), 2),
    (
        ("metrics_of_two_processes_on_two_gpus_agree_with_their_summary", || {
            metrics_agree_with_the_summary(2)
        }),
        2,
    ),
];

const BODIES: [Body; 10] = [
    ("processes_train_in_file_order_as_threads_do", || train_as_threads((2, 1), &["train.shuffle=false"])),
    ("processes_train_in_random_order_as_threads_do", || {
        train_as_threads((2, 1), &["device.precision=fp16"])
    }),
    ("processes_of_two_ranks_train_as_threads_do", || train_as_threads((2, 2), &[])),
    ("processes_train_on_raw_records_as_threads_do", train_on_raw_records_as_threads),
    ("processes_send_what_the_cpu_sends", || send_what_the_cpu_sends(1)),
    (
        "processes_that_are_killed_resume_with_the_same_bits",
        processes_that_are_killed_resume_with_the_same_bits,
    ),
    ("strangers_at_the_port_disturb_no_training", strangers_at_the_port_disturb_no_training),
    ("processes_refuse_to_resume_with_the_same_words", processes_refuse_to_resume_with_the_same_words),
    ("a_process_that_is_killed_ends_the_others", a_process_that_is_killed_ends_the_others),
    ("a_process_that_is_stopped_ends_the_others", a_process_that_is_stopped_ends_the_others),
];

fn main() -> ExitCode {
    let gpus = support::gpus();
    let of_one = BODIES.into_iter().map(|body| (body, 1));
    let trials = of_one.chain(OF_NODES).chain(ON_TWO_GPUS).map(|((name, body), wanted)| {
        let missing = (gpus < wanted).then(|| format!("{gpus} GPUs were found, but {wanted} are needed"));
        support::trial(name, missing.as_deref(), body)
    });
    let trials: Vec<_> = trials.collect();
    let mut arguments = Arguments::from_args();
    // Ranks that wait for each other occupy the GPU.
    arguments.test_threads = Some(1);
    libtest_mimic::run(&arguments, trials).exit_code()
}

const JOB: &str = r#"
name = "small"
[data]
dir = "DIR/data"
[data.generate]
shape = "dlrm"
rows_cap = 10000
samples = 20000
eval_samples = 5000
alpha = 1.1
seed = 1
[model]
kind = "dlrm"
embedding_dim = 16
bottom_mlp = [32, 16]
top_mlp = [64, 32]
[optimizer.dense]
kind = "adagrad"
learning_rate = 0.03
[optimizer.sparse]
kind = "adagrad"
learning_rate = 0.1
[train]
batch_size = 1000
log_every_steps = 5
[eval]
every_steps = 10
[device]
kind = "cuda"
"#;

/// The longest time until a job must have ended everywhere.
const SOON: Duration = Duration::from_secs(60);

/// A temporary folder with a job.
struct JobFolder(tempfile::TempDir);

impl JobFolder {
    fn new() -> Result<Self, Failed> {
        let folder = Self(tempfile::tempdir()?);
        let dir = folder.0.path().to_str().ok_or("temporary folders have plain names")?;
        fs::write(folder.path("job.toml"), JOB.replace("DIR", dir))?;
        Ok(folder)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// The command that trains the job into a folder.
    fn train(&self, run: &str, sets: &[&str]) -> Command {
        let mut command = support::rankine();
        command.arg("train").arg(self.path("job.toml")).arg("--run-dir").arg(self.path(run));
        command.args(sets.iter().flat_map(|set| ["--set", set]));
        command.envs([("RANKINE_TEST_LOOPBACK", "1"), ("CUDA_DEVICE_MAX_CONNECTIONS", "32")]);
        // NCCL's log is written to the command's output.
        command.env_remove("NCCL_DEBUG");
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Starts `count` processes, in their order.
    fn processes(&self, run: &str, count: usize, sets: &[&str]) -> Result<Vec<Child>, Failed> {
        self.processes_as(run, count, sets, |_, _| {})
    }

    /// The same, after `change` has modified each command.
    fn processes_as(
        &self,
        run: &str,
        count: usize,
        sets: &[&str],
        prepare: impl Fn(usize, &mut Command),
    ) -> Result<Vec<Child>, Failed> {
        self.processes_at(free_port()?, run, count, sets, prepare)
    }

    /// The same, with a port of this host for the rendezvous.
    fn processes_at(
        &self,
        port: u16,
        run: &str,
        count: usize,
        sets: &[&str],
        prepare: impl Fn(usize, &mut Command),
    ) -> Result<Vec<Child>, Failed> {
        let port = port.to_string();
        let start = |process: usize| {
            let mut command = self.train(run, sets);
            prepare(process, &mut command);
            let (process, count) = (process.to_string(), count.to_string());
            let own = [("RANK", process.as_str()), ("LOCAL_RANK", &process)];
            let all = [("WORLD_SIZE", count.as_str()), ("LOCAL_WORLD_SIZE", &count)];
            command.envs(own).envs(all).envs([("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", &port)]);
            Ok::<_, Failed>(command.spawn()?)
        };
        (0..count).map(start).collect()
    }
}

fn free_port() -> Result<u16, Failed> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

fn succeeded(child: Child) -> Result<String, Failed> {
    let Output { status, stdout, stderr } = child.wait_with_output()?;
    let stderr = String::from_utf8_lossy(&stderr);
    if !status.success() {
        return Err(format!("{status}: {stderr}").into());
    }
    Ok(String::from_utf8(stdout)?)
}

/// The weights, and the metrics of the evaluations without their durations.
fn outcome(run: &Path) -> Result<(Vec<u8>, Vec<String>), Failed> {
    let metrics = fs::read_to_string(run.join("metrics.jsonl"))?;
    let without_time = |line: &str| {
        let mut line: serde_json::Value = serde_json::from_str(line)?;
        let line = line.as_object_mut().ok_or("a line is an object")?;
        line.remove("seconds");
        line.remove("phase_seconds");
        line.remove("time");
        line.remove("samples_per_second");
        Ok::<_, Failed>(format!("{line:?}"))
    };
    Ok((
        fs::read(run.join("model/model.safetensors"))?,
        metrics.lines().map(without_time).collect::<Result<_, _>>()?,
    ))
}

/// One training by threads, and one by several processes with some ranks each.
fn train_as_threads(processes: (usize, usize), sets: &[&str]) -> Outcome {
    the_same_as_threads(&JobFolder::new()?, processes, sets)
}

fn the_same_as_threads(folder: &JobFolder, (processes, each): (usize, usize), sets: &[&str]) -> Outcome {
    let ranks = format!("device.ranks={}", processes * each);
    let sets = [&[ranks.as_str()], sets].concat();
    succeeded(folder.train("threads", &sets).spawn()?)?;
    let processes = folder.processes("processes", processes, &sets)?;
    let outputs: Vec<_> = processes.into_iter().map(succeeded).collect::<Result<_, _>>()?;
    if !outputs[0].contains("trained             20000 samples")
        || outputs[1..].iter().any(|one| !one.is_empty())
    {
        return Err(format!("the processes print {outputs:?}").into());
    }
    let (threads, processes) = (outcome(&folder.path("threads"))?, outcome(&folder.path("processes"))?);
    if threads.1 != processes.1 {
        return Err(format!("{:#?} instead of {:#?}", processes.1, threads.1).into());
    }
    if threads.0 == processes.0 { Ok(()) } else { Err("other weights".into()) }
}

/// Two processes, each a node with some GPUs, between which NCCL uses only the network, as between machines.
fn nodes_train_as_one_gpu(each: usize) -> Outcome {
    const STEPS: usize = 200;
    let folder = JobFolder::new()?;
    // If gradients are close to 0, nothing may depend on their last bits: so Adagrad's initial accumulator is not
    // small.
    let steady = ["dense", "sparse"].map(|of| format!("optimizer.{of}.initial_accumulator=0.1"));
    let sets =
        ["device.precision=fp32", "train.epochs=10", "train.log_every_steps=1", &steady[0], &steady[1]];
    succeeded(folder.train("single", &sets).spawn()?)?;
    let ranks = format!("device.ranks={}", 2 * each);
    let sets = [&sets[..], &[&ranks, "device.nodes=2"]].concat();
    let seen = std::env::var("CUDA_VISIBLE_DEVICES");
    let seen: Vec<_> = match &seen {
        Ok(seen) => seen.split(',').map(str::to_owned).collect(),
        Err(_) => (0..support::gpus()).map(|gpu| gpu.to_string()).collect(),
    };
    let apart = |node: usize, command: &mut Command| {
        command.envs([("NCCL_P2P_DISABLE", "1"), ("NCCL_SHM_DISABLE", "1")]);
        // Each process has other GPUs, or the same in another order, so that no two ranks that NCCL connects share
        // one.
        let mut own = seen.clone();
        let first = node * (own.len() / 2);
        own.rotate_left(first);
        command.env("CUDA_VISIBLE_DEVICES", own.join(","));
    };
    for run in ["nodes", "again"] {
        for child in folder.processes_as(run, 2, &sets, apart)? {
            succeeded(child)?;
        }
    }
    if outcome(&folder.path("nodes"))? != outcome(&folder.path("again"))? {
        return Err("two trainings differ".into());
    }
    let (single, nodes) = (losses(&folder.path("single")), losses(&folder.path("nodes")));
    if (single.len(), nodes.len()) != (STEPS, STEPS) {
        return Err(format!("{} and {} losses, not {STEPS}", single.len(), nodes.len()).into());
    }
    let apart = |(_, (single, nodes)): &(usize, (&f64, &f64))| (*nodes - *single).abs() > 1e-4 * *single;
    match single.iter().zip(&nodes).enumerate().find(apart) {
        None => Ok(()),
        Some((step, (single, nodes))) => {
            Err(format!("the loss of step {}: {nodes}, but {single} on one GPU", step + 1).into())
        }
    }
}

/// Trains on two GPUs with a textfile, whose last version has the final values, and compares them with the summary.
fn metrics_agree_with_the_summary(processes: usize) -> Outcome {
    let folder = JobFolder::new()?;
    let textfile = format!("metrics.textfile={}", folder.path("rankine.prom").display());
    for child in folder.processes("run", processes, &["device.ranks=2", &textfile])? {
        succeeded(child)?;
    }
    let summary = support::json_file(&folder.path("run/summary.json"));
    Exported::read(&folder.path("rankine.prom"), 0).agrees_with(&summary);
    if processes == 2 {
        let other = Exported::read(&folder.path("rankine-rank1.prom"), 1);
        assert_eq!(summary["train"]["steps"], other.value("rankine_train_steps_total", ""));
        assert_eq!(summary["train"]["samples"], other.value("rankine_train_samples_total", ""));
    }
    Ok(())
}

/// Two processes with one rank each send the rows that two ranks of the CPU send, with keys of 4 bytes instead of 8.
fn send_what_the_cpu_sends(nodes: usize) -> Outcome {
    let (folder, nodes) = (JobFolder::new()?, format!("device.nodes={nodes}"));
    let placed = ["embedding.placement=row-wise", "embedding.exchange=rows"];
    let sets = [&["device.ranks=2", nodes.as_str()], &placed[..]].concat();
    succeeded(folder.train("cpu", &[&sets[..], &["device.kind=cpu"]].concat()).spawn()?)?;
    let textfile = format!("metrics.textfile={}", folder.path("rankine.prom").display());
    let on_gpus = [&sets[..], &["device.precision=fp32", &textfile]].concat();
    for child in folder.processes("gpus", 2, &on_gpus)? {
        succeeded(child)?;
    }
    let summary = support::json_file(&folder.path("gpus/summary.json"));
    let of_cpu = support::json_file(&folder.path("cpu/summary.json"));
    let of_processes = ["rankine.prom", "rankine-rank1.prom"].map(|name| folder.path(name));
    let [first, second] = [0, 1].map(|process| Exported::read(&of_processes[process], process));
    first.agrees_with(&summary);
    for scope in ["within_nodes", "between_nodes"] {
        let series = format!("scope=\"{scope}\"");
        let exported = |of: &Exported| of.value("rankine_exchange_bytes_total", &series);
        assert_eq!(exported(&first), exported(&second), "{scope}");
        let of = |summary: &serde_json::Value, what: &str| {
            summary["exchange"][what][scope].as_f64().ok_or(format!("no {what} {scope}: {summary:#}"))
        };
        let (rows, bytes) = (of(&summary, "rows")?, of(&summary, "bytes")?);
        assert_eq!(rows, of(&of_cpu, "rows")?, "{scope}");
        let expected = of(&of_cpu, "bytes")? - 4.0 * rows;
        assert!((bytes - expected).abs() <= 1e-9 * expected, "{scope}: {bytes} bytes, not {expected}");
        // GPUs pad the widths of layers.
        let (reduced, least) = (of(&summary, "reduced_bytes")?, of(&of_cpu, "reduced_bytes")?);
        assert!((least..=1.25 * least).contains(&reduced), "{scope}: {reduced} bytes, not {least}");
    }
    Ok(())
}

/// The losses that a run has recorded.
fn losses(run: &Path) -> Vec<f64> {
    let lines = support::json_lines(&run.join("metrics.jsonl"));
    lines.iter().filter(|line| line["kind"] == "train").filter_map(|line| line["loss"].as_f64()).collect()
}

/// Every process unpacks all records and uses its share.
fn train_on_raw_records_as_threads() -> Outcome {
    const COLUMNS: usize = 26;
    let folder = JobFolder::new()?;
    let mut next = support::numbers(7);
    // A label, 13 numbers and an id of each table, as in the benchmark's files.
    let mut record = || {
        let label = (next() % 2) as u32;
        let numbers = std::array::from_fn::<_, 13, _>(|_| (next() % 100) as u32);
        let ids = std::array::from_fn::<_, COLUMNS, _>(|_| (next() % 3) as u32);
        let words = [label].into_iter().chain(numbers).chain(ids);
        words.flat_map(u32::to_le_bytes).collect::<Vec<_>>()
    };
    let mut write = |name: &str, count: usize| {
        let path = folder.path(name);
        fs::write(&path, (0..count).flat_map(|_| record()).collect::<Vec<_>>())?;
        Ok::<_, Failed>(path)
    };
    let (train, eval) = (write("train.bin", 20_000)?, write("eval.bin", 5000)?);
    let raw = format!(
        "[data.raw]\nshape = \"dlrm\"\nrows_cap = 10000\ndense = \"int\"\ntrain = [{train:?}]\neval = [{eval:?}]\n"
    );
    let job = fs::read_to_string(folder.path("job.toml"))?;
    let (before, rest) = job.split_once("[data]").ok_or("the job has data")?;
    let (_, after) = rest.split_once("[model]").ok_or("the job has a model")?;
    fs::write(folder.path("job.toml"), format!("{before}{raw}[model]{after}"))?;
    the_same_as_threads(&folder, (2, 1), &[])
}

/// One of two processes dies while it saves a checkpoint; both resume from the checkpoint before.
fn processes_that_are_killed_resume_with_the_same_bits() -> Outcome {
    let folder = JobFolder::new()?;
    for update in ["replicated", "sharded"] {
        let whole = format!("whole-{update}");
        let update = format!("device.dense_update={update}");
        let sets = ["device.ranks=2", "checkpoint.every_steps=6", "checkpoint.incremental=true", &update];
        let done = folder.processes(&whole, 2, &sets)?;
        done.into_iter().try_for_each(|child| succeeded(child).map(drop))?;
        let expected = outcome(&folder.path(&whole))?;
        // The first process writes more: files besides the shards, the manifest, and names.
        for (round, (dies, operation)) in
            (0..support::times(1)).flat_map(|round| [(0, 37), (1, 10)].map(|at| (round, at)))
        {
            let run = format!("{whole}-killed-{dies}-{round}");
            let fault = format!("{operation}:kill");
            let killed = folder.processes_as(&run, 2, &sets, |process, command| {
                if process == dies {
                    command.env("RANKINE_TEST_FAULT", &fault);
                }
            })?;
            for (process, child) in killed.into_iter().enumerate() {
                let Output { status, stderr, .. } = child.wait_with_output()?;
                let expected = if process == dies { None } else { Some(support::LOST) };
                if status.code() != expected {
                    return Err(format!("{run}: {status}: {}", String::from_utf8_lossy(&stderr)).into());
                }
            }
            let saved = fs::read_dir(folder.path(&run).join("checkpoints"))?.count();
            let resume = |_, command: &mut Command| {
                command.arg("--resume");
            };
            let resumed = folder.processes_as(&run, 2, &sets, resume)?;
            resumed.into_iter().try_for_each(|child| succeeded(child).map(drop))?;
            eprintln!("{run}: it found {saved} checkpoints, complete or not");
            if outcome(&folder.path(&run))? != expected {
                return Err(format!("{run} has another result").into());
            }
        }
    }
    Ok(())
}

/// Garbage, floods, slow writers and false processes, from before the second process starts until the training is over;
/// meanwhile a real process with another secret is refused.
fn strangers_at_the_port_disturb_no_training() -> Outcome {
    const SECRET: &str = "tests share this secret: 6c1f09";
    let folder = JobFolder::new()?;
    let sets = ["device.ranks=2", "train.epochs=10"];
    let quiet = folder.processes("quiet", 2, &sets)?;
    quiet.into_iter().try_for_each(|child| succeeded(child).map(drop))?;
    let expected = outcome(&folder.path("quiet"))?;
    for round in 0..support::times(1) {
        let (run, port) = (format!("disturbed-{round}"), free_port()?);
        let strangers = std::cell::OnceCell::new();
        let disturbed = folder.processes_at(port, &run, 2, &sets, |process, command| {
            command.env("RANKINE_SECRET", SECRET);
            if process == 1 {
                strangers.get_or_init(|| Strangers::at(port, 2));
                thread::sleep(Duration::from_secs(2));
                let mut wrong = support::rankine();
                wrong.args(["doctor", "--cluster", "--process", "1", "--processes", "2", "--meet"]);
                wrong.arg(format!("127.0.0.1:{port}")).env("RANKINE_SECRET", "tests do not share it");
                let Output { status, stderr, .. } = wrong.output().expect("the command starts");
                let stderr = String::from_utf8_lossy(&stderr);
                let refused = status.code() == Some(support::USAGE)
                    && stderr.contains("its secret differs from process 0's");
                assert!(refused, "{status}: {stderr}");
            }
        })?;
        disturbed.into_iter().try_for_each(|child| succeeded(child).map(drop))?;
        let connected = strangers.get().map_or(0, Strangers::connected);
        eprintln!("{run}: {connected} connections of strangers");
        if connected < 100 {
            return Err("strangers did not reach the port".into());
        }
        if outcome(&folder.path(&run))? != expected {
            return Err(format!("{run} has another result").into());
        }
        fs::remove_dir_all(folder.path(&run))?;
    }
    Ok(())
}

/// An error that the first process finds in a run's checkpoints ends all processes, with the same message and exit
/// code.
fn processes_refuse_to_resume_with_the_same_words() -> Outcome {
    let folder = JobFolder::new()?;
    let sets = ["device.ranks=2", "checkpoint.every_steps=6", "train.max_steps=12"];
    let done = folder.processes("run", 2, &sets)?;
    done.into_iter().try_for_each(|child| succeeded(child).map(drop))?;
    let run = folder.path("run");
    fs::remove_file(run.join("summary.json"))?;
    fs::remove_dir_all(run.join("model"))?;
    let shard = |step: u64| run.join(format!("checkpoints/step-{step}/shard-00001.safetensors"));
    let refused = |code: i32, words: &str| -> Outcome {
        let before = support::tree(&run);
        let resume = |_, command: &mut Command| {
            command.arg("--resume");
        };
        for (process, child) in folder.processes_as("run", 2, &sets, resume)?.into_iter().enumerate() {
            let Output { status, stderr, .. } = child.wait_with_output()?;
            let stderr = String::from_utf8_lossy(&stderr);
            if status.code() != Some(code) || !stderr.contains(words) {
                return Err(
                    format!("process {process}: {status} instead of {code} and `{words}`: {stderr}").into()
                );
            }
        }
        if support::tree(&run) != before {
            return Err("the run was changed".into());
        }
        Ok(())
    };
    let whole = fs::read(shard(12))?;
    fs::remove_file(shard(12))?;
    refused(support::FAILED, "Nothing was changed")?;
    fs::write(shard(12), &whole)?;
    for step in [6, 12] {
        let mut bytes = fs::read(shard(step))?;
        *bytes.last_mut().ok_or("a shard has bytes")? ^= 1;
        fs::write(shard(step), bytes)?;
    }
    refused(support::BAD_DATA, "no checkpoint in")?;
    let restart = |_, command: &mut Command| {
        command.arg("--restart");
    };
    let resumed = folder.processes_as("run", 2, &sets, restart)?;
    resumed.into_iter().try_for_each(|child| succeeded(child).map(drop))
}

/// The first process waits for the second one on its GPU, or on the host after a report or when they agree what to do
/// next.
fn a_process_that_is_killed_ends_the_others() -> Outcome {
    let here =
        ["rank 0 gave up waiting for rank 1 at the ", "process 1 ended before the others: see its error"];
    (0..support::times(1)).try_for_each(|_| {
        let (took, stderr) = one_is_sent("KILL")?;
        check(took, &stderr, &[&["process 1 ended without an error message in training, at step "], &here])
    })
}

fn a_process_that_is_stopped_ends_the_others() -> Outcome {
    let (took, stderr) = one_is_sent("STOP")?;
    let waits = ["rank 0 waited 30000 ms for rank 1 at the ", "process 1 has been silent for 40 s"];
    check(took, &stderr, &[&["error (process 0): "], &["at step "], &waits])
}

/// Checks that messages contain one of each group of words.
fn check(took: Duration, stderr: &str, expected: &[&[&str]]) -> Outcome {
    match expected.iter().find(|any| !any.iter().any(|words| stderr.contains(words))) {
        Some(any) => Err(format!("`{}` is not in {stderr}", any.join("` or `")).into()),
        None if took > SOON => Err(format!("it took {took:?}: {stderr}").into()),
        None => Ok(()),
    }
}

/// Sends a signal to the second of two training processes. Returns how long the first one then lived, and its
/// messages.
fn one_is_sent(signal: &str) -> Result<(Duration, String), Failed> {
    let folder = JobFolder::new()?;
    let endless = ["train.epochs=100000", "eval.every_steps=100000000"];
    let sets = ["device.ranks=2", endless[0], endless[1], "train.log_every_steps=200"];
    let mut children = folder.processes("run", 2, &sets)?.into_iter();
    let (Some(first), Some(mut second)) = (children.next(), children.next()) else { unreachable!() };
    let begun = Instant::now();
    let metrics = folder.path("run/metrics.jsonl");
    while !fs::read_to_string(&metrics).is_ok_and(|text| text.lines().count() >= 4) {
        if begun.elapsed() > 2 * SOON {
            second.kill()?;
            return Err(format!("no step is done: {:?}", first.wait_with_output()?).into());
        }
        thread::sleep(Duration::from_millis(20));
    }
    // The first process checks the second one periodically.
    thread::sleep(Duration::from_millis(500));
    let begun = Instant::now();
    Command::new("kill").args([&format!("-{signal}"), &second.id().to_string()]).status()?;
    let Output { status, stderr, .. } = first.wait_with_output()?;
    let took = begun.elapsed();
    // A process that is stopped is killed, too.
    second.kill()?;
    second.wait()?;
    let stderr = String::from_utf8_lossy(&stderr).into_owned();
    if status.code() != Some(support::LOST) {
        return Err(format!("it ended with {status} after {took:?}: {stderr}").into());
    }
    eprintln!(
        "after {signal}, {took:?}: {}",
        stderr.lines().filter(|line| !line.starts_with("training")).collect::<Vec<_>>().join("\n")
    );
    Ok((took, stderr))
}
