"""Compares the training speed of Rankine and PyTorch on the same processors: prints both medians and their ratio.

Run it from the root of the repository after `cargo build --release`, with a Python that has PyTorch:

    python benchmarks/against_pytorch.py
    python benchmarks/against_pytorch.py --precision bf16  # on a CPU with AVX512-BF16; PyTorch under autocast

The script first finds PyTorch's fastest variant: eager or compiled, one or two threads, tables merged into one or one
table per column. Then Rankine and that variant train in turn. PyTorch's batches are in memory, and its rate is that of
its median step. Rankine trains configs/pytorch-comparison.toml, and its rate is that of a whole run, reading included.
"""

import argparse
import itertools
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent


def pytorch(variant, steps):
    """Returns the samples per second of one PyTorch process, from its median step."""
    script = ROOT / "benchmarks" / "pytorch_dlrm.py"
    output = subprocess.run(
        [sys.executable, script, "--steps", str(steps), *variant], check=True, stdout=subprocess.PIPE, text=True
    )
    return json.loads(output.stdout)["samples_per_second_of_median_step"]


def rankine(binary, threads, precision):
    """Returns the samples per second of one run of Rankine."""
    with tempfile.TemporaryDirectory() as folder:
        run = pathlib.Path(folder) / "run"
        job = ROOT / "configs" / "pytorch-comparison.toml"
        settings = ["--set", f"device.threads={threads}", "--set", f"device.precision={precision}"]
        subprocess.run(
            [binary, "train", job, "--set", "device.kind=cpu", *settings, "--run-dir", run],
            check=True, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
        summary = json.loads((run / "summary.json").read_text())
        if summary["device"].get("precision", "fp32") != precision:
            sys.exit(f"this CPU does not compute in {precision}")
        return round(summary["train"]["samples_per_second"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", default=ROOT / "target" / "release" / "rankine", type=pathlib.Path)
    parser.add_argument("--cores", default="0,1", help="processors to run on, separated by commas")
    parser.add_argument("--rounds", type=int, default=7, help="times that each trains")
    parser.add_argument("--steps", type=int, default=488, help="PyTorch steps per round")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--variant", help="PyTorch's fastest variant, in words of pytorch_dlrm.py; without it, measured")
    arguments = parser.parse_args()
    cores = {int(core) for core in arguments.cores.split(",")}
    os.sched_setaffinity(0, cores)  # Children inherit it.

    threads = sorted({1, len(cores)})
    bf16 = ["--bf16"] if arguments.precision == "bf16" else []
    variants = [
        ["--threads", str(count), "--tables", tables, *compiled, *bf16]
        for count, tables, compiled in itertools.product(threads, ["merged", "separate"], [[], ["--compile"]])
    ]
    if arguments.variant:
        variants = [[*arguments.variant.split(), *bf16]]
    scores = []
    for variant in variants:
        scores.append(pytorch(variant, 100))
        print(f"PyTorch {' '.join(variant)}: {scores[-1]} samples/s", flush=True)
    best = variants[scores.index(max(scores))]
    print(f"PyTorch's fastest: {' '.join(best)}", flush=True)

    binary, precision = arguments.binary.resolve(), arguments.precision
    rankine(binary, len(cores), precision)  # Generates the dataset.
    rates = {"Rankine": [], "PyTorch": []}
    for number in range(arguments.rounds):
        rates["Rankine"].append(rankine(binary, len(cores), precision))
        rates["PyTorch"].append(pytorch(best, arguments.steps))
        ours, theirs = rates["Rankine"][-1], rates["PyTorch"][-1]
        print(f"round {number + 1}: Rankine {ours}, PyTorch {theirs}, ratio {ours / theirs:.2f}", flush=True)
    medians = {name: statistics.median(samples) for name, samples in rates.items()}
    ratio = statistics.median(ours / theirs for ours, theirs in zip(rates["Rankine"], rates["PyTorch"]))
    print(f"medians: Rankine {medians['Rankine']:.0f}, PyTorch {medians['PyTorch']:.0f}, of ratios {ratio:.2f}")


if __name__ == "__main__":
    main()
