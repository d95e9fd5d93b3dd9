"""Trains the job of configs/sequences.toml in PyTorch: the same model on the same samples in the same order.

`benchmarks/sequences.py` runs it. Sequences are jagged: the positions of a batch follow one another, and nothing is
padded. All samples are decoded into memory before the clock starts, into the GPU's with `--device cuda`.

    python benchmarks/pytorch_din.py runs/NAME/job.toml --compile
    python benchmarks/pytorch_din.py runs/NAME/job.toml --compile --device cuda --bf16

The job is one that a run of Rankine left, with every key: a DLRM with one `[[attention]]` of kind "din", Adam and a
cosine schedule, without shuffling.
"""

import argparse
import itertools
import json
import math
import multiprocessing
import os
import pathlib
import statistics
import sys
import time
import tomllib

import numpy as np
import torch
from torch import nn

from pytorch_dlrm import mlp
from time_to_auc import ROOT, auc_of, streams

EVALUATED_AT_ONCE = 8192
# Steps that are timed together on a GPU, which computes while the host goes ahead.
STEPS_TIMED = 20


def decode(place):
    """Returns labels, numbers and, of each column, sizes and ids of a block: its file, its place there, the schema."""
    path, offset, length, dense, columns = place
    with open(path, "rb") as file:
        file.seek(offset)
        arrays = streams(file.read(length))
    bags = [(arrays[at].astype(np.int32), arrays[at + 2].astype(np.int32))
            for at in range(1 + dense, 1 + dense + 3 * columns, 3)]
    return arrays[0].astype(np.float32), np.stack(arrays[1 : 1 + dense], axis=1), bags


class Part:
    """The samples of a part of a dataset, in memory; with `most`, only its first ones, in whole blocks."""

    def __init__(self, dataset, part, workers, device, most=None):
        manifest = json.loads((dataset / "dataset.json").read_text())["content"]
        self.schema, stored = manifest["schema"], manifest["parts"][part]
        index = np.frombuffer((dataset / part / "index.bin").read_bytes(), "<u4").reshape(-1, 4)[:, 0]
        lengths, places = iter(index.tolist()), []
        shape = (len(self.schema["dense"]), len(self.schema["categorical"]))
        for file in stored["blocks"]:
            offset = 0
            for length in itertools.islice(lengths, file["blocks"]):
                places.append((dataset / part / file["name"], offset, length, *shape))
                offset += length
        all_blocks, most = len(places), most or stored["samples"]
        places = places[: -(-most // manifest["block_samples"])]
        labels, numbers, bags = zip(*workers.map(decode, places))
        self.device = device
        self.labels = torch.from_numpy(np.concatenate(labels)).to(device)
        self.numbers = torch.from_numpy(np.concatenate(numbers)).float().to(device)
        self.ids, self.sizes, self.starts = {}, {}, {}
        for at, column in enumerate(self.schema["categorical"]):
            sizes, ids = (np.concatenate([block[at][kind] for block in bags]) for kind in (0, 1))
            self.ids[column["name"]] = torch.from_numpy(ids).to(device)
            self.sizes[column["name"]] = torch.from_numpy(sizes).to(device)
            # In host memory: to ask the device would wait for it.
            self.starts[column["name"]] = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
        positives = int(self.labels.sum(dtype=torch.float64))
        if len(places) == all_blocks and (len(self), positives) != (stored["samples"], stored["positives"][0]):
            sys.exit(f"{dataset} was not decoded correctly")

    def __len__(self):
        return len(self.labels)

    def batch(self, first, size, single, sequence):
        """Returns labels, numbers, the ids of columns with one id, the ids of positions, and each position's sample."""
        last = min(first + size, len(self))
        one = torch.stack([self.ids[name][first:last] for name in single], dim=1)
        begin, end = (int(self.starts[sequence[0]][at]) for at in (first, last))
        positions = torch.stack([self.ids[name][begin:end] for name in sequence], dim=1)
        samples, sizes = torch.arange(last - first, device=self.device), self.sizes[sequence[0]][first:last]
        sample = torch.repeat_interleave(samples, sizes, output_size=end - begin)
        return self.labels[first:last], self.numbers[first:last], one, positions, sample


class DenseParts(nn.Module):
    """Everything except the tables: DIN's activation unit (Zhou et al., 2018), and a DLRM."""

    def __init__(self, dense, single, attributes, model, hidden):
        super().__init__()
        dim, vectors = model["embedding_dim"], 1 + single + attributes
        self.unit = mlp(4 * attributes * dim, [*hidden, 1], last_relu=False)
        self.bottom = mlp(dense, model["bottom_mlp"], last_relu=True)
        self.top = mlp(dim + vectors * (vectors - 1) // 2, [*model["top_mlp"], 1], last_relu=False)
        row, column = torch.tril_indices(vectors, vectors, offset=-1)
        self.register_buffer("pairs", row * vectors + column)

    def forward(self, numbers, one, query, keys, sample):
        """`one` is [sample, column, dim], `query` [sample, attributes * dim], `keys` [position, attributes * dim]."""
        queries = query.index_select(0, sample)
        weights = self.unit(torch.cat([queries, keys, queries - keys, queries * keys], dim=1))
        sums = torch.zeros_like(query).index_add(0, sample, (weights * keys).to(query.dtype))
        bottom = self.bottom(numbers)
        vectors = torch.cat([bottom.unsqueeze(1), one, sums.view(len(one), -1, one.shape[2])], dim=1)
        products = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1).index_select(1, self.pairs)
        return self.top(torch.cat([bottom, products], dim=1)).squeeze(1)


class Trainer:
    def __init__(self, job, train, eval_part, compiled, bf16):
        self.job, self.train, self.eval, self.bf16 = job, train, eval_part, bf16
        device = train.device
        categorical = train.schema["categorical"]
        attention, = job["attention"]
        sequence, = (own for own in train.schema["sequences"] if own["name"] == attention["sequence"])
        self.sequence = sequence["columns"]
        self.single = [column["name"] for column in categorical if column["name"] not in self.sequence]
        self.query = [self.single.index(name) for name in attention["query"]]
        # One table has the rows of all: a step has one look-up and one update.
        firsts, rows = {}, []
        for column in categorical:
            if not column.get("shares"):
                firsts[column["name"]] = sum(rows)
                rows.append(column["rows"])
        first = {column["name"]: firsts[column.get("shares") or column["name"]] for column in categorical}
        self.firsts = [torch.tensor([first[name] for name in names], dtype=torch.int32, device=device)
                       for names in (self.single, self.sequence)]
        torch.manual_seed(job.get("seed", 1))
        self.table = nn.Embedding(sum(rows), job["model"]["embedding_dim"], sparse=True)
        self.dense_parts = DenseParts(
            train.numbers.shape[1], len(self.single), len(self.sequence), job["model"], attention["hidden"])
        self.initialize(rows)
        self.table.to(device)
        self.dense_parts.to(device)
        self.loss_of = nn.BCEWithLogitsLoss()
        self.forward = torch.compile(self.dense_parts, dynamic=True) if compiled else self.dense_parts
        rules = job["optimizer"]
        self.optimizers = [
            torch.optim.SparseAdam(self.table.parameters(), lr=rules["sparse"]["learning_rate"]),
            torch.optim.Adam(self.dense_parts.parameters(), lr=rules["dense"]["learning_rate"], fused=True),
        ]
        self.schedules = [torch.optim.lr_scheduler.LambdaLR(one, self.factor) for one in self.optimizers]

    def initialize(self, rows):
        """Initial weights as Rankine draws them: Glorot and Bengio's of layers, and 1 / sqrt(rows) of tables."""
        with torch.no_grad():
            for table, count in zip(self.table.weight.split(rows), rows):
                table.uniform_(-1 / math.sqrt(count), 1 / math.sqrt(count))
            for layer in self.dense_parts.modules():
                if isinstance(layer, nn.Linear):
                    nn.init.xavier_uniform_(layer.weight)
                    layer.bias.zero_()

    def factor(self, done):
        """The schedule's factor of the step after `done` steps."""
        rule, step = self.job["optimizer"]["schedule"], done + 1
        warmup = rule["warmup_steps"]
        if step <= warmup:
            return step / warmup
        part = min(max(step - rule.get("decay_start_step", warmup), 0) / rule["decay_steps"], 1.0)
        end = rule["end_factor"]
        return end + (1 - end) * (1 + math.cos(math.pi * part)) / 2

    def logits(self, numbers, one, positions, sample):
        dim, single = self.table.embedding_dim, len(self.single)
        ids = [(ids + firsts).flatten() for ids, firsts in zip((one, positions), self.firsts)]
        rows = self.table(torch.cat(ids))
        one = rows[: len(ids[0])].view(-1, single, dim)
        keys = rows[len(ids[0]) :].view(-1, len(self.sequence) * dim)
        query = torch.cat([one[:, column] for column in self.query], dim=1)
        with torch.autocast(self.train.device, torch.bfloat16, enabled=self.bf16):
            logits = self.forward(numbers, one, query, keys, sample)
        return logits.float()

    def step(self, first):
        labels, *inputs = self.train.batch(first, self.job["train"]["batch_size"], self.single, self.sequence)
        loss = self.loss_of(self.logits(*inputs), labels)
        loss.backward()
        for optimizer, schedule in zip(self.optimizers, self.schedules):
            optimizer.step()
            schedule.step()
            optimizer.zero_grad(set_to_none=True)

    @torch.no_grad()
    def evaluate(self):
        batches = (self.eval.batch(first, EVALUATED_AT_ONCE, self.single, self.sequence)
                   for first in range(0, len(self.eval), EVALUATED_AT_ONCE))
        return auc_of(torch.cat([self.logits(*inputs) for _, *inputs in batches]).cpu(), self.eval.labels.cpu())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("job", type=pathlib.Path, help="the effective job of a run of Rankine")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--bf16", action="store_true", help="the forward pass under autocast in bfloat16")
    parser.add_argument("--steps", type=int, help="only measure the speed of this number of steps")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    job = tomllib.loads(arguments.job.read_text())
    size, epochs = job["train"]["batch_size"], job["train"]["epochs"]
    most = arguments.steps and arguments.steps * size
    on_gpu = arguments.device == "cuda"
    processes = min(os.cpu_count(), 16) if on_gpu else arguments.threads
    with multiprocessing.get_context("fork").Pool(processes) as workers:
        dataset = ROOT / job["data"]["dir"]
        parts = [Part(dataset, part, workers, arguments.device, most) for part in ("train", "eval")]
    trainer = Trainer(job, *parts, arguments.compile, arguments.bf16)
    result = {name: getattr(arguments, name) for name in ("device", "threads", "compile", "bf16")}
    result["torch"] = torch.__version__
    seconds, total, together = [], 0, STEPS_TIMED if on_gpu else 1
    steps = itertools.chain.from_iterable(itertools.repeat(range(0, len(parts[0]), size), epochs))
    steps = itertools.islice(steps, arguments.steps)
    while firsts := list(itertools.islice(steps, together)):
        began = time.perf_counter()
        for first in firsts:
            trainer.step(first)
        if on_gpu:
            torch.cuda.synchronize()
        total += time.perf_counter() - began
        seconds.append((time.perf_counter() - began) / len(firsts))
    result["samples_per_second_of_median_step"] = round(size / statistics.median(seconds))
    if arguments.steps is None:
        result["seconds"], result["auc"] = round(total, 1), trainer.evaluate()
    print(json.dumps(result))


if __name__ == "__main__":
    main()
