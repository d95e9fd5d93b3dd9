"""Checks and times training on the GPUs of one node, in ten minutes; prints a table, and writes JSON with --json.

Run it from the root of the repository on a machine with GPUs, after `cargo build --release --features cuda`:

    python3 benchmarks/node.py --json node.json

Checks: losses on all GPUs equal those on one (fp32, 1e-4 relative over 100 steps), two trainings give the same bits,
2000 steps finish, and the job ends within 60 seconds after one process is killed.

Timings: the jobs for which figures are published, with capped and full tables, reading; strong scaling (constant batch)
and weak scaling (constant batch per GPU); and the placements.

The script generates datasets of 10 GB in a folder of --data, which should be in memory, and removes them at the end.
Each part prints its results as soon as it has them. If a part fails or no time is left for it, the others continue.
"""

import argparse
import contextlib
import hashlib
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Published for eight GPUs: the job, the batch, the milliseconds per iteration, by whom, and the target.
RECORDS = [
    ("dlrm", 55296, 0.855, "HugeCTR, 8 x H100, MLPerf v2.1", 0.50),
    ("dcnv2", 55296, 3.25, "HugeCTR, 8 x H200, MLPerf v4.0", 2.3),
    ("dcnv2", 65536, 3.71, "HPE, 8 x H200, MLPerf v5.0", 2.6),
]
# The batch per GPU for weak scaling.
BATCH_PER_GPU = {"dlrm": 16384, "dcnv2": 8192}
SCALING_BATCH = 65536
# More rows than any table has: no cap.
ALL_ROWS = 40_000_000
PLACEMENTS = ["auto", "row-wise", "table-wise", "column-wise", "hybrid"]
SMALL = [
    "data.generate.rows_cap=20000", "data.generate.samples=819200", "data.generate.eval_samples=0",
    "train.batch_size=8192", "train.log_every_steps=1", "device.precision=fp32", "model.embedding_dim=32",
    "model.bottom_mlp=[64,32]", "model.top_mlp=[128,64]",
]


class Failed(Exception):
    """A part failed; the message is the reason."""


class Node:
    """The settings of this run and its results so far."""

    def __init__(self, arguments):
        self.binary, self.gpus = arguments.binary.resolve(), arguments.gpus
        self.data = arguments.data / "rankine-node"
        self.steps = arguments.steps
        self.until = time.monotonic() + arguments.seconds
        self.found = {"gpus": self.gpus, "device": gpu_name(), "checks": {}, "timings": []}

    def left(self, most):
        """Returns the seconds that are left, at most `most`."""
        left = self.until - time.monotonic()
        if left < 5:
            raise Failed("no time is left")
        return min(most, left)

    def options(self, job, ranks, settings):
        """Returns the arguments for the job of a benchmark with these settings on `ranks` GPUs."""
        settings = ["device.kind=cuda", f"device.ranks={ranks}", *settings]
        config = ROOT / "configs" / f"bench-{job}.toml"
        return [config, *(option for setting in settings for option in ("--set", setting))]

    def run(self, arguments, most):
        """Runs the command; returns its output and the host resources that it used."""
        watch = Watch(self.binary, arguments)
        try:
            output, errors = watch.process.communicate(timeout=self.left(most))
        except subprocess.TimeoutExpired:
            watch.process.kill()
            raise Failed(f"not finished after {most:.0f} s") from None
        finally:
            watch.end()
        if watch.process.returncode:
            raise Failed(f"exit code {watch.process.returncode}: {errors.strip()[-400:]}")
        return output, watch.resources()

    def time(self, job, ranks, batch, settings=(), full=False, resident=False, steps=None):
        """Times the steps of a job; returns the figures and the host resources that it used."""
        folder = f"{job}-full" if full else job
        data = [f"data.dir={self.data / folder}", f"train.batch_size={batch}"]
        if full:
            data += [f"data.generate.rows_cap={ALL_ROWS}", "data.generate.samples=3932160"]
        arguments = ["bench", "train", *self.options(job, ranks, [*data, *settings]), "--json"]
        arguments += ["--steps", str(steps or self.steps), *(["--resident"] if resident else [])]
        output, resources = self.run(arguments, 120)
        bench = json.loads(output)
        timing = {
            "job": job, "gpus": ranks, "batch": batch, "full": full, "settings": list(settings),
            "ms": bench["ms_per_iteration"], "ms_p10": bench["ms_p10"], "ms_p99": bench["ms_p99"],
            "million_samples_per_second": bench["samples_per_second"] / 1e6,
            "loss": [bench["loss_at_begin"], bench["loss_at_end"]],
            "phases": {phase["name"]: phase["ms"] for phase in bench["phases"]}, **resources,
        }
        reading = bench["input"].get("read")
        if reading:
            sample_bytes = folder_bytes(self.data / folder) / reading["samples"]
            timing["reader_wait_share"] = reading["reader_wait_share"]
            timing["reader_gb_per_s"] = bench["samples_per_second"] * sample_bytes / 1e9
        self.found["timings"].append(timing)
        return timing


class Watch:
    """A process and its peak threads and memory, sampled ten times per second."""

    def __init__(self, binary, arguments):
        self.process = subprocess.Popen(
            [binary, *arguments], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.peak = {"Threads": 0, "VmHWM": 0, "VmLck": 0, "VmPin": 0}
        self.done = threading.Event()
        self.thread = threading.Thread(target=self.sample)
        self.thread.start()

    def sample(self):
        status = pathlib.Path(f"/proc/{self.process.pid}/status")
        while not self.done.wait(0.1):
            with contextlib.suppress(OSError):
                for name, value in re.findall(r"^(\w+):\s+(\d+)", status.read_text(), re.MULTILINE):
                    if name in self.peak:
                        self.peak[name] = max(self.peak[name], int(value))

    def end(self):
        self.done.set()
        self.thread.join()

    def resources(self):
        return {"host_threads": self.peak["Threads"], "host_gb": self.peak["VmHWM"] * 1024 / 1e9}


def gpu_name():
    """Returns the name and driver of the first GPU."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    return subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()[0]


def count_gpus():
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout
    return len(listed.splitlines())


def folder_bytes(folder):
    return sum(file.stat().st_size for file in (folder / "train").rglob("*") if file.is_file()) or sum(
        file.stat().st_size for file in folder.rglob("*") if file.is_file()
    )


def losses(run):
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [line["loss"] for line in lines if line["kind"] == "train"]


def digest(run):
    with open(run / "model" / "model.safetensors", "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_losses(node, folder):
    """Compares losses on all GPUs with those on one, and two trainings with each other."""
    runs = {}
    for name, ranks in [("one", 1), ("all", node.gpus), ("again", node.gpus)]:
        run = folder / name
        settings = [f"data.dir={node.data / 'small'}", "train.max_steps=100", *SMALL]
        node.run(["train", *node.options("dlrm", ranks, settings), "--run-dir", run, "--quiet"], 60)
        runs[name] = run
    one, several = losses(runs["one"]), losses(runs["all"])
    if len(one) != 100 or len(several) != 100:
        raise Failed(f"{len(one)} and {len(several)} losses instead of 100")
    difference = max(abs(a - b) / abs(a) for a, b in zip(one, several))
    same = digest(runs["all"]) == digest(runs["again"]) and several == losses(runs["again"])
    node.found["checks"]["losses_apart"] = difference
    node.found["checks"]["same_bits"] = same
    verdict = difference <= 1e-4 and same
    return verdict, f"losses differ by {difference:.1e}, two trainings have {'the same' if same else 'DIFFERENT'} bits"


def check_endurance(node, folder):
    """Checks that 2000 steps finish and the loss falls."""
    timing = node.time("dlrm", node.gpus, 55296, steps=2000)
    begin, end = timing["loss"]
    return end < begin, f"2000 steps, loss {begin:.4f} to {end:.4f}, p99 {timing['ms_p99']:.3f} ms"


def check_killed(node, folder):
    """Kills a process, and checks that the others end with an error."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = [f"data.dir={node.data / 'small'}", "train.epochs=100000", *SMALL]
    processes = []
    for number in range(node.gpus):
        member = ["--process", str(number), "--processes", str(node.gpus), "--meet", f"127.0.0.1:{port}"]
        run = ["--run-dir", folder / "killed"] if number == 0 else []
        arguments = [node.binary, "train", *node.options("dlrm", node.gpus, settings), *member, *run, "--quiet"]
        environment = {**os.environ, "LOCAL_RANK": str(number)}
        with open(folder / f"process-{number}.txt", "w") as log:
            processes.append(subprocess.Popen(arguments, cwd=ROOT, env=environment, stdout=log, stderr=log))
    try:
        began = time.monotonic()
        metrics = folder / "killed" / "metrics.jsonl"
        while not metrics.exists() or not metrics.read_text():
            if time.monotonic() - began > node.left(60) or any(process.poll() for process in processes):
                raise Failed("training with several processes did not start: " + last_line(folder, 0))
            time.sleep(0.1)
        victim = node.gpus - 1
        processes[victim].send_signal(signal.SIGKILL)
        began = time.monotonic()
        others = processes[:victim]
        while any(process.poll() is None for process in others):
            if time.monotonic() - began > node.left(90):
                raise Failed("the others still ran after 90 s")
            time.sleep(0.1)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    took = time.monotonic() - began
    codes = [process.returncode for process in others]
    message = last_line(folder, 0)
    node.found["checks"]["killed_details"] = {"seconds": took, "exit_codes": codes, "message": message}
    return took <= 60 and all(codes), f"the others ended after {took:.1f} s with exit codes {codes}: {message}"


def last_line(folder, number):
    """Returns the last line that a process printed."""
    lines = (folder / f"process-{number}.txt").read_text().split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "no output")


def described(timing):
    """Formats a timing as a row of the table."""
    reader = f"{timing['reader_gb_per_s']:.2f} GB/s, waits {100 * timing['reader_wait_share']:.0f}%"
    rate = f"{timing['million_samples_per_second']:6.1f} M/s"
    name = f"{timing['job']}{', all rows' if timing['full'] else ''}"
    return (
        f"{name:16} {timing['gpus']:2} GPUs  batch {timing['batch']:6}  {timing['ms']:7.3f} ms  "
        f"(p10 {timing['ms_p10']:.3f}, p99 {timing['ms_p99']:.3f})  {rate}  {reader}"
    )


def time_records(node):
    """Times the jobs with published figures."""
    for job, batch, record, who, aim in RECORDS:
        for full in [False, True]:
            timing = attempt(f"{job} {batch}", lambda: node.time(job, node.gpus, batch, full=full))
            if timing:
                timing.update(record=record, record_of=who, aim=aim)
                target = f"  target {aim:.2f}" if not full else ""
                print(f"  {described(timing)}  record {record:.3f} ({who}){target}", flush=True)


def time_scaling(node):
    """Times strong and weak scaling over the number of GPUs."""
    counts = [count for count in (1, 2, 4, 8, 16) if count <= node.gpus]
    for job, batch_per_gpu in BATCH_PER_GPU.items():
        base = {}
        for count in counts:
            for name, batch in [("strong", SCALING_BATCH), ("weak", count * batch_per_gpu)]:
                timing = attempt(f"{job} on {count}", lambda: node.time(job, count, batch))
                if not timing:
                    continue
                timing["scaling"] = name
                rate = timing["million_samples_per_second"] / count
                base.setdefault(name, rate)
                timing["efficiency"] = rate / base[name]
                print(f"  {described(timing)}  {name}: {100 * timing['efficiency']:.0f}% of one GPU's rate", flush=True)


def time_placements(node):
    """Times the placements of tables."""
    for placement in PLACEMENTS:
        settings = [f"embedding.placement={placement}"]
        timing = attempt(placement, lambda: node.time("dlrm", node.gpus, 55296, settings, resident=True))
        if timing:
            timing["placement"] = placement
            print(f"  dlrm, {placement:12} batch  55296  {timing['ms']:7.3f} ms, resident batches", flush=True)


def print_phases(node):
    """Prints the phases of the record jobs, and the host resources that these use."""
    for timing in node.found["timings"]:
        if timing.get("aim") and not timing["full"]:
            phases = ", ".join(f"{name} {1000 * ms:.0f}" for name, ms in timing["phases"].items())
            print(f"  {timing['job']}, batch {timing['batch']}, us, each measured alone: {phases}")
            print(f"    host: {timing['host_threads']} threads, {timing['host_gb']:.1f} GB of memory", flush=True)


def attempt(name, run):
    """Returns the result of `run`, or prints its failure and returns None."""
    try:
        return run()
    except Failed as failed:
        print(f"  {name}: {failed}", flush=True)
        return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", default=ROOT / "target" / "release" / "rankine", type=pathlib.Path)
    parser.add_argument("--gpus", type=int, help="number of GPUs (default: all)")
    parser.add_argument("--data", default=pathlib.Path("/dev/shm"), type=pathlib.Path,
                        help="parent of the temporary datasets, in memory")
    parser.add_argument("--steps", type=int, default=500, help="steps to time per job")
    parser.add_argument("--seconds", type=float, default=570, help="time limit; no part starts after it")
    parser.add_argument("--json", type=pathlib.Path, help="file for all figures")
    parser.add_argument("--only", default="checks,records,scaling,placements", help="parts to run")
    arguments = parser.parse_args()
    arguments.gpus = arguments.gpus or count_gpus()
    parts, sound = arguments.only.split(","), True
    began, node = time.monotonic(), Node(arguments)
    node.data.mkdir(parents=True, exist_ok=True)
    print(f"{node.gpus} x {node.found['device']}", flush=True)
    try:
        if "checks" in parts:
            for name, check in [("losses", check_losses), ("endurance", check_endurance), ("killed", check_killed)]:
                with tempfile.TemporaryDirectory(dir=node.data) as folder:
                    verdict = attempt(name, lambda: check(node, pathlib.Path(folder)))
                passed, details = verdict or (False, "see above")
                node.found["checks"][name] = passed
                sound &= passed
                print(f"{name}: {'passed' if passed else 'FAILED'}: {details}", flush=True)
        for name, part in [("records", time_records), ("scaling", time_scaling), ("placements", time_placements)]:
            if name in parts:
                print(f"{name}:", flush=True)
                part(node)
        print("phases:", flush=True)
        print_phases(node)
    finally:
        shutil.rmtree(node.data, ignore_errors=True)
        node.found["seconds"] = time.monotonic() - began
        if arguments.json:
            arguments.json.write_text(json.dumps(node.found, indent=1) + "\n")
    print(f"done in {node.found['seconds']:.0f} s")
    return 0 if sound else 1


if __name__ == "__main__":
    sys.exit(main())
