"""Mapped features: scores are those of `rankine predict` for a dataset."""

import sys
import threading
import time
from typing import Any

import numpy as np
import pytest
from conftest import JOB, Films, Generated, predicted

import rankine


def whole_part(data: Any) -> rankine.Batch:
    (batch,) = rankine.Dataset(data).batches(batch_size=10_000)
    return batch


def test_batches_are_scored_as_the_command_scores_them(generated: Generated) -> None:
    ranker = rankine.Ranker.load(generated.run)
    assert ranker.columns is None
    batches = list(rankine.Dataset(generated.data).batches(batch_size=128))
    assert [len(batch) for batch in batches] == [128] * 5 + [60]
    scores = [ranker.score_mapped(batch.dense, batch.categorical) for batch in batches]
    assert all(part.dtype == np.float32 for part in scores)
    np.testing.assert_array_equal(np.concatenate(scores), generated.expected)


def test_every_layout_has_the_same_scores(generated: Generated) -> None:
    ranker, batch = rankine.Ranker.load(generated.run), whole_part(generated.data)
    names = list(batch.categorical)
    ids = [ids.reshape(len(batch), -1) for _, ids in batch.categorical.values()]
    assert [column.shape[1] for column in ids] == [1, 3, 1, 2]
    wide = np.zeros((len(batch), 8), dtype=np.float32)
    wide[:, ::2] = batch.dense
    layouts: list[tuple[Any, Any]] = [
        (batch.dense, ids),
        (batch.dense, tuple(ids)),
        (batch.dense, dict(zip(names, ids))),
        (batch.dense, dict(reversed(list(zip(names, ids))))),
        (batch.dense, [column.astype(np.int64) for column in ids]),
        (batch.dense, [column.astype(np.uint16) for column in ids]),
        (batch.dense, [column.astype(">u8") for column in ids]),
        (batch.dense, [np.asfortranarray(column) for column in ids]),
        (batch.dense, [column.squeeze() for column in ids]),
        (batch.dense, [column.tolist() for column in ids]),
        (batch.dense, [(offsets.astype(np.int64), ids) for offsets, ids in batch.categorical.values()]),
        (batch.dense.astype(np.float64), ids),
        (np.asfortranarray(batch.dense), ids),
        (wide[:, ::2], ids),
        (batch.dense.tolist(), ids),
    ]
    for dense, categorical in layouts:
        np.testing.assert_array_equal(ranker.score_mapped(dense, categorical), generated.expected)


def test_several_threads_have_the_same_scores(generated: Generated) -> None:
    batch = whole_part(generated.data)
    expected = rankine.Ranker.load(generated.run).score_mapped(batch.dense, batch.categorical)
    for threads in (1, 2, 5):
        ranker = rankine.Ranker.load(generated.run, threads=threads)
        assert np.array_equal(ranker.score_mapped(batch.dense, batch.categorical), expected)
    with pytest.raises(ValueError, match="a ranker cannot score on 0 threads"):
        rankine.Ranker.load(generated.run, threads=0)


def test_several_heads_and_ragged_columns(films: Films) -> None:
    ranker, batch = rankine.Ranker.load(films.run), whole_part(films.data)
    scores = ranker.score_mapped(batch.dense, batch.categorical)
    assert scores.shape == (400, 2) and batch.labels.shape == (400, 2)
    assert set(np.unique(batch.labels[:, 1])) == {0, 1} and np.isnan(batch.labels[:, 0]).any()
    assert batch.weights is None
    assert batch.categorical["tags"][0].dtype == np.uint32 and batch.categorical["tags"][1].dtype == np.uint64
    first = {name: (np.array([0, offsets[1]]), ids[: offsets[1]]) for name, (offsets, ids) in batch.categorical.items()}
    np.testing.assert_array_equal(ranker.score_mapped(batch.dense[:1], first), scores[:1])


def test_no_rows_have_no_scores(generated: Generated) -> None:
    ranker = rankine.Ranker.load(generated.run)
    none: Any = []
    assert ranker.score_mapped(np.zeros((0, 4), dtype=np.float32), [none, np.zeros((0, 3), int), none, none]).shape == (0,)


def refusal(ranker: rankine.Ranker, dense: Any, categorical: Any) -> str:
    with pytest.raises(rankine.RowError) as refused:
        ranker.score_mapped(dense, categorical)
    return str(refused.value)


def test_features_that_do_not_fit_are_refused(generated: Generated) -> None:
    ranker = rankine.Ranker.load(generated.run)
    dense, one = np.zeros((3, 4), dtype=np.float32), np.zeros(3, dtype=np.uint64)
    good: list[Any] = [one, np.zeros((3, 3), dtype=np.uint64), one, np.zeros((3, 2), dtype=np.uint64)]
    assert ranker.score_mapped(dense, good).shape == (3,)

    def with_first(column: Any) -> str:
        return refusal(ranker, dense, [column, *good[1:]])

    nan = dense.copy()
    nan[1, 2] = np.nan
    assert refusal(ranker, nan, good) == (
        "column I3, row 1: NaN is not finite; mapped features have no missing numbers"
    )
    assert refusal(ranker, dense[:, :3], good) == (
        "dense features: 9 numbers for 3 rows of 4 columns; expected 12"
    )
    assert refusal(ranker, dense[0], good) == "dense features have the shape [4]; expected [rows, columns]"
    texts = np.array([["a"]])
    assert refusal(ranker, texts, good) == "dense features are of type <U1; expected float32"
    assert with_first(np.array([0, 40, 0])) == "column C1, row 1: id 40 is out of range: its table has 40 rows"
    assert with_first(np.array([0, 0, -7])) == "column C1, row 2: id -7 is negative"
    assert with_first(([0, 1, 2, 3], [0, 0, -7])) == "column C1, row 2: id -7 is negative"
    assert with_first(np.zeros(3)) == "column C1 has ids of type float64; expected uint64 or int64"
    assert with_first(one[:2]) == "column C1 has 2 rows; expected 3"
    assert with_first(np.zeros((3, 1, 1), int)) == (
        "column C1 has the shape [3, 1, 1]; expected [rows] or [rows, ids per row]"
    )
    assert with_first(([0, 2, 1, 3], [0, 0, 0])) == "column C1, row 1: the offsets decrease from 2 to 1"
    assert with_first(([1, 2, 3, 3], [0, 0, 0])) == "column C1: the first offset is 1; expected 0"
    assert with_first(([0, 1, 2, 4], [0, 0, 0])) == "column C1: the last offset is 4, but there are 3 ids"
    assert with_first(([0, 1], [0])) == (
        "column C1: 2 offsets; expected 4, one per row and the end of the last one"
    )
    assert with_first(([0, 1, 1, 2], [0, 0])) == "column C1, row 1: 0 ids; expected 1, as in training"
    expected = "column C1 is a tuple of length 1, but a tuple must be (offsets, ids), or (offsets, ids, weights)"
    assert with_first((one,)) == expected
    assert refusal(ranker, dense, [good[0], np.zeros((3, 2), int), *good[2:]]) == (
        "column C2: 6 ids for 3 rows of 3; expected 9"
    )
    assert refusal(ranker, dense, good[:3]) == "3 categorical columns, but the model has 4"
    assert refusal(ranker, dense, [*good, one]) == "5 categorical columns, but the model has 4"
    named = dict(zip(["C1", "C2", "C3", "C4"], good))
    assert refusal(ranker, dense, {**named, "C4x": one}) == "the model has no column C4x: did you mean `C4`?"
    assert refusal(ranker, dense, {"C1": one}) == "there is no column C2"
    assert refusal(ranker, dense, 7).startswith("categorical columns are a int; expected a list")
    many = np.zeros((65537, 4), dtype=np.float32)
    ids = [np.zeros((65537, count), dtype=np.uint64) for count in (1, 3, 1, 2)]
    assert refusal(ranker, many, ids) == (
        "at most 65536 rows can be scored per call, not 65537: score them in several calls"
    )


def test_ragged_columns_need_offsets(films: Films) -> None:
    ranker, batch = rankine.Ranker.load(films.run), whole_part(films.data)
    ids = {**batch.categorical, "tags": np.zeros(400, dtype=np.uint64)}
    assert refusal(ranker, batch.dense, ids) == (
        "column tags is ragged, so it needs offsets"
    )


def test_models_of_generated_data_have_no_raw_rows(generated: Generated) -> None:
    with pytest.raises(rankine.RowError, match="^generated data have no raw rows: give mapped features$"):
        rankine.Ranker.load(generated.run).score({"C1": [1]})


def test_other_threads_run_while_rows_are_scored(generated: Generated) -> None:
    """With the interpreter held, a thread that counts would not advance during a call."""
    ranker = rankine.Ranker.load(generated.run)
    rows = 65536
    dense = np.zeros((rows, 4), dtype=np.float32)
    ids = [np.zeros((rows, count), dtype=np.uint64) for count in (1, 3, 1, 2)]
    ticks: list[float] = []
    running = threading.Event()

    def tick() -> None:
        running.set()
        while running.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.0005)

    thread = threading.Thread(target=tick)
    thread.start()
    running.wait()
    begin = time.perf_counter()
    ranker.score_mapped(dense, ids)
    end = time.perf_counter()
    running.clear()
    thread.join()
    # Ticks in the middle of the call, not those at its borders.
    within = [at for at in ticks if begin + (end - begin) / 4 < at < end - (end - begin) / 4]
    assert len(within) >= 3, f"{len(within)} ticks in {end - begin} s"


def test_threads_score_while_models_are_swapped(generated: Generated, tmp_path: Any) -> None:
    """Each call is scored by one model as a whole."""
    other = tmp_path / "other"
    rankine.train({**JOB, "seed": 2}, other, data={"dir": generated.data})
    expected = [generated.expected, predicted(other, "--data", generated.data).ravel()]
    assert not np.array_equal(expected[0], expected[1])
    ranker, batch = rankine.Ranker.load(generated.run), whole_part(generated.data)
    seen: list[set[int]] = [set() for _ in range(4)]
    stop = threading.Event()

    def score(seen: set[int]) -> None:
        while not stop.is_set():
            scores = ranker.score_mapped(batch.dense, batch.categorical)
            seen.add(next((n for n, of in enumerate(expected) if np.array_equal(scores, of)), -1))

    threads = [threading.Thread(target=score, args=(of,)) for of in seen]
    for thread in threads:
        thread.start()
    for _ in range(5):
        ranker.swap(other)
        time.sleep(0.05)
        ranker.swap(generated.run)
        time.sleep(0.05)
    stop.set()
    for thread in threads:
        thread.join()
    assert all(of <= {0, 1} for of in seen), seen
    assert set().union(*seen) == {0, 1}


def test_a_model_with_other_columns_does_not_replace_one(generated: Generated, films: Films) -> None:
    ranker = rankine.Ranker.load(generated.run)
    with pytest.raises(rankine.ModelError, match=r'^the new model has the columns `rating`, `bought`, `age`'):
        ranker.swap(films.run)
    batch = whole_part(generated.data)
    np.testing.assert_array_equal(ranker.score_mapped(batch.dense, batch.categorical), generated.expected)


def test_arrays_are_not_leaked(generated: Generated) -> None:
    ranker, batch = rankine.Ranker.load(generated.run), whole_part(generated.data)
    dense, categorical = batch.dense.copy(), [ids.copy() for _, ids in batch.categorical.values()]
    columns = [ids.reshape(len(batch), -1) for ids in categorical]
    before = [sys.getrefcount(array) for array in [dense, *columns]]
    for _ in range(100):
        ranker.score_mapped(dense, columns)
    assert [sys.getrefcount(array) for array in [dense, *columns]] == before
