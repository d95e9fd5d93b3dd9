"""Trains the DLRM of configs/pytorch-comparison.toml in PyTorch on the CPU, and prints its speed as JSON.

Batches are in memory before the clock starts, so PyTorch reads nothing while it trains. Ids follow the power law of
`rankine generate`: the continuous law on [1, rows + 1) with exponent 1.1, rounded down, scattered over the rows.

    python benchmarks/pytorch_dlrm.py --threads 2 --compile --tables merged

With --bf16 the forward pass, and so the backward pass, is under autocast in bfloat16.
"""

import argparse
import json
import statistics
import time

import torch
from torch import nn

DENSE, DIM, BATCH, ALPHA, ROWS_CAP = 13, 16, 2048, 1.1, 500_000
BOTTOM, TOP = [512, 256, 16], [512, 256, 1]
LEARNING_RATE = 0.1
# Rows of the tables of MLPerf's DLRM.
ROWS = [
    39884406, 39043, 17289, 7420, 20263, 3, 7120, 1543, 63, 38532951, 2953546, 403346, 10,
    2208, 11938, 155, 4, 976, 14, 39979771, 25641295, 39664984, 585935, 12972, 108, 36,
]
ROWS = [min(rows, ROWS_CAP) for rows in ROWS]


class MergedTables(nn.Module):
    """All tables concatenated: one look-up and one sparse update per step instead of 26."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(sum(ROWS), DIM, sparse=True)
        firsts = torch.tensor([0] + ROWS[:-1]).cumsum(0)
        self.register_buffer("firsts", firsts)

    def forward(self, ids):
        return self.table(ids + self.firsts)


class SeparateTables(nn.Module):
    """One EmbeddingBag per column, as in the reference implementation."""

    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, DIM, mode="sum", sparse=True) for rows in ROWS)

    def forward(self, ids):
        return torch.stack([table(ids[:, i : i + 1]) for i, table in enumerate(self.tables)], dim=1)


def mlp(inputs, outputs, last_relu):
    layers = []
    for number, size in enumerate(outputs):
        layers.append(nn.Linear(inputs, size))
        if last_relu or number + 1 < len(outputs):
            layers.append(nn.ReLU())
        inputs = size
    return nn.Sequential(*layers)


class DenseParts(nn.Module):
    """Everything except the tables."""

    def __init__(self):
        super().__init__()
        vectors = len(ROWS) + 1
        self.bottom = mlp(DENSE, BOTTOM, last_relu=True)
        self.top = mlp(DIM + vectors * (vectors - 1) // 2, TOP, last_relu=False)
        row, column = torch.tril_indices(vectors, vectors, offset=-1)
        self.register_buffer("pairs", row * vectors + column)

    def forward(self, dense, embeddings):
        bottom = self.bottom(dense)
        vectors = torch.cat([bottom.unsqueeze(1), embeddings], dim=1)
        products = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1).index_select(1, self.pairs)
        return self.top(torch.cat([bottom, products], dim=1)).squeeze(1)


def batches(count, generator):
    def ids(rows):
        u = torch.rand(BATCH, generator=generator, dtype=torch.float64)
        span = (rows + 1) ** (1 - ALPHA) - 1
        rank = (1 + u * span).pow(1 / (1 - ALPHA)).floor().long().clamp(1, rows) - 1
        step = max(1, int(rows * 0.6180339887))
        while torch.gcd(torch.tensor(step), torch.tensor(rows)) != 1:
            step += 1
        return rank * step % rows

    return [
        (
            torch.randn(BATCH, DENSE, generator=generator),
            torch.stack([ids(rows) for rows in ROWS], dim=1),
            (torch.rand(BATCH, generator=generator) < 0.25).float(),
        )
        for _ in range(count)
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--tables", choices=["merged", "separate"], default="merged")
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--steps", type=int, default=488)
    parser.add_argument("--warm-up", type=int, default=50)
    arguments = parser.parse_args()

    torch.set_num_threads(arguments.threads)
    torch.manual_seed(1)
    tables = MergedTables() if arguments.tables == "merged" else SeparateTables()
    for parameter in tables.parameters():
        nn.init.uniform_(parameter, -0.01, 0.01)
    dense_parts = DenseParts()
    sparse_optimizer = torch.optim.SGD(tables.parameters(), lr=LEARNING_RATE)
    dense_optimizer = torch.optim.SGD(dense_parts.parameters(), lr=LEARNING_RATE, fused=True)
    loss_of = nn.BCEWithLogitsLoss()

    def forward(dense, ids, labels):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=arguments.bf16):
            logits = dense_parts(dense, tables(ids))
        return loss_of(logits.float(), labels)

    if arguments.compile:
        forward = torch.compile(forward)

    def step(batch):
        loss = forward(*batch)
        loss.backward()
        sparse_optimizer.step()
        dense_optimizer.step()
        sparse_optimizer.zero_grad(set_to_none=True)
        dense_optimizer.zero_grad(set_to_none=True)
        return loss

    resident = batches(64, torch.Generator().manual_seed(1))
    for number in range(arguments.warm_up):
        step(resident[number % len(resident)])
    seconds = []
    for number in range(arguments.steps):
        began = time.perf_counter()
        loss = step(resident[number % len(resident)])
        seconds.append(time.perf_counter() - began)
    print(json.dumps({
        "torch": torch.__version__,
        "threads": arguments.threads,
        "compiled": arguments.compile,
        "tables": arguments.tables,
        "bf16": arguments.bf16,
        "loss": round(loss.item(), 4),
        "samples_per_second": round(BATCH * len(seconds) / sum(seconds)),
        "samples_per_second_of_median_step": round(BATCH / statistics.median(seconds)),
    }))


if __name__ == "__main__":
    main()
