"""What checkpoints cost a training: a job without them against the same job with one every so many steps.

Run it from the root of the repository, behind `cargo build --release`:

    python3 benchmarks/checkpoints.py JOB [--every 100] [--count 4] [--rounds 3] [SET ...]

Runs take turns. Of each this counts, from the middle between the first checkpoint and the second one on, over as many
steps as `count` checkpoints take: seconds of a processor in user space and in the kernel, so that other work on the
machine counts little, and seconds on the clock. What the first checkpoint alone takes, memory for the copies, is left
out. A run is ended then, and its folder removed. SET are settings such as device.kind=cuda, of all runs; those that
begin with checkpoint. are of the runs with checkpoints alone.
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
    """Seconds in user space, in the kernel and on the clock between the two steps, and what was told of checkpoints."""
    every = arguments.every
    begin, end = every + every // 2, (arguments.count + 1) * every + every // 2
    folder = pathlib.Path(tempfile.mkdtemp(prefix="checkpoints-", dir=arguments.dir))
    settings = [f"train.max_steps={end + every}", f"train.log_every_steps={max(1, every // 10)}", *sets]
    command = [arguments.rankine, "train", arguments.job, "--run-dir", str(folder / "run")]
    with open(folder / "told", "w") as told:
        process = subprocess.Popen(
            command + [word for setting in settings for word in ("--set", setting)],
            stdout=subprocess.DEVNULL,
            stderr=told,
        )
    marks = []
    while len(marks) < 2:
        time.sleep(0.01)
        if process.poll() is not None:
            raise SystemExit((folder / "told").read_text())
        if last_step(folder / "run" / "metrics.jsonl") >= (begin, end)[len(marks)]:
            fields = pathlib.Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
            ticks = os.sysconf("SC_CLK_TCK")
            marks.append((int(fields[11]) / ticks, int(fields[12]) / ticks, time.monotonic()))
    process.send_signal(signal.SIGKILL)
    process.wait()
    lines = [line for line in (folder / "told").read_text().splitlines() if "checkpoint saved" in line]
    shutil.rmtree(folder)
    return [after - before for before, after in zip(*marks)], lines


def last_step(metrics):
    try:
        lines = metrics.read_text().split("\n")[:-1]
    except FileNotFoundError:
        return 0
    return json.loads(lines[-1])["step"] if lines else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job")
    parser.add_argument("sets", nargs="*", metavar="SET")
    parser.add_argument("--every", type=int, default=100)
    parser.add_argument("--count", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rankine", default="target/release/rankine")
    parser.add_argument("--dir", help="where runs have their folders, for a time")
    arguments = parser.parse_intermixed_args()
    of_checkpoints = [setting for setting in arguments.sets if setting.startswith("checkpoint.")]
    common = [setting for setting in arguments.sets if setting not in of_checkpoints]
    saving = [f"checkpoint.every_steps={arguments.every}", *of_checkpoints]
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
