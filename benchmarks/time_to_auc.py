"""Compares the time and the energy that Rankine and PyTorch need to reach an AUC, by MLPerf's rules.

Run it from the root of the repository after `cargo build --release` (with `--features cuda` for a GPU), with a Python
that has PyTorch and NumPy. It needs no network, and downloads nothing:

    python benchmarks/time_to_auc.py
    python benchmarks/time_to_auc.py --set device.kind=cpu --set data.generate.samples=200000   # a small trial

Both train the job of configs/time-to-auc.toml on the same generated samples in the same order: the same model with
initial weights of the same distribution, Adagrad with the same rates, the same batches, evaluations after the same
steps on the same evaluation part, the same target. `rankine bench time-to-auc` measures Rankine, which reads the
dataset from the disk. For PyTorch the script decodes the dataset beforehand, and all samples are in the memory of the
device before the clock starts. Its tables are merged into one, so that a step has one look-up and one sparse update;
products have the precision that Rankine's had. PyTorch's initialization, warm-up and compilation do not count, while
Rankine's first step does. On a GPU PyTorch trains eagerly and with torch.compile, and the faster training counts.

The energy is read from NVML's counter, for PyTorch by this script, for Rankine by Rankine, each during the training
whose time counts.
"""

import argparse
import ctypes
import itertools
import json
import math
import multiprocessing
import pathlib
import subprocess
import sys
import tempfile
import time
import tomllib
import warnings

import numpy as np
import torch
from torch import nn

from pytorch_dlrm import mlp

ROOT = pathlib.Path(__file__).resolve().parent.parent
JOB = ROOT / "configs" / "time-to-auc.toml"
EVALUATED_AT_ONCE = 65536
WARM_UP_STEPS = 20


def streams(block):
    """Returns the streams of a block as arrays: see docs/reference/dataset-format.md."""
    count, = np.frombuffer(block, "<u4", 1, 40)
    arrays = []
    for stream in range(int(count)):
        at = 64 + 32 * stream
        base, = np.frombuffer(block, "<u8", 1, at)
        offset, values = (int(number) for number in np.frombuffer(block, "<u4", 2, at + 8))
        bits, kind = block[at + 16], block[at + 17]
        if kind:
            arrays.append(np.frombuffer(block, {1: "<f2", 2: "<f4"}[kind], values, offset))
        elif bits == 0:
            arrays.append(np.full(values, base, np.int64))
        else:
            # Unaligned little-endian words: a value of at most 57 bits lies in the eight bytes from its first one on.
            first = np.arange(values, dtype=np.int64) * bits
            words = np.ndarray((values * bits // 8 + 1,), "<u8", block, offset, (1,))[first >> 3]
            mask = np.uint64((1 << bits) - 1)
            arrays.append((words >> (first & 7).astype(np.uint64) & mask).astype(np.int64) + int(base))
    return arrays


def decode(place):
    """Returns labels, numbers and ids of a block: its file, where it begins there, its length, and dense columns."""
    path, offset, length, dense = place
    with open(path, "rb") as file:
        file.seek(offset)
        arrays = streams(file.read(length))
    # Of each column with one id per sample, the streams of sizes and starts are constant.
    ids = np.stack(arrays[1 + dense + 2 :: 3], axis=1).astype(np.int32)
    return arrays[0].astype(np.float32), np.stack(arrays[1 : 1 + dense], axis=1), ids


def read(dataset, part, workers):
    """Returns the rows of each table, and the samples of a part: labels, numbers, ids."""
    manifest = json.loads((dataset / "dataset.json").read_text())["content"]
    schema, stored = manifest["schema"], manifest["parts"][part]
    if len(schema["labels"]) != 1 or schema["weight"] is not None:
        sys.exit("the comparison needs one label and no weights")
    if any(column["hotness"] != {"fixed": 1} for column in schema["categorical"]):
        sys.exit("the comparison needs columns with one id per sample")
    index = np.frombuffer((dataset / part / "index.bin").read_bytes(), "<u4").reshape(-1, 4)[:, 0]
    lengths, places = iter(index.tolist()), []
    for file in stored["blocks"]:
        offset = 0
        for length in itertools.islice(lengths, file["blocks"]):
            places.append((dataset / part / file["name"], offset, length, len(schema["dense"])))
            offset += length
    labels, numbers, ids = zip(*workers.map(decode, places))
    labels, numbers, ids = (torch.from_numpy(np.concatenate(blocks)) for blocks in (labels, numbers, ids))
    if len(labels) != stored["samples"] or int(labels.sum(dtype=torch.float64)) != stored["positives"][0]:
        sys.exit(f"{dataset} was not decoded correctly")
    return [column["rows"] for column in schema["categorical"]], labels, numbers, ids


class DenseParts(nn.Module):
    """Everything except the tables."""

    def __init__(self, dense, columns, model):
        super().__init__()
        dim, vectors = model["embedding_dim"], columns + 1
        self.bottom = mlp(dense, model["bottom_mlp"], last_relu=True)
        self.top = mlp(dim + vectors * (vectors - 1) // 2, [*model["top_mlp"], 1], last_relu=False)
        row, column = torch.tril_indices(vectors, vectors, offset=-1)
        self.register_buffer("pairs", row * vectors + column)

    def forward(self, numbers, embeddings):
        bottom = self.bottom(numbers)
        vectors = torch.cat([bottom.unsqueeze(1), embeddings.to(bottom.dtype)], dim=1)
        products = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1).index_select(1, self.pairs)
        return self.top(torch.cat([bottom, products], dim=1)).squeeze(1)


def initialize(table, dense_parts, rows, seed):
    """Initial weights as Rankine draws them: Glorot and Bengio's of layers, and 1 / sqrt(rows) of tables."""
    generator = torch.Generator(table.weight.device).manual_seed(seed)
    with torch.no_grad():
        first = 0
        for count in rows:
            bound = 1 / math.sqrt(count)
            table.weight[first : first + count].uniform_(-bound, bound, generator=generator)
            first += count
        for layer in dense_parts.modules():
            if isinstance(layer, nn.Linear):
                bound = math.sqrt(6 / (layer.in_features + layer.out_features))
                layer.weight.uniform_(-bound, bound, generator=generator)
                layer.bias.zero_()


def auc_of(scores, labels):
    """The exact AUC: a tie counts half."""
    _, order = torch.unique(scores, return_inverse=True)
    totals = torch.bincount(order).double()
    positives = torch.bincount(order, weights=labels.double())
    negatives = totals - positives
    below = negatives.cumsum(0) - negatives
    return ((positives * (below + negatives / 2)).sum() / (positives.sum() * negatives.sum())).item()


class EnergyMeter:
    """NVML's counter of the energy of one GPU, without a package."""

    def __init__(self, uuid):
        self.nvml = ctypes.CDLL("libnvidia-ml.so.1")
        self.device = ctypes.c_void_p()
        if self.nvml.nvmlInit_v2() or self.nvml.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(self.device)):
            raise OSError(f"NVML does not know {uuid}")

    @staticmethod
    def of(device):
        """Returns the meter of a device, and None on the CPU and without NVML."""
        if device.type != "cuda":
            return None
        try:
            return EnergyMeter(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
        except OSError as error:
            print(f"PyTorch's energy is not measured: {error}", file=sys.stderr)
            return None

    def joules(self):
        millijoules = ctypes.c_ulonglong()
        if self.nvml.nvmlDeviceGetTotalEnergyConsumption(self.device, ctypes.byref(millijoules)):
            raise OSError("this GPU does not count its energy")
        return millijoules.value / 1000


class Trainer:
    """Trains the job in PyTorch."""

    def __init__(self, job, data, device, precision, compiled):
        self.job, self.device = job, device
        (self.rows, *self.train), (_, *self.eval) = data
        self.precision = {"bf16": torch.bfloat16, "fp8": torch.bfloat16, "fp16": torch.float16}.get(precision)
        dense, columns = self.train[1].shape[1], self.train[2].shape[1]
        firsts = np.cumsum([0, *self.rows[:-1]])
        self.firsts = torch.tensor(firsts, device=device)
        self.table = nn.Embedding(sum(self.rows), job["model"]["embedding_dim"], sparse=True, device=device)
        self.dense_parts = DenseParts(dense, columns, job["model"]).to(device)
        self.loss_of = nn.BCEWithLogitsLoss()
        self.forward = torch.compile(self.dense_parts, dynamic=False) if compiled else self.dense_parts
        self.begin()

    def begin(self):
        """Starts with initial weights, and optimizers without state."""
        initialize(self.table, self.dense_parts, self.rows, self.job.get("seed", 1))
        sparse, dense = (
            {"lr": rule["learning_rate"], "eps": rule.get("epsilon", 1e-8),
             "initial_accumulator_value": rule.get("initial_accumulator", 0.0)}
            for rule in (self.job["optimizer"]["sparse"], self.job["optimizer"]["dense"])
        )
        self.sparse_optimizer = torch.optim.Adagrad(self.table.parameters(), **sparse)
        self.dense_optimizer = torch.optim.Adagrad(self.dense_parts.parameters(), **dense)

    def logits(self, numbers, ids):
        enabled = self.precision is not None
        with torch.autocast(self.device.type, dtype=self.precision, enabled=enabled):
            return self.forward(numbers.float(), self.table(ids + self.firsts)).float()

    def step(self, at, size):
        labels, numbers, ids = (column[at : at + size] for column in self.train)
        self.loss_of(self.logits(numbers, ids), labels).backward()
        self.sparse_optimizer.step()
        self.dense_optimizer.step()
        self.sparse_optimizer.zero_grad(set_to_none=True)
        self.dense_optimizer.zero_grad(set_to_none=True)

    @torch.no_grad()
    def evaluate(self):
        labels, numbers, ids = self.eval
        scores = torch.cat([
            self.logits(numbers[at : at + EVALUATED_AT_ONCE], ids[at : at + EVALUATED_AT_ONCE])
            for at in range(0, len(labels), EVALUATED_AT_ONCE)
        ])
        return auc_of(scores, labels)

    def wait(self):
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def run(self, target, evaluated_at):
        """Trains until an evaluation reaches the target. Returns seconds, joules, evaluations."""
        size, samples = self.job["train"]["batch_size"], len(self.train[0])
        # The shapes of a full batch, of the last one, and of evaluations are compiled before the clock starts.
        for number in range(WARM_UP_STEPS):
            self.step(0, size)
            if number == 0:
                self.step(samples // size * size - (samples % size == 0) * size, size)
        self.evaluate()
        self.begin()
        meter = EnergyMeter.of(self.device)
        self.wait()
        joules, began, step, evaluations, eval_seconds = meter and meter.joules(), time.perf_counter(), 0, [], 0.0
        reached = False
        for at in itertools.chain.from_iterable(itertools.repeat(range(0, samples, size), self.job["train"]["epochs"])):
            self.step(at, size)
            step += 1
            if evaluated_at(step):
                self.wait()
                evaluation_began = time.perf_counter()
                auc = self.evaluate()
                eval_seconds += time.perf_counter() - evaluation_began
                evaluations.append({"step": step, "auc": auc, "seconds": time.perf_counter() - began})
                reached = auc >= target
            if reached:
                break
        self.wait()
        seconds, joules = time.perf_counter() - began, meter and meter.joules() - joules
        return {
            "reached": reached, "seconds": seconds, "eval_seconds": eval_seconds, "joules": joules, "steps": step,
            "evaluations": evaluations,
        }


def rankine(binary, sets, run):
    """Returns the result of `rankine bench time-to-auc`."""
    command = [binary, "bench", "time-to-auc", JOB, "--quiet", "--json", "--run-dir", run]
    command += [word for setting in sets for word in ("--set", setting)]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=ROOT).stdout)


def row(name, bench, batch_size):
    steps, seconds = bench["steps"], bench["seconds"]
    joules = bench.get("joules")
    auc = bench["evaluations"][-1]["auc"] if bench["evaluations"] else float("nan")
    energy = "-" if joules is None else f"{joules:.0f}"
    rate = steps * batch_size / (seconds - bench["eval_seconds"]) / 1e6
    note = "" if bench["reached"] else "  target not reached"
    evaluated = bench["eval_seconds"]
    return f"{name:<18} {seconds:>9.3f} {evaluated:>9.3f} {energy:>8} {steps:>7} {rate:>12.2f} {auc:>9.5f}{note}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", default=ROOT / "target" / "release" / "rankine", type=pathlib.Path)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change the job, for both")
    parser.add_argument("--rounds", type=int, default=1, help="times that each trains, in turn; the medians count")
    parser.add_argument("--json", type=pathlib.Path, help="also write all results to this file")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore", "Sparse invariant checks are implicitly disabled")
    binary = arguments.binary.resolve()

    with tempfile.TemporaryDirectory() as folder:
        results = {"rankine": [], "pytorch": []}
        trainers = {}
        for number in range(arguments.rounds):
            run = pathlib.Path(folder) / f"run-{number}"
            ours = rankine(binary, arguments.set, run)
            results["rankine"].append(ours)
            if not trainers:
                job = tomllib.loads((run / "job.toml").read_text())
                began = time.perf_counter()
                trainers = prepare(job, ours)
                print(f"decoded the dataset in {time.perf_counter() - began:.1f} s", file=sys.stderr)
            results["pytorch"].append(fastest(trainers, ours, job))
    report(results, arguments.rounds)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")


def prepare(job, ours):
    """Returns PyTorch's variants, with all samples on the device."""
    device = torch.device("cpu" if ours["device"] == "the CPU" else "cuda")
    torch.backends.cuda.matmul.allow_tf32 = ours.get("precision") == "tf32"
    # Workers begin before CUDA does.
    with multiprocessing.get_context("fork").Pool() as workers:
        data = [read(ROOT / job["data"]["dir"], part, workers) for part in ("train", "eval")]
    data = [(rows, *(column.to(device) for column in columns)) for rows, *columns in data]
    variants = {"eager": False} | ({"compiled": True} if device.type == "cuda" else {})
    return {
        name: Trainer(job, data, device, ours.get("precision", "fp32"), compiled)
        for name, compiled in variants.items()
    }


def fastest(trainers, ours, job):
    """Trains PyTorch's variants; returns the result of the fastest one."""
    steps = {evaluation["step"] for evaluation in ours["evaluations"]}
    epoch_steps = -(-len(next(iter(trainers.values())).train[0]) // job["train"]["batch_size"])
    epochs = job["eval"].get("every") or 0
    epochs = 1.0 if epochs == "epoch" else epochs

    def evaluated_at(step):
        """As Rankine: at the first step that completes another part of an epoch."""
        if "every_steps" in job["eval"]:
            return step % job["eval"]["every_steps"] == 0
        parts = [math.floor(at / (epochs * epoch_steps)) for at in (step - 1, step)]
        return parts[1] > parts[0]

    # The job's rule must give the steps at which Rankine evaluated, but for the model that it ended with.
    if not steps - {max(steps)} <= {step for step in range(1, max(steps) + 1) if evaluated_at(step)}:
        sys.exit(f"Rankine evaluated after other steps: {sorted(steps)}")
    results = []
    for name, trainer in trainers.items():
        try:
            result = trainer.run(ours["target_auc"], evaluated_at)
        except Exception as error:
            if name == "eager":
                raise
            print(f"PyTorch, {name}, failed: {str(error).splitlines()[0]}", file=sys.stderr)
            continue
        results.append({"variant": name, **result})
        print(f"PyTorch, {name}: {result['seconds']:.3f} s", file=sys.stderr)
    return min(results, key=lambda result: (not result["reached"], result["seconds"]))


def report(results, rounds):
    """Prints the medians as a table."""
    first = results["rankine"][0]
    print(f"device      {first['device']}, {first.get('precision', 'fp32')}")
    best = first.get("auc_achievable") or math.nan
    print(f"target AUC  {first['target_auc']:.5f}; the best possible AUC is {best:.5f}")
    print(f"\n{'':<18} {'seconds':>9} {'evaluated':>9} {'joules':>8} {'steps':>7} {'Msamples/s':>12} {'AUC':>9}")
    medians = {}
    for name, of in results.items():
        medians[name] = sorted(of, key=lambda bench: bench["seconds"])[rounds // 2]
        title = {"rankine": "Rankine"}.get(name) or f"PyTorch, {medians[name]['variant']}"
        print(row(title, medians[name], first["batch_size"]))
    ours, theirs = medians["rankine"], medians["pytorch"]
    print(f"\nRankine's seconds include {ours['first_step_seconds']:.3f} s for its first step, which PyTorch's do not")
    if ours["reached"] and theirs["reached"]:
        line = f"PyTorch takes {theirs['seconds'] / ours['seconds']:.2f} times as long"
        if ours.get("joules") and theirs.get("joules"):
            line += f", and {theirs['joules'] / ours['joules']:.2f} times as many joules"
        print(line)


if __name__ == "__main__":
    main()
