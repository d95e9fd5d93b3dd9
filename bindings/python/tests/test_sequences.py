"""Sequences with attention: converted, encoded by workers, trained, pushed, scored and exported as ONNX."""

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
        {"column": "item", "vocabulary": {"kind": "exact", "min_count": 1}},
        {"column": "shop", "vocabulary": {"kind": "identity", "rows": 4}},
        {"column": "items", "vocabulary": {"kind": "shared", "with": "item"}},
        {"column": "shops", "vocabulary": {"kind": "shared", "with": "shop"}},
    ],
    "sequence": [{"name": "clicks", "columns": ["items", "shops"], "max": 4}],
}
ROWS, TRAIN_ROWS = 2000, 1600
TABLES = [{"columns": ["item", "items"]}, {"columns": ["shop", "shops"]}]
QUERY = ["item", "shop"]
# Each kind of attention in a kind of model.
MODELS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "din": ({"kind": "dlrm", "bottom_mlp": [8, 4]}, {"query": QUERY, "hidden": [8, 3]}),
    "din-positions": ({"kind": "dcnv2", "cross_layers": 1}, {"query": QUERY, "position_embedding": True}),
    "dot": ({"kind": "dcnv2", "cross_layers": 1}, {"query": QUERY}),
    "dot-positions": ({"kind": "dlrm", "bottom_mlp": [8, 4]}, {"query": QUERY, "position_embedding": True}),
    "mean": ({"kind": "wide-deep"}, {}),
}


def job(kind: str) -> dict[str, Any]:
    """A job that reads in the dataset's order, as rows are pushed."""
    model, attention = MODELS[kind]
    return {
        **JOB,
        "model": {"embedding_dim": 4, "top_mlp": [16], **model},
        "attention": [{"kind": kind.partition("-")[0], "sequence": "clicks", **attention}],
        "table": TABLES,
        "train": {"batch_size": 64, "shuffle": False},
    }


def rows(count: int, seed: int) -> dict[str, list[Any]]:
    """Rows of which many are clicks if an item of the kind on offer was clicked in its shop."""
    draw = np.random.default_rng(seed)
    item, shop = draw.integers(0, 20, count), draw.integers(0, 4, count)
    items = [draw.integers(0, 20, draw.integers(0, 7)) for _ in range(count)]
    shops = [draw.integers(0, 4, len(bag)) for bag in items]
    last = zip(item, shop, items, shops)
    liked = [bool(((i[-4:] % 2 == own % 2) & (s[-4:] == at)).any()) for own, at, i, s in last]
    return {
        "click": [int(like != (draw.random() < 0.1)) for like in liked],
        "age": draw.normal(0, 1, count).tolist(),
        "item": [f"i{own}" for own in item],
        "shop": shop.tolist(),
        "items": [[f"i{own}" for own in bag] for bag in items],
        "shops": [bag.tolist() for bag in shops],
    }


def piece(columns: dict[str, list[Any]], first: int, last: int) -> dict[str, list[Any]]:
    return {name: values[first:last] for name, values in columns.items()}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of lists, converted from Parquet."""
    place = tmp_path_factory.mktemp("sequences")
    pq.write_table(pa.table(rows(ROWS, 1)), place / "rows.parquet")
    rankine.convert("parquet", place / "rows.parquet", place / "data", schema=SCHEMA, split="last:0.2")
    return place


def test_frames_and_files_give_the_same_bytes(place: Path) -> None:
    rankine.convert("arrow", pa.table(rows(ROWS, 1)), place / "frame", schema=SCHEMA, split="last:0.2")
    for part in ("train", "eval"):
        for file in sorted((place / "data" / part).iterdir()):
            assert filecmp.cmp(file, place / "frame" / part / file.name, shallow=False), file.name
    (sequence,) = rankine.Dataset(place / "data").schema["sequences"]
    assert sequence == {"name": "clicks", "columns": ["items", "shops"], "max": 4, "keep": "last"}
    uneven = rows(10, 1)
    uneven["shops"][3] = [*uneven["shops"][3], 1]
    with pytest.raises(rankine.DataError, match="row 4, column shops: .* but column items of the same sequence has"):
        rankine.convert("arrow", pa.table(uneven), place / "uneven", schema=SCHEMA)


def samples(dataset: Path) -> list[tuple[Any, ...]]:
    """Returns the numbers of the training part's samples, and their bags."""
    found: list[tuple[Any, ...]] = []
    for batch in rankine.Dataset(dataset).batches("train", 512):
        columns = [
            [tuple(ids[start:end].tolist()) for start, end in zip(offsets, offsets[1:])]
            for offsets, ids in batch.categorical.values()
        ]
        found += zip(map(float, batch.dense[:, 0]), *columns)
    return found


def test_workers_encode_the_samples_of_a_conversion(place: Path) -> None:
    columns = rows(ROWS, 1)
    tables = [pa.table(piece(columns, first, first + 500)) for first in range(0, ROWS, 500)]
    rankine.fit([rankine.learn(table, schema=SCHEMA) for table in tables], place / "fit")
    shards = [
        rankine.encode(table, place / "fit", place / "shards", name=f"piece-{at}") for at, table in enumerate(tables)
    ]
    rankine.commit(shards, place / "shards")
    pq.write_table(pa.table(columns), place / "all.parquet")
    rankine.convert("parquet", place / "all.parquet", place / "all", like=place / "fit")
    encoded = samples(place / "shards")
    assert len(encoded) == ROWS and encoded == samples(place / "all")
    assert max(len(bag) for _, _, _, bag, _ in encoded) == 4


@pytest.mark.parametrize("kind", MODELS)
def test_rows_of_any_form_have_the_scores_of_the_evaluation(place: Path, kind: str) -> None:
    run = place / f"scored-{kind}"
    summary = rankine.train(job(kind), run, data={"dir": place / "data"})
    ranker = rankine.Ranker.load(run)
    (batch,) = rankine.Dataset(place / "data").batches("eval", batch_size=ROWS)
    mapped = ranker.score_mapped(batch.dense, batch.categorical)
    columns = piece(rows(ROWS, 1), TRAIN_ROWS, ROWS)
    np.testing.assert_array_equal(ranker.score(columns), mapped)
    np.testing.assert_array_equal(ranker.score(pa.table(columns)), mapped)
    labels, scores = np.array(columns["click"]), mapped.astype(np.float64)
    log_loss = -np.where(labels == 1, np.log(scores), np.log1p(-scores)).mean()
    assert log_loss == pytest.approx(summary["eval"]["log_loss"], abs=1e-6)

    # Of a longer history the last four positions count, whose order matters only if positions have vectors.
    assert max(map(len, columns["items"])) > 4
    shorter = {**columns, **{name: [bag[-4:] for bag in columns[name]] for name in ("items", "shops")}}
    np.testing.assert_array_equal(ranker.score(shorter), mapped)
    turned = {**shorter, **{name: [bag[::-1] for bag in shorter[name]] for name in ("items", "shops")}}
    assert np.allclose(ranker.score(turned), mapped, atol=1e-6) == (not kind.endswith("positions"))
    assert (ranker.score({**columns, "items": [[] for _ in labels], "shops": [[] for _ in labels]}) != mapped).any()

    uneven = {**columns, "shops": [bag[1:] for bag in columns["shops"]]}
    with pytest.raises(rankine.RowError, match="column shops, row .*: .* but column items of the same sequence has"):
        ranker.score(uneven)


def test_din_learns_what_the_mean_cannot(place: Path) -> None:
    auc = {}
    for kind in ("din", "mean"):
        settings = {**job("din"), "attention": job(kind)["attention"], "train": {"batch_size": 64, "epochs": 20}}
        auc[kind] = rankine.train(settings, place / f"learned-{kind}", data={"dir": place / "data"})["eval"]["auc"]
    assert auc["din"] > auc["mean"] + 0.01, auc


def test_pushed_rows_are_trained_on_as_the_dataset(place: Path) -> None:
    expected = rankine.train(job("din"), place / "read", data={"dir": place / "data"})
    trainer = rankine.Trainer(job("din"), place / "data", place / "pushed")
    columns = rows(ROWS, 1)
    for first in range(0, TRAIN_ROWS, 64):
        trainer.step(piece(columns, first, min(first + 64, TRAIN_ROWS)))
    assert trainer.finish()["eval"]["auc"] == expected["eval"]["auc"]


def padded(offsets: npt.NDArray[Any], ids: npt.NDArray[Any], width: int) -> npt.NDArray[np.int64]:
    """Puts the ids of each row into a row of a matrix. What follows them must not matter."""
    matrix = np.resize(np.array([-7, 10**12, 0, 3]), (len(offsets) - 1, width))
    matrix[np.arange(width) < np.diff(offsets)[:, None]] = ids
    return matrix


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("layout", ["padded", "offsets"])
def test_onnx_runtime_has_the_probabilities_of_the_ranker(place: Path, kind: str, layout: str) -> None:
    run, folder = place / f"{kind}-{layout}", place / f"onnx-{kind}-{layout}"
    rankine.train(job(kind), run, data={"dir": place / "data"})
    command("export", run, "--format", "onnx", "--out", folder, "--bags", layout)
    session = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    ranker = rankine.Ranker.load(run)
    # Many rows, some of which have no history; one; one without a history; none.
    (batch,) = rankine.Dataset(place / "data").batches("eval", batch_size=ROWS)
    empty = int(np.flatnonzero(np.diff(batch.categorical["items"][0].astype(np.int64)) == 0)[0])
    for first, last in ((0, len(batch)), (0, 1), (empty, empty + 1), (0, 0)):
        dense = batch.dense[first:last]
        feed: dict[str, npt.NDArray[Any]] = {"dense": dense}
        columns: dict[str, tuple[npt.NDArray[Any], npt.NDArray[Any]]] = {}
        for name, (offsets, ids) in batch.categorical.items():
            start, end = int(offsets[first]), int(offsets[last])
            own = (offsets[first : last + 1].astype(np.int64) - start, ids[start:end].astype(np.int64))
            columns[name] = own
            if name in QUERY:
                feed[name] = own[1].reshape(last - first, 1)
            elif layout == "offsets":
                feed |= {name: own[1], f"{name}.offsets": own[0]}
            else:
                # Both columns are as wide: wider than the longest history.
                feed |= {name: padded(*own, width=5), f"{name}.count": np.diff(own[0])}
        (probabilities,) = session.run(["probability"], feed)
        expected = ranker.score_mapped(dense, columns)
        assert last - first < 100 or np.ptp(expected) > 0.05
        np.testing.assert_allclose(probabilities[:, 0], expected, rtol=1e-5)
