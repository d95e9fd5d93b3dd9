"""Models that tests share, and the command, with which the package is compared."""

import csv
import os
import random
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import rankine

TRAIN_ROWS = 2000
NEW_ROWS = 500

SCHEMA = {
    "label": [{"column": "rating", "at_least": 4, "missing": "mask"}, {"column": "bought"}],
    "dense": [{"column": "age", "transform": ["log1p", "standardize"]}, {"column": "price"}],
    "categorical": [
        {"column": "film", "vocabulary": {"kind": "exact", "min_count": 2}},
        {"column": "last", "vocabulary": {"kind": "shared", "with": "film"}},
        {"column": "hour", "vocabulary": {"kind": "identity", "rows": 24}},
        {"column": "tags", "separator": "|", "pooling": "mean", "vocabulary": {"kind": "hash", "rows": 50}},
    ],
}

JOB = {
    "name": "tests",
    "model": {"kind": "dlrm", "embedding_dim": 4, "bottom_mlp": [8, 4], "top_mlp": [16]},
    "optimizer": {
        "dense": {"kind": "adagrad", "learning_rate": 0.05},
        "sparse": {"kind": "adagrad", "learning_rate": 0.05},
    },
    "train": {"batch_size": 64},
    "device": {"kind": "cpu", "threads": 2},
}


@pytest.fixture(scope="session", autouse=True)
def keyboard_interrupts() -> None:
    """Shells let their background jobs ignore the signal of Ctrl-C."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def command(*words: object) -> str:
    """Runs the command, and returns its output."""
    run = subprocess.run(
        [os.environ["RANKINE_BIN"], *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


def refused(*words: object) -> str:
    """Runs the command, which fails, and returns its error without the prefix."""
    run = subprocess.run([os.environ["RANKINE_BIN"], *map(str, words)], stderr=subprocess.PIPE, text=True)
    assert run.returncode != 0
    return run.stderr.removeprefix("error: ").removesuffix("\n")


def predicted(run: Path, *rows: object) -> npt.NDArray[np.float32]:
    """Returns the scores of `rankine predict`: [rows, heads]."""
    out = run.parent / "predictions.csv"
    command("predict", "--run", run, *rows, "--out", out)
    with out.open() as file:
        lines = list(csv.reader(file))[1:]
    return np.array([line[1:] for line in lines], dtype=np.float64).astype(np.float32)


def ratings(rows: int, seed: int) -> dict[str, list[Any]]:
    """Ratings of films. Some ages and prices are missing; films beyond f39 are unknown to a model of seed 1."""
    draw = random.Random(seed)
    films = 40 if seed == 1 else 50
    film = [draw.randrange(films) for _ in range(rows)]
    return {
        "rating": [draw.choice([None, 1 + (of + draw.randrange(5)) % 5]) for of in film],
        "bought": [int((of % 3 == 0) != (draw.random() < 0.1)) for of in film],
        "age": [draw.choice([None, *range(10, 80)]) for _ in range(rows)],
        "price": [None if draw.random() < 0.1 else draw.uniform(-5, 5) for _ in range(rows)],
        "film": [f"f{of}" for of in film],
        "last": [f"f{draw.randrange(films)}" for _ in range(rows)],
        "hour": [draw.randrange(24) for _ in range(rows)],
        "tags": [[f"t{draw.randrange(9)}" for _ in range(draw.randrange(4))] for _ in range(rows)],
    }


def write_csv(path: Path, columns: dict[str, list[Any]]) -> None:
    def text(value: Any) -> Any:
        return "" if value is None else "|".join(value) if isinstance(value, list) else value

    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows([text(value) for value in row] for row in zip(*columns.values()))


@dataclass
class Films:
    """A model of two heads, and rows that it has not seen."""

    run: Path
    data: Path
    log: Path
    columns: dict[str, list[Any]]
    expected: npt.NDArray[np.float32]

    def features(self) -> dict[str, list[Any]]:
        """The new rows without their labels."""
        return {name: values for name, values in self.columns.items() if name not in ("rating", "bought")}


@pytest.fixture(scope="session")
def films(tmp_path_factory: pytest.TempPathFactory) -> Films:
    place = tmp_path_factory.mktemp("films")
    write_csv(place / "train.csv", ratings(TRAIN_ROWS, 1))
    columns = ratings(NEW_ROWS, 2)
    write_csv(place / "new.csv", columns)
    rankine.convert("csv", place / "train.csv", place / "data", schema=SCHEMA, split="last:0.2")
    rankine.train(
        JOB, place / "run", data={"dir": place / "data"}, table=[{"columns": ["film", "last"]}], train={"epochs": 2}
    )
    expected = predicted(place / "run", place / "new.csv")
    return Films(place / "run", place / "data", place / "new.csv", columns, expected)


@dataclass
class Generated:
    """A model of generated data, some of whose columns have several ids per row."""

    run: Path
    data: Path
    expected: npt.NDArray[np.float32]


@pytest.fixture(scope="session")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Generated:
    place = tmp_path_factory.mktemp("generated")
    shape = 'name = "mixed"\ndense = 4\nrows = [40, 300, 20, 12]\nhotness = [1, 3, 1, 2]\n'
    (place / "shape.toml").write_text(shape)
    generate = {"shape": str(place / "shape.toml"), "samples": 2000, "eval_samples": 700}
    rankine.train(JOB, place / "run", data={"dir": place / "data", "generate": generate})
    expected = predicted(place / "run", "--data", place / "data").ravel()
    return Generated(place / "run", place / "data", expected)
