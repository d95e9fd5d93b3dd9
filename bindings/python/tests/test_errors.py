"""What the package raises for bad input is a `rankine.Error`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from conftest import JOB, SCHEMA, Films, Generated

import rankine

# Functions are called without types here: types are what is wrong.
api: Any = rankine


class Hostile:
    """Fails at whatever is done with it."""

    def __getattr__(self, name: str) -> Any:
        raise LookupError(name)

    def __iter__(self) -> Any:
        raise LookupError("iter")

    def __repr__(self) -> str:
        raise LookupError("repr")


BAD: list[Any] = [None, 5, -1, 1 << 70, 1.5, "nowhere", "\ud800", b"x\0", "a\0b", [], [1], {1: 2}, {"a": object()}]
BAD += [object(), np.zeros((2, 2), dtype=complex), np.array(["a", None], dtype=object), pa.array([1]), Hostile()]


OPTIONS = ("eval", "split", "on_bad", "bad_limit", "min_count", "dense_dtype", "memory", "threads")


def calls(films: Films, generated: Generated, place: Path) -> dict[str, Callable[[Any], Any]]:
    """Each public function, with a bad value for each of its arguments."""
    ranker: Any = api.Ranker.load(films.run)
    mapped: Any = api.Ranker.load(generated.run)
    dataset: Any = api.Dataset(films.data)
    trainer: Any = api.Trainer(JOB, films.data, place / "trainer")
    dense = np.zeros((1, 4), np.float32)
    ids = [np.zeros(1, np.uint64), np.zeros((1, 3), np.uint64), np.zeros(1, np.uint64), np.zeros((1, 2), np.uint64)]
    features = {name: values[:3] for name, values in films.columns.items()}
    run, out = films.run, place / "out"

    def option(name: str) -> Callable[[Any], Any]:
        return lambda bad: api.convert("csv", place / "none", out, schema=SCHEMA, **{name: bad})

    def column(name: str) -> Callable[[Any], Any]:
        return lambda bad: ranker.score({**features, name: bad})

    return {
        "load": lambda bad: api.Ranker.load(bad),
        "load threads": lambda bad: api.Ranker.load(run, threads=bad),
        "swap": lambda bad: ranker.swap(bad),
        "score": lambda bad: ranker.score(bad),
        "score numbers": column("age"),
        "score categories": column("film"),
        "score lists": column("tags"),
        "score offsets": lambda bad: ranker.score({**features, "tags": (bad, ["a"])}),
        "score generated": lambda bad: mapped.score(bad),
        "score dense": lambda bad: mapped.score_mapped(bad, ids),
        "score ids": lambda bad: mapped.score_mapped(dense, bad),
        "score an id": lambda bad: mapped.score_mapped(dense, [bad, *ids[1:]]),
        "score bags": lambda bad: mapped.score_mapped(dense, [(bad, bad), *ids[1:]]),
        "dataset": lambda bad: api.Dataset(bad),
        "part": lambda bad: dataset.batches(bad),
        "batch size": lambda bad: dataset.batches("eval", bad),
        "no batch": lambda bad: dataset.batches("eval", 0),
        "job": lambda bad: api.train(bad, out),
        "setting": lambda bad: api.train(JOB, out, train=bad),
        "run folder": lambda bad: api.train(JOB, bad, resume=True, data={"dir": place / "none"}),
        "resume": lambda bad: api.train(JOB, out, resume=bad, data={"dir": place / "none"}),
        "on_event": lambda bad: api.train(JOB, out, on_event=bad, data={"dir": place / "none"}),
        "trainer job": lambda bad: api.Trainer(bad, films.data),
        "trainer data": lambda bad: api.Trainer({**JOB, "seed": -1}, bad),
        "trainer event": lambda bad: api.Trainer(JOB, place / "none", on_event=bad),
        "step": lambda bad: trainer.step(bad),
        "step labels": lambda bad: trainer.step({**features, "bought": bad}),
        "step mapped": lambda bad: trainer.step_mapped(bad, bad, bad, bad),
        "save": lambda bad: trainer.save(place / "none/a" if isinstance(bad, str) else bad),
        "evaluate": lambda bad: api.evaluate(bad),
        "evaluate data": lambda bad: api.evaluate(run, place / "none" if bad is None else bad),
        "evaluate part": lambda bad: api.evaluate(run, part=bad),
        "evaluate raw": lambda bad: api.evaluate(run, raw=[bad]),
        "evaluate threads": lambda bad: api.evaluate(run, place / "none", threads=bad),
        "format": lambda bad: api.convert(bad, films.log, out, schema=SCHEMA),
        "files": lambda bad: api.convert("csv", bad, out, schema=SCHEMA),
        "out": lambda bad: api.convert("csv", place / "none", bad, schema=SCHEMA),
        "schema": lambda bad: api.convert("csv", films.log, out, schema=bad),
        "like": lambda bad: api.convert("csv", place / "none", out, like=bad),
        "grow": lambda bad: api.convert("csv", place / "none", out, like=films.data, grow=bad),
        "columns": lambda bad: api.convert("criteo-tsv", place / "none", out, columns=bad),
        "labels": lambda bad: api.convert("hugectr-raw", place / "none", out, shape="dlrm", labels=bad),
        "shape": lambda bad: api.convert("hugectr-raw", films.log, out, shape=bad),
        "no option": lambda bad: api.convert("csv", films.log, out, schema=SCHEMA, shcema=bad),
        **{name: option(name) for name in OPTIONS},
        "rows": lambda bad: api.convert("arrow", bad, out, schema=SCHEMA),
    }


def test_bad_input_is_an_error_of_the_package(
    films: Films, generated: Generated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    wrong, raised = [], 0
    for name, call in calls(films, generated, tmp_path).items():
        for number, bad in enumerate(BAD):
            try:
                call(bad)
            except rankine.Error as error:
                raised += 1
                assert str(error)
            except Exception as error:  # noqa: BLE001
                # An iterator of the caller raises what it likes.
                if not (name == "rows" and isinstance(error, LookupError)):
                    wrong.append(f"{name}, {number}: {type(error).__name__}: {error}")
    assert not wrong, "\n".join(wrong)
    assert raised > 600


def test_errors_are_also_those_of_python(films: Films, tmp_path: Path) -> None:
    """So that code which expects these goes on."""
    for expected in (rankine.ArgumentError, TypeError, ValueError):
        with pytest.raises(expected, match="^5 cannot be given here: .*os.PathLike"):
            api.Ranker.load(5)
        with pytest.raises(expected, match="^threads must be a whole number from 1 to 4096$"):
            api.evaluate(films.run, threads=0)
    with pytest.raises(rankine.RowError) as refused:
        api.Ranker.load(films.run).score({"film": Hostile()})
    assert isinstance(refused.value, ValueError)
    with pytest.raises(rankine.ArgumentError) as caused:
        api.Dataset(films.data).batches("eval", -1)
    assert isinstance(caused.value.__cause__, OverflowError)
    finished = api.Trainer(JOB, films.data, tmp_path / "run")
    finished.step({name: values[:8] for name, values in films.columns.items()})
    finished.finish()
    for method in ("evaluate", "checkpoint", "finish"):
        with pytest.raises(rankine.TrainError, match="has finished"):
            getattr(finished, method)()
