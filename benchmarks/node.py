"""All that Rankine promises of the GPUs of one node, checked and then timed, in ten minutes: one table, and JSON.

Run it from the root of the repository on a machine with GPUs, behind `cargo build --release --features cuda`:

    python3 benchmarks/node.py --json node.json

First it must be right: losses over all GPUs equal those of one (fp32, 1e-4 relative over 100 steps), two trainings
leave the same bits, 2000 iterations come to an end, and a rank that is killed ends the job within 60 seconds. Then
it is timed: the jobs for which there are published figures, with tables capped and full, reading; more GPUs at the
same batch and at the same batch a GPU; and where rows lie. Datasets of 10 GB are made in a folder of --data, which
should be in memory, and removed in the end. Every part says what it found as soon as it has; one that fails, or for
which no time is left, says so, and the others go on.
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

# Published for eight GPUs, milliseconds an iteration: the job, the batch, who has it, and what is to be reached.
RECORDS = [
    ("dlrm", 55296, 0.855, "HugeCTR, 8 x H100, MLPerf v2.1", 0.50),
    ("dcnv2", 55296, 3.25, "HugeCTR, 8 x H200, MLPerf v4.0", 2.3),
    ("dcnv2", 65536, 3.71, "HPE, 8 x H200, MLPerf v5.0", 2.6),
]
# The batch a GPU of weak scaling.
BATCH_A_GPU = {"dlrm": 16384, "dcnv2": 8192}
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
    """What a part could not do."""


class Node:
    """The machine, the command, and what is known so far."""

    def __init__(self, arguments):
        self.binary, self.gpus = arguments.binary.resolve(), arguments.gpus
        self.data = arguments.data / "rankine-node"
        self.steps = arguments.steps
        self.until = time.monotonic() + arguments.seconds
        self.found = {"gpus": self.gpus, "device": gpu_name(), "checks": {}, "timings": []}

    def left(self, most):
        """The seconds that something may take, of `most` at most."""
        left = self.until - time.monotonic()
        if left < 5:
            raise Failed("no time is left")
        return min(most, left)

    def options(self, job, ranks, settings):
        """The arguments that name a benchmark's job with settings, over so many GPUs."""
        settings = ["device.kind=cuda", f"device.ranks={ranks}", *settings]
        config = ROOT / "configs" / f"bench-{job}.toml"
        return [config, *(option for setting in settings for option in ("--set", setting))]

    def run(self, arguments, most):
        """What the command prints, and the resources that it takes."""
        watch = Watch(self.binary, arguments)
        try:
            output, errors = watch.process.communicate(timeout=self.left(most))
        except subprocess.TimeoutExpired:
            watch.process.kill()
            raise Failed(f"not done after {most:.0f} s") from None
        finally:
            watch.end()
        if watch.process.returncode:
            raise Failed(f"exit code {watch.process.returncode}: {errors.strip()[-400:]}")
        return output, watch.resources()

    def time(self, job, ranks, batch, settings=(), full=False, resident=False, steps=None):
        """An iteration of a job: what the benchmark tells, with the resources of the host."""
        folder = f"{job}-full" if full else job
        data = [f"data.dir={self.data / folder}", f"train.batch_size={batch}"]
        if full:
            data += [f"data.generate.rows_cap={ALL_ROWS}", "data.generate.samples=3932160"]
        arguments = ["bench", "train", *self.options(job, ranks, [*data, *settings]), "--json"]
        arguments += ["--steps", str(steps or self.steps), *(["--resident"] if resident else [])]
        output, resources = self.run(arguments, 120)
        bench = json.loads(output)
        told = {
            "job": job, "gpus": ranks, "batch": batch, "full": full, "settings": list(settings),
            "ms": bench["ms_per_iteration"], "ms_p10": bench["ms_p10"], "ms_p99": bench["ms_p99"],
            "million_samples_per_second": bench["samples_per_second"] / 1e6,
            "loss": [bench["loss_at_begin"], bench["loss_at_end"]],
            "phases": {phase["name"]: phase["ms"] for phase in bench["phases"]}, **resources,
        }
        reading = bench["input"].get("read")
        if reading:
            bytes_a_sample = folder_bytes(self.data / folder) / reading["samples"]
            told["reader_wait_share"] = reading["reader_wait_share"]
            told["reader_gb_per_s"] = bench["samples_per_second"] * bytes_a_sample / 1e9
        self.found["timings"].append(told)
        return told


class Watch:
    """A process with the most threads and memory that it has had, looked at ten times a second."""

    def __init__(self, binary, arguments):
        self.process = subprocess.Popen(
            [binary, *arguments], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.most = {"Threads": 0, "VmHWM": 0, "VmLck": 0, "VmPin": 0}
        self.done = threading.Event()
        self.thread = threading.Thread(target=self.look)
        self.thread.start()

    def look(self):
        status = pathlib.Path(f"/proc/{self.process.pid}/status")
        while not self.done.wait(0.1):
            with contextlib.suppress(OSError):
                for name, value in re.findall(r"^(\w+):\s+(\d+)", status.read_text(), re.MULTILINE):
                    if name in self.most:
                        self.most[name] = max(self.most[name], int(value))

    def end(self):
        self.done.set()
        self.thread.join()

    def resources(self):
        return {"host_threads": self.most["Threads"], "host_gb": self.most["VmHWM"] * 1024 / 1e9}


def gpu_name():
    """The GPUs' name and driver."""
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
    """Losses over all GPUs against those of one, and two trainings against each other."""
    runs = {}
    for name, ranks in [("one", 1), ("all", node.gpus), ("again", node.gpus)]:
        run = folder / name
        settings = [f"data.dir={node.data / 'small'}", "train.max_steps=100", *SMALL]
        node.run(["train", *node.options("dlrm", ranks, settings), "--run-dir", run, "--quiet"], 60)
        runs[name] = run
    one, several = losses(runs["one"]), losses(runs["all"])
    if len(one) != 100 or len(several) != 100:
        raise Failed(f"{len(one)} and {len(several)} losses, and not 100")
    apart = max(abs(a - b) / abs(a) for a, b in zip(one, several))
    same = digest(runs["all"]) == digest(runs["again"]) and several == losses(runs["again"])
    node.found["checks"]["losses_apart"] = apart
    node.found["checks"]["same_bits"] = same
    verdict = apart <= 1e-4 and same
    return verdict, f"losses {apart:.1e} apart, two trainings {'the same' if same else 'NOT the same'} to the bit"


def check_endurance(node, folder):
    """2000 iterations come to an end."""
    told = node.time("dlrm", node.gpus, 55296, steps=2000)
    begin, end = told["loss"]
    return end < begin, f"2000 iterations, loss {begin:.4f} to {end:.4f}, 1% from {told['ms_p99']:.3f} ms"


def check_killed(node, folder):
    """A rank that is killed ends the job; the others say so."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = [f"data.dir={node.data / 'small'}", "train.epochs=100000", *SMALL]
    processes = []
    for rank in range(node.gpus):
        place = ["--rank", str(rank), "--ranks", str(node.gpus), "--meet", f"127.0.0.1:{port}"]
        run = ["--run-dir", folder / "killed"] if rank == 0 else []
        arguments = [node.binary, "train", *node.options("dlrm", node.gpus, settings), *place, *run, "--quiet"]
        environment = {**os.environ, "LOCAL_RANK": str(rank)}
        with open(folder / f"rank-{rank}.txt", "w") as log:
            processes.append(subprocess.Popen(arguments, cwd=ROOT, env=environment, stdout=log, stderr=log))
    try:
        began = time.monotonic()
        metrics = folder / "killed" / "metrics.jsonl"
        while not metrics.exists() or not metrics.read_text():
            if time.monotonic() - began > node.left(60) or any(process.poll() for process in processes):
                raise Failed("training over processes did not begin: " + told_by(folder, 0))
            time.sleep(0.1)
        victim = node.gpus - 1
        processes[victim].send_signal(signal.SIGKILL)
        began = time.monotonic()
        others = processes[:victim]
        while any(process.poll() is None for process in others):
            if time.monotonic() - began > node.left(90):
                raise Failed("others went on for 90 s")
            time.sleep(0.1)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    took = time.monotonic() - began
    codes = [process.returncode for process in others]
    node.found["checks"]["killed"] = {"seconds": took, "codes": codes, "told": told_by(folder, 0)}
    return took <= 60 and all(codes), f"others ended after {took:.1f} s with {codes}: {told_by(folder, 0)}"


def told_by(folder, rank):
    """The last line that a rank printed."""
    lines = (folder / f"rank-{rank}.txt").read_text().split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "nothing was told")


def described(told):
    """A timing as a row of the table."""
    reader = f"{told['reader_gb_per_s']:.2f} GB/s, waits {100 * told['reader_wait_share']:.0f}%"
    rate = f"{told['million_samples_per_second']:6.1f} M/s"
    name = f"{told['job']}{', all rows' if told['full'] else ''}"
    return (
        f"{name:16} {told['gpus']:2} GPUs  batch {told['batch']:6}  {told['ms']:7.3f} ms  "
        f"(10% {told['ms_p10']:.3f}, 1% {told['ms_p99']:.3f})  {rate}  {reader}"
    )


def time_records(node):
    """The jobs with published figures."""
    for job, batch, record, who, aim in RECORDS:
        for full in [False, True]:
            told = attempt(f"{job} {batch}", lambda: node.time(job, node.gpus, batch, full=full))
            if told:
                told.update(record=record, record_of=who, aim=aim)
                beside = f"  aim {aim:.2f}" if not full else ""
                print(f"  {described(told)}  record {record:.3f} ({who}){beside}", flush=True)


def time_scaling(node):
    """More GPUs, at the same batch and at the same batch a GPU."""
    counts = [count for count in (1, 2, 4, 8, 16) if count <= node.gpus]
    for job, batch_a_gpu in BATCH_A_GPU.items():
        base = {}
        for count in counts:
            for name, batch in [("strong", SCALING_BATCH), ("weak", count * batch_a_gpu)]:
                told = attempt(f"{job} on {count}", lambda: node.time(job, count, batch))
                if not told:
                    continue
                told["scaling"] = name
                rate = told["million_samples_per_second"] / count
                base.setdefault(name, rate)
                told["efficiency"] = rate / base[name]
                print(f"  {described(told)}  {name}: {100 * told['efficiency']:.0f}% of one GPU's rate", flush=True)


def time_placements(node):
    """Where rows lie."""
    for placement in PLACEMENTS:
        settings = [f"embedding.placement={placement}"]
        told = attempt(placement, lambda: node.time("dlrm", node.gpus, 55296, settings, resident=True))
        if told:
            told["placement"] = placement
            print(f"  dlrm, {placement:12} batch  55296  {told['ms']:7.3f} ms, batches lie ready", flush=True)


def print_phases(node):
    """What an iteration of the record's jobs is made of, and what it takes of the host."""
    for told in node.found["timings"]:
        if told.get("aim") and not told["full"]:
            phases = ", ".join(f"{name} {1000 * ms:.0f}" for name, ms in told["phases"].items())
            print(f"  {told['job']}, batch {told['batch']}, us alone: {phases}")
            print(f"    {told['host_threads']} threads of the host, {told['host_gb']:.1f} GB of its memory", flush=True)


def attempt(name, run):
    """What comes of it; a failure is told, and the next part goes on."""
    try:
        return run()
    except Failed as failed:
        print(f"  {name}: {failed}", flush=True)
        return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", default=ROOT / "target" / "release" / "rankine", type=pathlib.Path)
    parser.add_argument("--gpus", type=int, help="how many; all by default")
    parser.add_argument("--data", default=pathlib.Path("/dev/shm"), type=pathlib.Path)
    parser.add_argument("--steps", type=int, default=500, help="iterations that are timed of each job")
    parser.add_argument("--seconds", type=float, default=570, help="after which nothing new is begun")
    parser.add_argument("--json", type=pathlib.Path, help="where all figures go")
    parser.add_argument("--only", default="checks,records,scaling,placements", help="the parts that are run")
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
                holds, told = verdict or (False, "it failed")
                node.found["checks"][name] = holds
                sound &= holds
                print(f"{name}: {'holds' if holds else 'DOES NOT HOLD'}: {told}", flush=True)
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
