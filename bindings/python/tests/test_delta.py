"""Deltas of a model that serves while a trainer goes on, with users who come and go."""

import random
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from conftest import JOB, command, predicted, write_csv

import rankine

STEP = 64
STEPS = 20
SCHEMA = {
    "label": [{"column": "click"}],
    "categorical": [
        {"column": "user", "vocabulary": {"kind": "open"}},
        {"column": "items", "separator": "|", "vocabulary": {"kind": "open"}},
    ],
}
ROWS: Any = [
    {"columns": ["user"], "rows": {"capacity": 30, "evict": "lru"}},
    {"columns": ["items"], "rows": {"capacity": 1000, "evict": "none"}},
]
MODEL = {"model": {"kind": "wide-deep", "embedding_dim": 4, "top_mlp": [8]}}


def user(number: int) -> int:
    """A user's id: most are negative."""
    return (number * 0x9E37_79B9_7F4A_7C15 % 2**64 - 2**63) // (1 + number % 3) - number


def clicks(first: int, rows: int) -> dict[str, list[Any]]:
    """Rows of 20 users at a time, who change from step to step."""
    draw = random.Random(first)
    users = [(first + row) // 100 + draw.randrange(20) for row in range(rows)]
    return {
        "click": [int(number % 3 == 0 or draw.random() < 0.1) for number in users],
        "user": [user(number) for number in users],
        "items": [[f"i{draw.randrange(50)}" for _ in range(draw.randrange(3))] for _ in range(rows)],
    }


def requests() -> dict[str, Any]:
    """Rows of users of all times, and of one that no training has seen."""
    users = np.array([user(number) for number in range(60)] + [-1], dtype=np.int64)
    return {"user": users, "items": [["i1", f"i{number % 60}"] for number in range(61)]}


@dataclass
class Models:
    """Models of one training, and the deltas from each of them to the next."""

    models: list[Path]
    deltas: list[Path]

    def scores(self, model: int) -> npt.NDArray[np.float32]:
        return rankine.Ranker.load(self.models[model]).score(requests())


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    place = tmp_path_factory.mktemp("clicks")
    write_csv(place / "clicks.csv", clicks(0, 200))
    rankine.convert("csv", place / "clicks.csv", place / "data", schema=SCHEMA, split="last:0.2")
    trainer = rankine.Trainer({**JOB, **MODEL}, place / "data", place / "run", table=ROWS)
    saved = [place / f"model-{number}" for number in range(4)]
    for number, model in enumerate(saved):
        for step in range(STEPS):
            trainer.step(clicks((number * STEPS + step) * STEP, STEP))
        trainer.save(model)
    trainer.finish()
    deltas = [place / f"delta-{number}" for number in range(3)]
    for delta, base, model in zip(deltas, saved, saved[1:]):
        command("ckpt", "delta", base, model, "--out", delta)
    return Models(saved, deltas)


def test_a_chain_of_deltas_has_the_scores_of_the_last_model(models: Models) -> None:
    ranker = rankine.Ranker.load(models.models[0])
    assert ranker.steps == STEPS and ranker.score(requests()).tobytes() == models.scores(0).tobytes()
    for number, delta in enumerate(models.deltas, 1):
        ranker.apply(delta)
        scores = ranker.score(requests())
        assert scores.tobytes() == models.scores(number).tobytes()
        assert ranker.steps == STEPS * (number + 1)
    # The first users are gone: they score as one who was never there.
    same = {"user": np.array([user(3), -1]), "items": [["i1"], ["i1"]]}
    gone, unseen = ranker.score(same)
    before = rankine.Ranker.load(models.models[0]).score(same)
    assert gone == unseen and before[0] != before[1]


def test_a_delta_that_does_not_fit_changes_nothing(models: Models, tmp_path: Path) -> None:
    ranker = rankine.Ranker.load(models.models[1])
    before = ranker.score(requests()).tobytes()
    for number, why in [(0, "to which it leads, is scoring already"), (2, "the model of step 40 is scoring")]:
        with pytest.raises(rankine.ModelError, match=why):
            ranker.apply(models.deltas[number])
    damaged = tmp_path / "delta"
    damaged.mkdir()
    for file in models.deltas[1].iterdir():
        (damaged / file.name).write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(rankine.ModelError, match="is damaged"):
        ranker.apply(damaged)
    with pytest.raises(rankine.ModelError, match="no delta at"):
        ranker.apply(str(models.models[2]))
    with pytest.raises(rankine.ArgumentError):
        ranker.apply(7)  # type: ignore[arg-type]
    assert ranker.score(requests()).tobytes() == before and ranker.steps == 2 * STEPS


def test_each_request_is_scored_by_one_model(models: Models) -> None:
    expected = [models.scores(number).tobytes() for number in range(4)]
    ranker = rankine.Ranker.load(models.models[0])
    done = threading.Event()
    served = [0, 0]
    wrong: list[bytes] = []

    def serve(number: int) -> None:
        while not done.is_set():
            scores = ranker.score(requests()).tobytes()
            if scores not in expected:
                wrong.append(scores)
            served[number] += 1

    threads = [threading.Thread(target=serve, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for delta in models.deltas:
        before = list(served)
        while any(now == then and thread.is_alive() for now, then, thread in zip(served, before, threads)):
            time.sleep(0.001)
        ranker.apply(delta)
    done.set()
    for thread in threads:
        thread.join()
    assert not wrong and min(served) >= 3 and ranker.score(requests()).tobytes() == expected[3]


@pytest.mark.parametrize("form", ["list", "int64", "arrow", "text"])
def test_negative_integers_are_ids_in_every_form(form: str, models: Models, tmp_path: Path) -> None:
    rows = requests()
    write_csv(tmp_path / "rows.csv", {"user": rows["user"].tolist(), "items": rows["items"]})
    expected = predicted(models.models[3], tmp_path / "rows.csv").ravel()
    assert len(set(expected[:-1].tolist())) > 20, "users have scores of their own"
    forms: dict[str, Any] = {
        "list": rows["user"].tolist(),
        "int64": rows["user"],
        "arrow": pa.array(rows["user"]),
        "text": [str(of) for of in rows["user"].tolist()],
    }
    ranker = rankine.Ranker.load(models.models[2])
    ranker.apply(models.deltas[2])
    columns = {"user": forms[form], "items": rows["items"]}
    assert (ranker.score(pa.table(columns) if form == "arrow" else columns) == expected).all()
    # Mapped features have keys, which are numbers of 64 bits without a sign.
    empty = (np.zeros(2, np.int64), np.zeros(0, np.uint64))
    dense = np.zeros((1, 0), np.float32)
    with pytest.raises(rankine.RowError, match="column user, row 0: id -5 is negative"):
        ranker.score_mapped(dense, {"user": np.array([-5]), "items": empty})
    ranker.score_mapped(dense, {"user": np.array([2**64 - 5], np.uint64), "items": empty})
