"""Measures what checkpoints cost: a job without checkpoints and the same job with one every --every steps.

Run it from the root of the repository after `cargo build --release`:

    python3 benchmarks/checkpoints.py JOB [--every 100] [--count 4] [--rounds 3] [SET ...]

Runs with and without checkpoints alternate. The script measures from the middle between the first and the second
checkpoint, over --count checkpoints: processor seconds in user space and in the kernel, which other work on the machine
changes little, and seconds on the clock. The first checkpoint is excluded, since it also allocates memory for the
copies. Then the run is killed and its folder removed.

SET is a setting such as device.kind=cuda. Settings that start with checkpoint. apply only to the runs with checkpoints,
all others to every run.
"""

import argparse
import json
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import tempfile
import time


def measured(arguments, sets):
    """Returns the seconds in user space, in the kernel and on the clock, and the messages about checkpoints."""
    every = arguments.every
    begin, end = every + every // 2, (arguments.count + 1) * every + every // 2
    folder = pathlib.Path(tempfile.mkdtemp(prefix="checkpoints-", dir=arguments.dir))
    settings = [f"train.max_steps={end + every}", f"train.log_every_steps={max(1, every // 10)}", *sets]
    command = [arguments.rankine, "train", arguments.job, "--run-dir", str(folder / "run")]
    with open(folder / "log", "w") as log:
        process = subprocess.Popen(
            command + [word for setting in settings for word in ("--set", setting)],
            stdout=subprocess.DEVNULL,
            stderr=log,
        )
    marks = []
    while len(marks) < 2:
        time.sleep(0.01)
        if process.poll() is not None:
            raise SystemExit((folder / "log").read_text())
        if last_step(folder / "run" / "metrics.jsonl") >= (begin, end)[len(marks)]:
            fields = pathlib.Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
            ticks = os.sysconf("SC_CLK_TCK")
            marks.append((int(fields[11]) / ticks, int(fields[12]) / ticks, time.monotonic()))
    process.send_signal(signal.SIGKILL)
    process.wait()
    lines = [line for line in (folder / "log").read_text().splitlines() if "checkpoint saved" in line]
    shutil.rmtree(folder)
    return [after - before for before, after in zip(*marks)], lines


def last_step(metrics):
    """Returns the last logged step, or 0 if there is none yet."""
    try:
        lines = metrics.read_text().split("\n")[:-1]
    except FileNotFoundError:
        return 0
    return json.loads(lines[-1])["step"] if lines else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", help="the job file")
    parser.add_argument("sets", nargs="*", metavar="SET", help="KEY=VALUE, as for rankine train --set")
    parser.add_argument("--every", type=int, default=100, help="steps between checkpoints")
    parser.add_argument("--count", type=int, default=4, help="checkpoints to measure per run")
    parser.add_argument("--rounds", type=int, default=3, help="pairs of runs")
    parser.add_argument("--rankine", default="target/release/rankine", help="the program")
    parser.add_argument("--dir", help="parent of the temporary run folders")
    arguments = parser.parse_intermixed_args()
    checkpoint_sets = [setting for setting in arguments.sets if setting.startswith("checkpoint.")]
    common = [setting for setting in arguments.sets if setting not in checkpoint_sets]
    saving = [f"checkpoint.every_steps={arguments.every}", *checkpoint_sets]
    costs = []
    for _ in range(arguments.rounds):
        without, _ = measured(arguments, common)
        saved, lines = measured(arguments, common + saving)
        cost = [(more - less) / arguments.count for more, less in zip(saved, without)]
        costs.append(cost)
        print("per checkpoint: user {:.2f} s, system {:.2f} s, on the clock {:.2f} s".format(*cost), flush=True)
        print("\n".join(lines), flush=True)
    medians = [statistics.median(column) for column in zip(*costs)]
    print("medians: user {:.2f} s, system {:.2f} s, on the clock {:.2f} s".format(*medians))


if __name__ == "__main__":
    main()
