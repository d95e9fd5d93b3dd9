"""Makes a folder of fixtures with a build of Rankine: datasets, runs that were killed or have finished, an export, and
the files that they were made from. README.md describes them.

    python3 tests/formats/make.py FOLDER RANKINE

RANKINE needs the features `parquet` and `test-hooks`. An existing folder is left alone.
"""

import os
import random
import shutil
import signal
import struct
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent

SHAPE = """\
name = "small"
dense = 4
rows = [60, 30, 20, 3]
hotness = [1, 3, 1, 1]
"""
SCHEMA = """\
[[label]]
column = "rating"
at_least = 4
missing = "mask"

[[label]]
column = "bought"

[weight]
column = "weight"

[[dense]]
column = "age"
transform = ["log1p", "standardize"]

[[categorical]]
column = "film"
vocabulary = { kind = "exact", min_count = 2 }

[[categorical]]
column = "last"
vocabulary = { kind = "shared", with = "film" }

[[categorical]]
column = "tags"
separator = "|"
pooling = "mean"
vocabulary = { kind = "hash", rows = 50 }
"""

# Together the jobs have every kind of model, optimizer and table, and every kind of checkpoint. Each trains 40 steps or
# more, and is killed after the second checkpoint.
COMMON = """
[checkpoint]
every_steps = 15
incremental = true
full_every = 2
[eval]
every_steps = 20
[device]
kind = "cpu"
"""
JOBS = {
    "criteo": """\
name = "criteo"
seed = 3
data = { dir = "data/criteo" }
model = { kind = "dcnv2", embedding_dim = 2, bottom_mlp = [4], cross_layers = 2, cross_rank = 3, top_mlp = [8] }
embedding = { dtype = "bf16" }
[[feature]]
column = "I2"
buckets = 8
[optimizer]
dense = { kind = "adam", learning_rate = 0.01 }
sparse = { kind = "rowwise-adagrad", learning_rate = 0.05 }
schedule = { kind = "warmup-polynomial", warmup_steps = 5, decay_start_step = 10, decay_steps = 100 }
[train]
batch_size = 16
epochs = 3
log_every_steps = 10
validation = "last:0.2"
early_stopping = { patience = 20 }
""",
    "films": """\
name = "films"
data = { dir = "data/films" }
model = { kind = "deepfm", embedding_dim = 4, bottom_mlp = [8, 4], top_mlp = [8] }
head = [{ label = "rating" }, { label = "bought", weight = 0.5 }]
[[table]]
columns = ["film", "last"]
learning_rate_factor = 0.5
[optimizer]
dense = { kind = "momentum", learning_rate = 0.02, nesterov = true }
sparse = { kind = "ftrl", learning_rate = 0.1, l1 = 0.001 }
dense_clip_norm = 1.0
[train]
batch_size = 20
epochs = 3
log_every_steps = 10
average = { kind = "ema", every_steps = 10, count = 3 }
""",
    "films-parquet": """\
name = "films-parquet"
data = { dir = "data/films-parquet" }
model = { kind = "wide-deep", embedding_dim = 4, top_mlp = [8] }
embedding = { dtype = "fp16" }
[optimizer]
dense = { kind = "sgd", learning_rate = 0.05 }
sparse = { kind = "momentum", learning_rate = 0.05 }
wide = { kind = "sgd", learning_rate = 0.05 }
[train]
batch_size = 20
epochs = 3
shuffle = false
log_every_steps = 10
""",
    "generated": """\
name = "generated"
[data]
dir = "data/generated"
[data.generate]
shape = "inputs/shape.toml"
samples = 1200
eval_samples = 300
seed = 5
[model]
kind = "dlrm"
embedding_dim = 4
bottom_mlp = [8, 4]
top_mlp = [8]
[embedding]
placement = "hybrid"
frequent_rows = 8
[optimizer]
dense = { kind = "adagrad", learning_rate = 0.03 }
sparse = { kind = "adagrad", learning_rate = 0.1 }
[train]
batch_size = 30
epochs = 2
log_every_steps = 10
""",
    "raw": """\
name = "raw"
data = { raw = { shape = "inputs/shape.toml", train = ["inputs/train.bin"], eval = ["inputs/eval.bin"] } }
model = { kind = "dlrm", embedding_dim = 4, bottom_mlp = [4], top_mlp = [8] }
guard = { ids_out_of_range = "skip" }
[optimizer]
dense = { kind = "adagrad", learning_rate = 0.03 }
sparse = { kind = "adam", learning_rate = 0.01 }
[train]
batch_size = 15
epochs = 2
log_every_steps = 10
""",
}
MORE = {"generated": "ranks = 2\nnodes = 2\n"}
# This run has finished, and is extended.
FINISHED = "films-parquet"


def criteo_rows(draw, count):
    for _ in range(count):
        item = draw.randrange(12)
        numbers = ["" if draw.random() < 0.15 else str(draw.randrange(900)) for _ in range(13)]
        items = [f"{item:08x}"] + ["" if draw.random() < 0.1 else f"{draw.randrange(9):08x}" for _ in range(25)]
        yield "\t".join([str(int(draw.random() < (0.8 if item < 5 else 0.2))), *numbers, *items])


def film_rows(draw, count):
    for _ in range(count):
        film, last = draw.randrange(30), draw.randrange(30)
        rating = "" if draw.random() < 0.1 else str(1 + (film + draw.randrange(3)) % 5)
        tags = "|".join(f"t{draw.randrange(9)}" for _ in range(draw.randrange(4)))
        age = "" if draw.random() < 0.1 else f"{draw.randrange(80)}.5"
        yield f"{rating},{int((film % 3 == 0) != (draw.random() < 0.1))},{draw.randrange(3)}.25,f{last},f{film},{age},{tags}"


def records(draw, count):
    """Returns raw records of the shape; some ids are out of range."""
    for _ in range(count):
        ids = [[draw.randrange(rows + (rows == 30)) for _ in range(hotness)]
               for rows, hotness in zip([60, 30, 20, 3], [1, 3, 1, 1])]
        label = draw.random() < (0.8 if ids[0][0] < 25 else 0.2)
        yield struct.pack("<5f6I", label, *(draw.random() for _ in range(4)), *(id for bag in ids for id in bag))


def main(folder, rankine):
    folder, rankine, draw = Path(folder).resolve(), str(Path(rankine).resolve()), random.Random(1)
    folder.mkdir(parents=True)
    for name in ["inputs", "data", "runs", "jobs", "effective"]:
        (folder / name).mkdir()

    def run(*words, fault=None, expected=0):
        done = subprocess.run([rankine, *map(str, words)], cwd=folder, capture_output=True, text=True,
                              env=os.environ | ({"RANKINE_TEST_FAULT": fault} if fault else {}))
        if done.returncode != expected:
            sys.exit(f"{words} ended with {done.returncode}, not {expected}:\n{done.stderr}")
        return done.stdout

    def write(name, lines):
        (folder / "inputs" / name).write_text("".join(f"{line}\n" for line in lines))

    header = "rating,bought,weight,last,film,age,tags"
    write("shape.toml", SHAPE.splitlines())
    write("schema.toml", SCHEMA.splitlines())
    write("new.tsv", criteo_rows(draw, 12))
    write("new.csv", [header, *film_rows(draw, 20)])
    (folder / "inputs/train.bin").write_bytes(b"".join(records(draw, 500)))
    (folder / "inputs/eval.bin").write_bytes(b"".join(records(draw, 100)))
    # These are only needed here.
    write("log.tsv", criteo_rows(draw, 500))
    write("log.csv", [header, *film_rows(draw, 800)])
    parquet = SCHEMA.replace('separator = "|"\n', "")
    (folder / "inputs/parquet.toml").write_text(parquet)
    shutil.copy(HERE.parent / "support/films.parquet", folder / "inputs")
    run("convert", "criteo-tsv", "inputs/log.tsv", "--min-count", "2", "--split", "last:0.2", "--out", "data/criteo")
    run("convert", "csv", "inputs/log.csv", "--schema", "inputs/schema.toml", "--split", "random:0.2:7", "--out",
        "data/films")
    run("convert", "parquet", "inputs/films.parquet", "--schema", "inputs/parquet.toml", "--split", "last:0.2", "--out",
        "data/films-parquet")
    for name in ["log.tsv", "log.csv", "films.parquet"]:
        (folder / "inputs" / name).unlink()

    for name, job in JOBS.items():
        path = f"jobs/{name}.toml"
        (folder / path).write_text(job + COMMON + MORE.get(name, ""))
        words = ["train", path, "--quiet", "--run-dir", f"runs/{name}"]
        if name == FINISHED:
            run(*words, "--set", "train.max_steps=35")
            continue
        # It is killed at the first operation on a third checkpoint.
        for operation in range(1, 1000):
            shutil.rmtree(folder / "runs" / name, ignore_errors=True)
            run(*words, fault=f"{operation}:kill", expected=-signal.SIGABRT)
            if (folder / "runs" / name / "checkpoints/step-30").is_dir():
                break
        for left in (folder / "runs" / name).rglob("*.partial"):
            shutil.rmtree(left)
    for path in sorted((HERE.parent.parent / "configs").glob("*.toml")):
        if not path.name.endswith("-schema.toml"):
            shutil.copy(path, folder / "jobs")
    for path in sorted((folder / "jobs").iterdir()):
        (folder / "effective" / path.name).write_text(run("check", f"jobs/{path.name}", "--effective"))
    run("ckpt", "export", "runs/films", "--out", "exports/films", "--data", "data/films")
    for lock in folder.rglob("*.lock"):
        lock.unlink()
    for path in folder.rglob("before-restart"):
        sys.exit(f"{path} is not expected")


if __name__ == "__main__":
    main(*sys.argv[1:])
