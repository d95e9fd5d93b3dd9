"""Bags whose ids have weights: converted, trained, pushed, scored and exported as ONNX."""

import filecmp
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import JOB, command

import rankine

SCHEMA: dict[str, Any] = {
    "label": {"column": "click"},
    "dense": [{"column": "age"}],
    "categorical": [
        {"column": "tags", "weights": "w", "vocabulary": {"kind": "hash", "rows": 50}},
        {
            "column": "genres",
            "weights": "shares",
            "pooling": "mean",
            "vocabulary": {"kind": "identity", "rows": 12},
        },
    ],
}
ROWS = 1000
MODELS: dict[str, dict[str, Any]] = {
    "dlrm": {"kind": "dlrm", "bottom_mlp": [8, 4]},
    "wide-deep": {"kind": "wide-deep"},
}


def rows(count: int, seed: int) -> dict[str, list[Any]]:
    draw = np.random.default_rng(seed)
    tags = [[f"t{tag}" for tag in draw.integers(0, 20, draw.integers(0, 4))] for _ in range(count)]
    genres = [draw.integers(0, 12, draw.integers(0, 3)).tolist() for _ in range(count)]

    def weights(bags: list[list[Any]]) -> list[list[float]]:
        return [(draw.integers(0, 9, len(bag)) / 4).tolist() for bag in bags]

    return {
        "click": draw.integers(0, 2, count).tolist(),
        "age": draw.normal(0, 1, count).tolist(),
        "tags": tags,
        "w": weights(tags),
        "genres": genres,
        "shares": weights(genres),
    }


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of lists, converted from Parquet."""
    place = tmp_path_factory.mktemp("weights")
    pq.write_table(pa.table(rows(ROWS, 1)), place / "rows.parquet")
    rankine.convert("parquet", place / "rows.parquet", place / "data", schema=SCHEMA, split="last:0.2")
    return place


def test_frames_and_files_give_the_same_bytes(place: Path) -> None:
    rankine.convert("arrow", pa.table(rows(ROWS, 1)), place / "frame", schema=SCHEMA, split="last:0.2")
    for part in ("train", "eval"):
        for file in sorted((place / "data" / part).iterdir()):
            assert filecmp.cmp(file, place / "frame" / part / file.name, shallow=False), file.name
    schema = rankine.Dataset(place / "data").schema
    assert [column.get("weighted", False) for column in schema["categorical"]] == [True, True]


def test_batches_have_weights_and_are_scored_as_raw_rows(place: Path) -> None:
    rankine.train(JOB, place / "scored", data={"dir": place / "data"})
    ranker = rankine.Ranker.load(place / "scored")
    batches = list(rankine.Dataset(place / "data").batches("eval", batch_size=64))
    mapped = np.concatenate([ranker.score_mapped(batch.dense, batch.categorical) for batch in batches])
    offsets, ids, weights = batches[0].categorical["tags"]
    assert len(offsets) == 65 and len(ids) == len(weights) and (weights > 0).all()
    columns = {name: values[-ROWS // 5 :] for name, values in rows(ROWS, 1).items()}
    np.testing.assert_array_equal(ranker.score(columns), mapped)
    np.testing.assert_array_equal(ranker.score(pa.table(columns)), mapped)

    short = {**columns, "w": [bag[1:] for bag in columns["w"]]}
    with pytest.raises(rankine.RowError, match="column w, row .*: .* weights? for .* of tags: each category needs one"):
        ranker.score(short)
    negative = {**columns, "w": [[-1.0 for _ in bag] for bag in columns["w"]]}
    with pytest.raises(rankine.RowError, match="column w, row .*: -1 is not a weight"):
        ranker.score(negative)
    # Nulls of both lists would take each other's place.
    nulls = pa.table({**columns, "tags": [[None, "t1"]] * 200, "w": [[1.0, None]] * 200})
    with pytest.raises(rankine.RowError, match="column w, row 0: NaN is not a weight"):
        ranker.score(nulls)
    dense, one = np.zeros((1, 1), np.float32), (np.array([0, 1]), np.array([3]))
    with pytest.raises(rankine.RowError, match="its ids have weights in the dataset, but none were given"):
        ranker.score_mapped(dense, {"tags": one, "genres": one})


def test_pushed_rows_are_trained_on_as_the_dataset(place: Path) -> None:
    job = {**JOB, "train": {"batch_size": 64, "shuffle": False}}
    expected = rankine.train(job, place / "read", data={"dir": place / "data"})
    trainer = rankine.Trainer(job, place / "data", place / "pushed")
    columns = rows(ROWS, 1)
    for first in range(0, ROWS * 4 // 5, 64):
        last = min(first + 64, ROWS * 4 // 5)
        trainer.step({name: values[first:last] for name, values in columns.items()})
    assert trainer.finish()["eval"]["auc"] == expected["eval"]["auc"]


def padded(offsets: npt.NDArray[Any], values: npt.NDArray[Any], filling: list[Any]) -> npt.NDArray[Any]:
    counts = np.diff(offsets)
    matrix = np.resize(np.array(filling, values.dtype), (len(counts), int(counts.max(initial=0)) + 2))
    matrix[np.arange(matrix.shape[1]) < counts[:, None]] = values
    return matrix


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("layout", ["padded", "offsets"])
def test_onnx_runtime_has_the_probabilities_of_the_ranker(place: Path, name: str, layout: str) -> None:
    run, folder = place / f"{name}-{layout}", place / f"onnx-{name}-{layout}"
    model = {"embedding_dim": 4, "top_mlp": [16], **MODELS[name]}
    rankine.train({**JOB, "model": model}, run, data={"dir": place / "data"})
    command("export", run, "--format", "onnx", "--out", folder, "--bags", layout)
    session = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    batch = next(iter(rankine.Dataset(place / "data").batches("eval", batch_size=200)))
    feed: dict[str, npt.NDArray[Any]] = {"dense": batch.dense}
    for column, (offsets, ids, weights) in batch.categorical.items():
        # Ids with weight 0, which a dataset does not have.
        ends = offsets[1:].astype(np.int64)
        ids = np.insert(ids, ends, 1).astype(np.int64)
        weights = np.insert(weights, ends, 0).astype(np.float32)
        offsets = offsets.astype(np.int64) + np.arange(len(offsets))
        if layout == "offsets":
            feed |= {column: ids, f"{column}.offsets": offsets, f"{column}.weights": weights}
        else:
            feed |= {
                column: padded(offsets, ids, [-7, 10**12, 0, 3]),
                f"{column}.count": np.diff(offsets),
                f"{column}.weights": padded(offsets, weights, [np.nan, -1, np.inf, 2]),
            }
    (probabilities,) = session.run(["probability"], feed)
    expected = rankine.Ranker.load(run).score_mapped(batch.dense, batch.categorical)
    assert np.ptp(expected) > 0.01
    np.testing.assert_allclose(probabilities[:, 0], expected, rtol=1e-5)
