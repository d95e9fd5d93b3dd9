"""Compares the mean AUC of precisions over the same seeds, and prints the difference from the first precision.

Run it from the root of the repository on a machine with a GPU, after `cargo build --release --features cuda`:

    python3 benchmarks/precision.py

Each run trains configs/precision.toml with another seed for weights and sample order, and evaluates on the job's
evaluation part. The precision "cpu" is fp32 on the CPU, "cpu-bf16" is bf16 there, and "bf16x4" is bf16 on four ranks.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent


def auc(binary, job, settings):
    """Returns the AUC of one run."""
    with tempfile.TemporaryDirectory() as folder:
        run = pathlib.Path(folder) / "run"
        options = [option for setting in settings for option in ("--set", setting)]
        subprocess.run(
            [binary, "train", job, "--run-dir", run, *options],
            check=True, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
        return json.loads((run / "summary.json").read_text())["eval"]["auc"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", default=ROOT / "target" / "release" / "rankine", type=pathlib.Path)
    parser.add_argument("--job", default=ROOT / "configs" / "precision.toml", type=pathlib.Path)
    parser.add_argument("--precisions", default="fp32,tf32,bf16",
                        help="separated by commas; the first is the reference")
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds, from 1 on")
    parser.add_argument("--set", action="append", default=[],
                        help="KEY=VALUE, as for rankine train --set; may be repeated")
    arguments = parser.parse_args()
    base = None
    for precision in arguments.precisions.split(","):
        name, _, ranks = precision.partition("x")
        on_gpus = ["device.kind=cuda", f"device.precision={name}", f"device.ranks={ranks or 1}"]
        on_cpus = {"cpu": "fp32", "cpu-bf16": "bf16"}.get(name)
        device = ["device.kind=cpu", f"device.precision={on_cpus}"] if on_cpus else on_gpus
        scores = [
            auc(arguments.binary.resolve(), arguments.job.resolve(), [*device, f"seed={seed}", *arguments.set])
            for seed in range(1, arguments.seeds + 1)
        ]
        mean = statistics.mean(scores)
        base = mean if base is None else base
        listed = " ".join(f"{score:.5f}" for score in scores)
        print(f"{precision:6} AUC {mean:.6f}, {mean - base:+.6f} from the first; seeds: {listed}", flush=True)


if __name__ == "__main__":
    main()
