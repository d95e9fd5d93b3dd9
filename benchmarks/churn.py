"""Compares two ways to learn from ids that come and go: a dynamic table, and exact vocabularies that grow day by day.

Run it from the root of the repository after `cargo build --release`; it needs Python's standard library only:

    python3 benchmarks/churn.py --seeds 1,2,3

`rankine generate --shape churn` makes clicks of 30 days, and the model is evaluated on the last one. The dynamic tables
of users and items have rows for a fifth of all ids, and are trained once in order of time. For the exact vocabularies,
each day is converted with `--like` the day before and `--grow`, and a training on it starts from the model of the day
before, with its optimizer state: in the end there is a row for every id. Prints the AUC of both for each seed.
"""

import argparse
import itertools
import json
import pathlib
import struct
import subprocess
import tempfile

DAYS = 29
BATCH = 1024
SCHEMA = """
[format]
delimiter = ","
header = true
[label]
column = "label"
[[dense]]
column = "I1"
[[dense]]
column = "I2"
[[categorical]]
column = "C1"
vocabulary = { kind = "exact", min_count = 1 }
[[categorical]]
column = "C2"
vocabulary = { kind = "exact", min_count = 1 }
[[categorical]]
column = "C3"
vocabulary = { kind = "identity", rows = 100 }
"""
JOB = f"""
name = "churn"
[data]
dir = "data"
[model]
kind = "dlrm"
embedding_dim = 16
bottom_mlp = [64, 16]
top_mlp = [128, 64]
[optimizer.dense]
kind = "adagrad"
learning_rate = 0.02
[optimizer.sparse]
kind = "adagrad"
learning_rate = 0.05
[train]
batch_size = {BATCH}
shuffle = false
[device]
kind = "cpu"
"""


def streams(block):
    """Returns the streams of a block as lists: see docs/reference/dataset-format.md."""
    count, = struct.unpack_from("<I", block, 40)
    lists = []
    for at in range(64, 64 + 32 * count, 32):
        base, offset, values, bits, kind = struct.unpack_from("<QIIBB", block, at)
        if kind:
            lists.append(struct.unpack_from(f"<{values}{'ef'[kind - 1]}", block, offset))
        elif bits == 0:
            lists.append((base,) * values)
        else:
            # A value of at most 64 bits lies in the nine bytes from its first one on.
            mask, from_bytes = (1 << bits) - 1, int.from_bytes
            first = (offset * 8 + number * bits for number in range(values))
            lists.append([base + (from_bytes(block[bit >> 3:(bit >> 3) + 9], "little") >> (bit & 7) & mask)
                          for bit in first])
    return lists


def samples(dataset, part):
    """Yields the samples of a part: label, I1, I2, C1, C2, C3."""
    manifest = json.loads((dataset / "dataset.json").read_text())["content"]
    lengths = struct.iter_unpack("<4I", (dataset / part / "index.bin").read_bytes())
    for file in manifest["parts"][part]["blocks"]:
        with open(dataset / part / file["name"], "rb") as blocks:
            for _ in range(file["blocks"]):
                lists = streams(blocks.read(next(lengths)[0]))
                # Of each column, sizes and starts of the bags come before the ids.
                yield from zip(*lists[:3], *lists[5::3])


def rankine(arguments, *words):
    subprocess.run([arguments.binary, *map(str, words), "--quiet"], check=True, stdout=subprocess.DEVNULL)


def train(arguments, job, run, data, seed, *settings):
    settings = [f"data.dir={data}", f"seed={seed}", *arguments.set, *settings]
    rankine(arguments, "train", job, "--run-dir", run, *(word for setting in settings for word in ("--set", setting)))
    return json.loads((run / "summary.json").read_text())


def dynamic(arguments, folder, job, data, seed, ids):
    """Trains dynamic tables; returns the AUC."""
    tables = ", ".join(f"{{ columns = ['{column}'], rows = {{ dynamic = true, capacity = {int(arguments.share * count)},"
                       f" admit_after = {arguments.admit_after}, evict = 'lru' }} }}" for column, count in ids.items())
    return train(arguments, job, folder / "dynamic", data, seed, f"table=[{tables}]")["eval"]["auc"]


def growing(arguments, folder, job, days, last, seed):
    """Trains on one day after another, with new rows for new ids; returns the AUC on the last day."""
    schema = folder / "schema.toml"
    schema.write_text(SCHEMA)
    columns, settings = ["--schema", schema], []
    for number, (day, count) in enumerate(days):
        data, run = folder / f"data-{number}", folder / f"run-{number}"
        rankine(arguments, "convert", "csv", day, *columns, "--out", data)
        # A checkpoint of the last step has the optimizer state.
        train(arguments, job, run, data, seed, f"checkpoint.every_steps={-(-count // BATCH)}", *settings)
        columns = ["--like", data, "--grow"]
        settings = [f"train.init_from={run}", "train.init_optimizer_state=true"]
    command = [arguments.binary, "eval", "--run", run, last, "--json", "--quiet"]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)["auc"]


def write(path, rows):
    with open(path, "w", encoding="ascii") as file:
        file.write("label,I1,I2,C1,C2,C3\n")
        file.writelines(",".join(map(str, row)) + "\n" for row in rows)


def compare(arguments, folder, seed):
    data, job = folder / "data", folder / "job.toml"
    job.write_text(JOB)
    rankine(arguments, "generate", "--shape", "churn", "--samples", DAYS * arguments.day_samples,
            "--eval-samples", arguments.eval_samples, "--seed", seed, "--out", data)
    days, ids, rows = [], {"C1": set(), "C2": set()}, samples(data, "train")
    for number in range(DAYS):
        of_day = list(itertools.islice(rows, arguments.day_samples))
        ids["C1"].update(row[3] for row in of_day)
        ids["C2"].update(row[4] for row in of_day)
        days.append((folder / f"day-{number}.csv", len(of_day)))
        write(days[-1][0], of_day)
    last = folder / "last.csv"
    write(last, samples(data, "eval"))
    counts = {column: len(of_column) for column, of_column in ids.items()}
    print(f"seed {seed}: {counts['C1']} users and {counts['C2']} items", flush=True)
    print(f"  dynamic tables   {dynamic(arguments, folder, job, data, seed, counts):.5f}", flush=True)
    print(f"  growing by days  {growing(arguments, folder, job, days, last, seed):.5f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="target/release/rankine", help="default: target/release/rankine")
    parser.add_argument("--seeds", default="1", help="seeds of samples and weights, separated by commas")
    parser.add_argument("--day-samples", type=int, default=100_000, help="samples of a day; default: 100000")
    parser.add_argument("--eval-samples", type=int, default=200_000, help="samples of the last day; default: 200000")
    parser.add_argument("--share", type=float, default=0.2, help="rows of dynamic tables per id; default: 0.2")
    parser.add_argument("--admit-after", type=int, default=1, help="of the dynamic tables; default: 1")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="changes the job")
    arguments = parser.parse_args()
    for seed in map(int, arguments.seeds.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            compare(arguments, pathlib.Path(folder), seed)


if __name__ == "__main__":
    main()
