"""Compares Rankine and PyTorch on attention over sequences: samples per second, and the AUC of whole trainings.

Run it from the root of the repository after `cargo build --release`, with a Python that has PyTorch and NumPy:

    python benchmarks/sequences.py               # the speed on two processors
    python benchmarks/sequences.py --auc 1,2,3   # the AUC of din, mean and PyTorch's din; seeds of data and weights
    python benchmarks/sequences.py --device cuda --set train.batch_size=16384 --set model.embedding_dim=32 \
        --set "model.bottom_mlp=[16, 32]" --set train.epochs=6 --steps 2000   # the speed on a GPU

Both train the job of configs/sequences.toml with the same samples in the same order (benchmarks/pytorch_din.py).
Rankine's rate is the mean of a whole run, reading included. PyTorch's samples are in memory; its rate follows from its
median step, of the fastest of its variants: eager or compiled, one or two threads; on a GPU, eager or compiled, fp32
or bf16, with its samples in the GPU's memory.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
JOB = ROOT / "configs" / "sequences.toml"
# Steps in which PyTorch's rate is measured: three times as many if its variant is the fastest.
PYTORCH_STEPS = 100
MEAN = 'attention=[{ kind = "mean", sequence = "S1" }]'


def rankine(arguments, run, *settings):
    """Trains, and returns the summary of the run."""
    settings = [f"device.kind={arguments.device}", "train.shuffle=false", *arguments.set, *settings]
    sets = [word for setting in settings for word in ("--set", setting)]
    subprocess.run([arguments.binary, "train", JOB, *sets, "--run-dir", run, "--quiet"], check=True, cwd=ROOT,
                   stdout=subprocess.DEVNULL)
    return json.loads((run / "summary.json").read_text())


def pytorch(arguments, run, *words):
    """Returns what PyTorch prints about a training of the job of a run."""
    script = ROOT / "benchmarks" / "pytorch_din.py"
    command = [sys.executable, script, run / "job.toml", "--device", arguments.device, *words]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def variants_of(device):
    kinds = ([], ["--compile"])
    if device == "cuda":
        return [["--threads", "1", *kind, *precision] for kind in kinds for precision in ([], ["--bf16"])]
    counts = sorted({1, len(os.sched_getaffinity(0))})
    return [["--threads", str(count), *kind] for count in counts for kind in kinds]


def speed(arguments, folder):
    steps = [f"train.max_steps={arguments.steps}"]
    rankine(arguments, folder / "first", *steps)  # Generates the dataset.
    variants = variants_of(arguments.device)
    rate = "samples_per_second_of_median_step"
    rates = []
    for variant in variants:
        try:
            rates.append(pytorch(arguments, folder / "first", "--steps", str(PYTORCH_STEPS), *variant)[rate])
            print(f"PyTorch {' '.join(variant)}: {rates[-1]} samples/s", flush=True)
        except subprocess.CalledProcessError:  # torch.compile needs a C++ compiler.
            rates.append(0)
            print(f"PyTorch {' '.join(variant)} failed", flush=True)
    best = variants[rates.index(max(rates))]
    rounds = []
    for number in range(arguments.rounds):
        run = folder / f"round-{number}"
        ours = round(rankine(arguments, run, *steps)["train"]["samples_per_second"])
        theirs = pytorch(arguments, run, "--steps", str(min(arguments.steps, 3 * PYTORCH_STEPS)), *best)[rate]
        rounds.append((ours, theirs, ours / theirs))
        print(f"round {number + 1}: Rankine {ours}, PyTorch {theirs}, ratio {ours / theirs:.2f}", flush=True)
    ours, theirs, ratio = (statistics.median(values) for values in zip(*rounds))
    print(f"medians: Rankine {ours:.0f}, PyTorch {theirs:.0f}, of ratios {ratio:.2f}")


def aucs(arguments, folder):
    for seed in arguments.auc.split(","):
        sets = [f"seed={seed}", f"data.generate.seed={seed}", f"data.dir=data/sequences-{seed}"]
        din = rankine(arguments, folder / f"din-{seed}", *sets)
        mean = rankine(arguments, folder / f"mean-{seed}", *sets, MEAN)["eval"]
        theirs = pytorch(arguments, folder / f"din-{seed}", *arguments.variant.split())
        best, auc = din["eval"]["auc_achievable"], din["eval"]["auc"]
        print(f"seed {seed}: best possible {best:.5f}, din {auc:.5f}, mean {mean['auc']:.5f}, "
              f"PyTorch's din {theirs['auc']:.5f}", flush=True)
        rates = [round(din["train"]["samples_per_second"]), theirs["samples_per_second_of_median_step"]]
        print(f"samples/s: Rankine {rates[0]}, PyTorch {rates[1]}, ratio {rates[0] / rates[1]:.2f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", default=ROOT / "target" / "release" / "rankine", type=pathlib.Path)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of the job")
    parser.add_argument("--cores", default="0,1", help="processors to run on with --device cpu, separated by commas")
    parser.add_argument("--rounds", type=int, default=5, help="times that each trains")
    parser.add_argument("--steps", type=int, default=500, help="steps per round")
    parser.add_argument("--auc", metavar="SEEDS", help="train whole jobs instead, with these seeds")
    parser.add_argument("--variant", default="--compile", help="PyTorch's variant for --auc")
    arguments = parser.parse_args()
    if arguments.device == "cpu":
        os.sched_setaffinity(0, {int(core) for core in arguments.cores.split(",")})  # Children inherit it.
    arguments.binary = arguments.binary.resolve()
    with tempfile.TemporaryDirectory() as folder:
        (aucs if arguments.auc else speed)(arguments, pathlib.Path(folder))


if __name__ == "__main__":
    main()
