"""Compares the time of a scoring call: Rankine's Python package, PyTorch and ONNX Runtime, with the same weights.

Run it from the root of the repository after `cargo build --release` and `pip install ./bindings/python`, with a Python
that has NumPy, and torch and onnxruntime if they are to be compared:

    python benchmarks/scoring.py --threads 1

RANKINE_BIN may name the command. It generates a dataset and trains JOB, whose model must be a dlrm with fp32 tables,
for a few steps, so that no weight is zero. By default, JOB is configs/pytorch-comparison.toml with at most 20,000 rows
per table: 13 dense columns, 26 tables with 262,000 rows of dim 16 (17 MB), and MLPs of 512-256-16 and 512-256-1 (2 MB).

The script loads the saved weights into a PyTorch module, which looks all columns up in one table: its fastest variant.
ONNX Runtime loads what `rankine export --format onnx` writes. It checks that all scores are within 1e-5 of Rankine's. Then the contenders take turns,
in another order each round. Each has its inputs as it likes them before the clock starts: NumPy arrays, or tensors for
PyTorch. They are rows of the dataset's evaluation part, other ones for each call of a round, so ids follow the power
law of `rankine generate`. Calls at the start of a turn are not measured: they bring the weights back into the caches.

Pin the script to as many processors as --threads, for example with `taskset`.
"""

import argparse
import gc
import importlib.util
import json
import math
import os
import pathlib
import platform
import subprocess
import tempfile
import time

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parent.parent
TOLERANCE = 1e-5
TARGET = 2.0
# Seconds between turns if there are several threads: idle threads of the last contender stop spinning.
PAUSE = 0.1


def trained(arguments, folder):
    """Generates the dataset and trains the job, if the folder does not have them. Returns both folders."""
    run, data = folder / "run", folder / "data"
    if not (run / "model" / "model.json").exists():
        sets = {
            "device.kind": "cpu",
            "data.dir": data,
            "data.generate.rows_cap": arguments.rows_cap,
            "data.generate.samples": 32 * 2048,
            "data.generate.eval_samples": arguments.samples,
            "train.batch_size": 2048,
            "train.max_steps": 32,
        }
        words = [word for key, value in sets.items() for word in ("--set", f"{key}={value}")]
        subprocess.run(
            [arguments.rankine, "train", arguments.job, *words, "--run-dir", run],
            check=True, stdout=subprocess.DEVNULL,
        )
    return run, data


class Weights:
    """The weights of a saved dlrm, as PyTorch takes them."""

    def __init__(self, model):
        spec = json.loads((model / "model.json").read_text())["content"]["spec"]
        content = (model / "model.safetensors").read_bytes()
        start = 8 + int.from_bytes(content[:8], "little")
        tensors = {}
        for name, entry in json.loads(content[8:start]).items():
            if name == "__metadata__":
                continue
            if entry["dtype"] != "F32":
                raise SystemExit(f"tensor {name} has the type {entry['dtype']}: expected fp32")
            begin, end = entry["data_offsets"]
            tensors[name] = np.frombuffer(content[start + begin : start + end], "<f4").reshape(entry["shape"])
        if spec["interaction"]["kind"] != "dot" or spec["wide"] or len(spec["heads"]) != 1 or not spec["bottom_mlp"]:
            raise SystemExit("the model is not a dlrm with dense columns and one head")
        self.bytes = sum(tensor.nbytes for tensor in tensors.values())
        self.bottom = [self.layer(tensors, f"bottom.{i}") for i in range(len(spec["bottom_mlp"]))]
        self.top = [self.layer(tensors, f"top.{i}") for i in range(len(spec["top_mlp"]) + 1)]
        tables = [tensors[f"embedding.{table['name']}"] for table in spec["tables"]]
        # All tables, one after another, and the first row of each column.
        self.table = np.concatenate(tables)
        firsts = np.cumsum([0] + [len(table) for table in tables[:-1]], dtype=np.int64)
        self.firsts = firsts[[feature["table"] for feature in spec["features"]]]
        # The products of distinct vectors among the squared matrix of all products.
        self.vectors = len(self.firsts) + 1
        rows, columns = np.tril_indices(self.vectors, -1)
        self.pairs = (rows * self.vectors + columns).astype(np.int64)

    @staticmethod
    def layer(tensors, name):
        return tensors[f"{name}.weight"], tensors[f"{name}.bias"]


class Rankine:
    name = "Rankine"

    def __init__(self, run, threads):
        import rankine

        self.ranker = rankine.Ranker.load(run, threads=threads)
        self.version = rankine.__version__

    def prepared(self, dense, ids):
        return dense, [np.ascontiguousarray(column) for column in ids.T]

    def score(self, request):
        return self.ranker.score_mapped(*request)


class PyTorch:
    def __init__(self, weights, threads, compiled):
        import torch

        def mlp(layers):
            modules = []
            for weight, bias in layers:
                module = torch.nn.Linear(weight.shape[1], weight.shape[0])
                module.weight.copy_(torch.tensor(weight))
                module.bias.copy_(torch.tensor(bias))
                modules += [module, torch.nn.ReLU()]
            return modules

        class Dlrm(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.bottom = torch.nn.Sequential(*mlp(weights.bottom))
                self.top = torch.nn.Sequential(*mlp(weights.top)[:-1], torch.nn.Sigmoid())
                self.table = torch.nn.Parameter(torch.tensor(weights.table))
                self.register_buffer("firsts", torch.tensor(weights.firsts))
                self.register_buffer("pairs", torch.tensor(weights.pairs))

            def forward(self, dense, ids):
                bottom = self.bottom(dense)
                embeddings = torch.nn.functional.embedding(ids + self.firsts, self.table)
                vectors = torch.cat([bottom.unsqueeze(1), embeddings], dim=1)
                products = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1).index_select(1, self.pairs)
                return self.top(torch.cat([bottom, products], dim=1)).squeeze(1)

        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)
        self.torch = torch
        self.version = torch.__version__
        self.name = "PyTorch, compiled" if compiled else "PyTorch, eager"
        self.model = Dlrm().eval()
        if compiled:
            import torch._inductor.config

            # Makes the weights constants, packed for the matrix products.
            torch._inductor.config.freezing = True
            self.model = torch.compile(self.model, dynamic=False, fullgraph=True)

    def prepared(self, dense, ids):
        return self.torch.from_numpy(dense), self.torch.from_numpy(ids)

    def score(self, request):
        return self.model(*request).numpy()


class OnnxRuntime:
    """Scores the model that `rankine export` writes."""

    name = "ONNX Runtime"

    def __init__(self, rankine, run, threads):
        import onnxruntime

        exported = run / "onnx"
        if not exported.exists():
            subprocess.run([rankine, "export", run, "--format", "onnx", "--out", exported], check=True,
                           stdout=subprocess.DEVNULL)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        self.session = onnxruntime.InferenceSession(exported / "model.onnx", options, ["CPUExecutionProvider"])
        self.columns = [value.name for value in self.session.get_inputs() if value.name != "dense"]
        self.version = onnxruntime.__version__

    def prepared(self, dense, ids):
        columns = {name: np.ascontiguousarray(column)[:, None] for name, column in zip(self.columns, ids.T)}
        return {"dense": dense, **columns}

    def score(self, request):
        return self.session.run(["probability"], request)[0][:, 0]


def contenders(rankine, run, weights, threads):
    """Returns the contenders whose packages are installed. Prints what is skipped."""
    found = [Rankine(run, threads)]
    for name, packages, make in [
        ("PyTorch, eager", ["torch"], lambda: PyTorch(weights, threads, compiled=False)),
        ("PyTorch, compiled", ["torch"], lambda: PyTorch(weights, threads, compiled=True)),
        ("ONNX Runtime", ["onnxruntime"], lambda: OnnxRuntime(rankine, run, threads)),
    ]:
        missing = next((package for package in packages if importlib.util.find_spec(package) is None), None)
        if missing:
            print(f"{name} skipped: {missing} is not installed")
        else:
            found.append(make())
    return found


def pool_of(data):
    """Returns the evaluation part of a dataset: dense values `[rows, columns]`, and ids `[rows, columns]`."""
    import rankine

    batches = list(rankine.Dataset(data).batches("eval", batch_size=65536))
    dense = np.concatenate([batch.dense for batch in batches])
    ids = [np.stack([ids for _, ids in batch.categorical.values()], axis=1) for batch in batches]
    return dense, np.concatenate(ids).astype(np.int64)


class Requests:
    """Batches of the pool, one after another, from its start again after its end."""

    def __init__(self, pool, batch):
        self.pool, self.batch, self.next = pool, batch, 0

    def take(self):
        if self.next + self.batch > len(self.pool[0]):
            self.next = 0
        rows = slice(self.next, self.next + self.batch)
        self.next = rows.stop
        return tuple(np.array(array[rows]) for array in self.pool)


def checked(found, pool, batches):
    """Compares scores with Rankine's. Returns those contenders that run, and the largest difference."""
    requests = [Requests(pool, batch).take() for batch in batches]
    expected = [np.array(found[0].score(found[0].prepared(*request))) for request in requests]
    running, largest = found[:1], 0.0
    for contender in found[1:]:
        try:
            scores = [np.array(contender.score(contender.prepared(*request))) for request in requests]
        except Exception as error:  # For example, there is no C++ compiler for torch.compile.
            print(f"{contender.name} skipped: {str(error).splitlines()[0]}")
            continue
        for ours, theirs in zip(expected, scores, strict=True):
            difference = float(np.abs(theirs - ours).max())
            if theirs.shape != ours.shape or not difference <= TOLERANCE:
                raise SystemExit(f"{contender.name}, batch {len(ours)}: scores differ by {difference:.1e}")
            largest = max(largest, difference)
        running.append(contender)
    return running, largest


def call_times(score, requests, warm_up):
    """Returns the nanoseconds of each call but the first ones."""
    clock, times = time.perf_counter_ns, []
    for request in requests:
        began = clock()
        score(request)
        times.append(clock() - began)
    return times[warm_up:]


def measured(found, pool, batch, arguments):
    """Returns the microseconds of each call, by contender."""
    calls = arguments.calls if batch < 128 else math.ceil(arguments.calls / 4)
    warm_up = math.ceil(calls / 10)
    requests = Requests(pool, batch)
    times = {contender.name: [] for contender in found}
    for number in range(arguments.rounds):
        turn = number % len(found)
        order = found[turn:] + found[:turn]
        prepared = [[each.prepared(*requests.take()) for _ in range(warm_up + calls)] for each in order]
        gc.collect()
        gc.disable()
        for contender, its_requests in zip(order, prepared):
            if arguments.threads > 1:
                time.sleep(PAUSE)
            times[contender.name] += call_times(contender.score, its_requests, warm_up)
        gc.enable()
    return {name: np.array(all_of_them) / 1000 for name, all_of_them in times.items()}


def processor():
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", nargs="?", default=ROOT / "configs" / "pytorch-comparison.toml", help="the job file")
    parser.add_argument("--threads", type=int, default=1, help="threads of each contender")
    parser.add_argument("--batches", default="1,16,512", help="rows per call, separated by commas")
    parser.add_argument("--rounds", type=int, default=20, help="turns of each contender")
    parser.add_argument("--calls", type=int, default=100, help="calls per turn; a quarter from 128 rows on")
    parser.add_argument("--rows-cap", type=int, default=20_000, help="most rows of a table")
    parser.add_argument("--samples", type=int, default=262_144, help="rows from which calls take theirs")
    parser.add_argument("--dir", type=pathlib.Path, help="keep dataset and model here, and use them again")
    parser.add_argument("--json", type=pathlib.Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    arguments.rankine = os.environ.get("RANKINE_BIN", ROOT / "target" / "release" / "rankine")
    batches = [int(batch) for batch in arguments.batches.split(",")]
    if max(batches) > arguments.samples:
        parser.error("--samples has to be at least the largest batch")

    with tempfile.TemporaryDirectory() as temporary:
        run, data = trained(arguments, arguments.dir or pathlib.Path(temporary))
        weights, pool = Weights(run / "model"), pool_of(data)
        found, difference = checked(contenders(arguments.rankine, run, weights, arguments.threads), pool, batches)
        versions = {contender.name: contender.version for contender in found}
        print(", ".join(f"{name} {version}" for name, version in versions.items()))
        print(f"{processor()}, {len(os.sched_getaffinity(0))} processors, {arguments.threads} threads")
        print(f"weights of {weights.bytes / 1e6:.1f} MB; scores differ by at most {difference:.1e}\n")

        print("| batch | contender | median, µs | p99, µs |\n|---|---|---|---|")
        figures, quotients = [], {}
        for batch in batches:
            p99s = {}
            for name, times in measured(found, pool, batch, arguments).items():
                median, p99s[name] = np.percentile(times, [50, 99])
                print(f"| {batch} | {name} | {median:.1f} | {p99s[name]:.1f} |", flush=True)
                figures.append({
                    "batch": batch, "contender": name, "calls": len(times), "median_us": median, "p99_us": p99s[name]
                })
            ours = p99s.pop(Rankine.name)
            if p99s:
                best = min(p99s, key=p99s.get)
                quotients[batch] = {"to": best, "p99": p99s[best] / ours}

        # What a call costs that scores nothing: Python's arguments, checks and the result.
        nothing = found[0].prepared(*(array[:0] for array in pool))
        empty = float(np.median(call_times(found[0].score, [nothing] * 2000, 200)) / 1000)
        print(f"\na call of Rankine with no rows: {empty:.1f} µs")
        for batch, quotient in quotients.items():
            verdict = "reached" if quotient["p99"] >= TARGET else "missed"
            print(f"batch {batch}: p99 of {quotient['to']} / Rankine {quotient['p99']:.2f}: {TARGET:g} is {verdict}")
        if arguments.json:
            arguments.json.write_text(json.dumps({
                "processor": processor(), "threads": arguments.threads, "versions": versions,
                "weight_bytes": weights.bytes, "largest_difference": difference, "empty_call_us": empty,
                "figures": figures, "quotients": quotients,
            }, indent=2) + "\n")


if __name__ == "__main__":
    main()
