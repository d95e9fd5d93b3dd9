"""Measures the GPU figures of docs/benchmarks.md again, and fails if one is more than 3% slower.

Run it from the root of the repository on a machine with H200 GPUs, after `cargo build --release --features cuda`:

    python3 benchmarks/guard.py                  # every figure for as many GPUs as the machine has
    python3 benchmarks/guard.py --only fp8       # those whose name contains a text
    python3 benchmarks/guard.py --against OLD    # compares with another build of the command, in turns

Figures are medians of 1000 steps with resident batches in milliseconds, as docs/benchmarks.md gives them. On other GPUs
the script prints what it measures and fails, because the figures do not apply. A figure that is more than 3% faster is
reported, too: then update the document. With --against, the builds take turns three times, on any GPU; it fails if the
median of a figure is more than 0.5% slower than the other build's. Exits with 1 if a figure is missed, with 2 if
nothing could be compared.
"""

import argparse
import json
import pathlib
import re
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs" / "benchmarks.md"
JOBS = {"DLRM": "dlrm", "DLRM-DCNv2": "dcnv2", "DCNv2": "dcnv2"}
PRECISIONS = ("fp8", "fp16")
TOLERANCE = 0.03
# Between builds in turns.
TOLERANCE_IN_TURNS = 0.005


def tables(text):
    """Yields the tables of a document, each as a list of rows of cells."""
    rows = []
    for line in [*text.splitlines(), ""]:
        if line.startswith("|"):
            rows.append([cell.strip() for cell in line.strip("|").split("|")])
        elif rows:
            yield rows
            rows = []


def number(cell):
    """Returns the number at the start of a cell, or None."""
    found = re.match(r"\**(\d+\.\d+)", cell)
    return float(found[1]) if found else None


def figures(text):
    """Returns the figures of the document: (job, GPUs, precision) and milliseconds."""
    section = text.split("## GPU training", 1)[1].split("\n## ", 1)[0]
    found = {}
    for (heading, _, *rows) in tables(section):
        if heading[:3] == ["model", "GPUs", "Rankine"]:
            for model, gpus, cell, *_ in rows:
                found[JOBS[model], int(gpus), "bf16"] = number(cell)
        elif heading[0] == "mode":
            columns = [re.fullmatch(r"(\S+), (\d+) GPUs?", column) for column in heading[1:]]
            for mode, *cells in rows:
                if mode not in PRECISIONS:
                    continue
                for column, cell in zip(columns, cells):
                    if number(cell) is not None:
                        found[JOBS[column[1]], int(column[2]), mode] = number(cell)
    return found


def measure(binary, figure, steps, build=""):
    """Returns the milliseconds per step of a figure; each `build` has data of its own, since formats may differ."""
    job, gpus, precision = figure
    command = [binary, "bench", "train", ROOT / "configs" / f"bench-{job}.toml", "--resident", "--json"]
    command += ["--steps", str(steps), "--set", "device.kind=cuda", "--set", f"device.ranks={gpus}"]
    command += ["--set", f"device.precision={precision}", "--set", f"data.dir=/dev/shm/rankine-guard-{build}{job}"]
    # Three resident batches need no more.
    command += ["--set", "data.generate.samples=262144"]
    ran = subprocess.run(command, capture_output=True, text=True)
    if ran.returncode:
        sys.exit(f"{' '.join(map(str, command))}: exit code {ran.returncode}\n{ran.stderr.strip()}")
    return json.loads(ran.stdout)["ms_per_iteration"]


def in_turns(args, figure):
    """Returns the medians of the other build and of this one."""
    builds = {"other-": args.against, "this-": args.binary}
    found = {build: [] for build in builds}
    for _ in range(args.rounds):
        for build, binary in builds.items():
            found[build].append(measure(binary, figure, args.steps, build))
    return [statistics.median(of_build) for of_build in found.values()]


def gpus_here():
    """Returns the names of the GPUs of this machine."""
    query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, check=True).stdout.split("\n")[:-1]
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"no GPU was found: {error}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--binary", type=pathlib.Path, default=ROOT / "target" / "release" / "rankine")
    parser.add_argument("--only", metavar="TEXT", default="", help="only figures whose name contains this text")
    parser.add_argument("--steps", type=int, default=1000, help="timed steps per figure (default: 1000)")
    parser.add_argument("--against", metavar="OLD", type=pathlib.Path, help="compare with this build, in turns")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each build (default: 3)")
    args = parser.parse_args()
    names = gpus_here()
    documented = figures(DOCUMENT.read_text())
    name_of = {figure: f"{figure[0]}, {figure[1]} GPU, {figure[2]}" for figure in documented}
    chosen = {figure: ms for figure, ms in documented.items()
              if figure[1] <= len(names) and args.only in name_of[figure]}
    if not chosen:
        print(f"no figure of {DOCUMENT.name} is for {len(names)} GPUs and contains `{args.only}`")
        sys.exit(2)
    if args.against:
        source, tolerance, faster = "other", TOLERANCE_IN_TURNS, "faster"
    else:
        source, tolerance, faster = "document", TOLERANCE, "faster: update the document"
    print(f"{'figure':24} {source:>9} {'here':>9} {'change':>8}", flush=True)
    missed = []
    for figure, expected in chosen.items():
        if args.against:
            expected, ms = in_turns(args, figure)
        else:
            ms = measure(args.binary, figure, args.steps)
        change = ms / expected - 1
        verdict = "slower" if change > tolerance else faster if change < -tolerance else ""
        if change > tolerance:
            missed.append(name_of[figure])
        print(f"{name_of[figure]:24} {expected:9.3f} {ms:9.3f} {100 * change:+7.2f}% {verdict}", flush=True)
    if not args.against and not all("H200" in name for name in names):
        print(f"the figures are for NVIDIA H200; this is {names[0]}")
        sys.exit(2)
    if missed:
        sys.exit(f"{len(missed)} of {len(chosen)} figures are missed: {'; '.join(missed)}")


if __name__ == "__main__":
    main()
