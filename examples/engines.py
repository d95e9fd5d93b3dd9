"""From raw logs to scores with Spark or Ray, on this machine.

    pip install 'rankine[spark]'              # needs Java
    python examples/engines.py spark work

    pip install 'rankine[ray]'
    python examples/engines.py ray work

Writes two days of clicks as Parquet to the folder, which must not exist. Learns vocabularies from the first day,
converts it, continues the vocabularies with the second day and adds it; then trains on both days, and scores rows.
"""

import argparse
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import rankine

SCHEMA = {
    "label": {"column": "click"},
    "dense": [{"column": "age", "transform": ["log1p", "standardize"]}],
    "categorical": [{"column": "user"}, {"column": "film"}, {"column": "tags", "pooling": "mean"}],
}
JOB = {
    "name": "clicks",
    "model": {"kind": "dlrm", "embedding_dim": 8, "bottom_mlp": [16, 8], "top_mlp": [32]},
    "optimizer": {
        "dense": {"kind": "adagrad", "learning_rate": 0.05},
        "sparse": {"kind": "adagrad", "learning_rate": 0.1},
    },
    "train": {"batch_size": 256, "epochs": 2},
}
# Users are held out by a hash of their name, whichever day and partition their rows are in.
SPLIT = "hash:user:0.1"

Convert = Callable[[Path, Path, Path | None, Path], None]


def write_log(folder: Path, day: int, rows: int = 20_000, files: int = 4) -> Path:
    """Writes the clicks of a day; each day has users and films that the one before lacks."""
    draw = random.Random(day)
    folder = folder / f"day-{day}"
    folder.mkdir(parents=True)
    for number in range(files):
        users = [draw.randrange(500 + 100 * day) for _ in range(rows // files)]
        films = [draw.randrange(200 + 40 * day) for _ in users]
        columns = {
            "click": [int(draw.random() < (0.7 if film % 3 == 0 else 0.2)) for film in films],
            "age": [18 + user % 50 for user in users],
            "user": [f"u{user}" for user in users],
            "film": [f"f{film}" for film in films],
            "tags": [[f"t{film % 7}", f"t{film % 3}"] for film in films],
        }
        pq.write_table(pa.table(columns), folder / f"{number}.parquet")
    return folder


def with_spark(work: Callable[[Convert], None]) -> None:
    from pyspark.sql import SparkSession

    import rankine.spark

    # The workers need the packages that this process has.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = SparkSession.builder.master("local[*]").getOrCreate()
    rankine.spark.register(spark)

    def convert(log: Path, fit: Path, earlier: Path | None, clicks: Path) -> None:
        rows = spark.read.parquet(str(log))
        columns: dict[str, Any] = {"like": str(earlier)} if earlier else {"schema": SCHEMA}
        rankine.spark.fit(rows, fit, split=SPLIT, **columns)
        rows.write.format("rankine").options(fit=str(fit), split=SPLIT).mode("append").save(str(clicks))

    work(convert)
    spark.stop()


def with_ray(work: Callable[[Convert], None]) -> None:
    import ray

    import rankine.ray

    ray.init()
    ray.data.DataContext.get_current().execution_options.preserve_order = True

    def convert(log: Path, fit: Path, earlier: Path | None, clicks: Path) -> None:
        rows = ray.data.read_parquet(str(log))
        columns: dict[str, Any] = {"like": str(earlier)} if earlier else {"schema": SCHEMA}
        rankine.ray.fit(rows, fit, split=SPLIT, **columns)
        rankine.ray.write(rows, clicks, fit=fit, split=SPLIT, mode="append")

    work(convert)
    ray.shutdown()


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("engine", choices=["spark", "ray"])
    arguments.add_argument("folder", type=Path)
    given = arguments.parse_args()
    folder = given.folder.absolute()
    clicks = folder / "clicks"

    def work(convert: Convert) -> None:
        earlier = None
        for day in (1, 2):
            fit = folder / f"fit-{day}"
            convert(write_log(folder, day), fit, earlier, clicks)
            earlier = fit

    (with_spark if given.engine == "spark" else with_ray)(work)
    print(rankine.Dataset(clicks))
    summary = rankine.train(JOB, folder / "run", data={"dir": clicks})
    print("AUC of users that were held out:", round(summary["eval"]["auc"], 4))
    ranker = rankine.Ranker.load(folder / "run")
    rows = pa.table({"age": [30, 42], "user": ["u7", "u7"], "film": ["f1", "f2"], "tags": [["t1"], ["t2", "t0"]]})
    print("scores of two films for a user:", ranker.score(rows))


if __name__ == "__main__":
    main()
