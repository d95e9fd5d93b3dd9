"""Conversion of rows that are in no file: the dataset is that of a Parquet file with the same rows."""

import contextlib
import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import JOB, SCHEMA, ratings

import rankine

# The tags are a column of lists, and so have no separator.
TABLE_SCHEMA: dict[str, Any] = copy.deepcopy(SCHEMA)
del TABLE_SCHEMA["categorical"][-1]["separator"]
ROWS = ratings(700, 1)
# Two columns that no schema names; the type of one cannot be converted.
TABLE = pa.table({**ROWS, "id": list(range(700)), "when": pa.array([0] * 700, pa.timestamp("ns"))})


def batches() -> Iterator[pa.RecordBatch]:
    yield from TABLE.to_batches(max_chunksize=150)


def sources() -> dict[str, Any]:
    """The rows as each kind of data that `convert` takes."""
    frame = pd.DataFrame({**ROWS, "id": range(700)})
    return {
        "table": TABLE,
        "pandas": frame,
        "pandas with an index": frame.set_index(frame["id"] * 3),
        "pandas categories": frame.astype({"film": "category"}),
        "polars": pl.DataFrame(ROWS),
        "polars categories": pl.DataFrame(ROWS).with_columns(pl.col("film").cast(pl.Categorical)),
        "reader": pa.RecordBatchReader.from_batches(TABLE.schema, batches()),
        "iterator of batches": batches(),
        "tables": [TABLE.slice(0, 100), TABLE.slice(100, 0), TABLE.slice(100)],
        "other order": (batch.select(batch.column_names[:: 1 if at else -1]) for at, batch in enumerate(batches())),
        "batch": TABLE.combine_chunks().to_batches()[0],
    }


def contents(dataset: Path) -> dict[str, bytes]:
    paths = [path for path in dataset.rglob("*") if path.is_file()]
    return {str(path.relative_to(dataset)): path.read_bytes() for path in sorted(paths)}


@pytest.fixture(scope="module")
def parquet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset from a file with the name that the package gives to rows, which a dataset records."""
    place = tmp_path_factory.mktemp("parquet")
    with contextlib.chdir(place):
        pq.write_table(pa.table(ROWS), "<train>")
        rankine.convert("parquet", "<train>", "data", schema=TABLE_SCHEMA, split="last:0.2")
    return place / "data"


@pytest.mark.parametrize("kind", sources())
def test_the_dataset_is_that_of_parquet(parquet: Path, tmp_path: Path, kind: str) -> None:
    out = tmp_path / "new/data"
    report = rankine.convert("arrow", sources()[kind], out, schema=TABLE_SCHEMA, split="last:0.2")
    assert report["rows"] == {"read": 700, "kept": 700, "bad": 0, "train": 560, "eval": 140}
    assert report["files"] == ["<train>"] and report["dataset"] == str(out)
    assert contents(out) == contents(parquet)
    # The file of the rows has no name, and is gone.
    assert [path.name for path in tmp_path.iterdir()] == ["new"]
    assert sorted(path.name for path in out.parent.iterdir()) == ["data"]


def test_a_column_that_the_schema_lacks_splits_rows(tmp_path: Path) -> None:
    days = TABLE.append_column("day", pa.array([row % 10 for row in range(700)]))
    report = rankine.convert("arrow", days, tmp_path / "data", schema=TABLE_SCHEMA, split="after:day:6")
    assert (report["rows"]["train"], report["rows"]["eval"]) == (490, 210)
    with pytest.raises(rankine.DataError, match="has no column `dya`"):
        rankine.convert("arrow", days, tmp_path / "no", schema=TABLE_SCHEMA, split="after:dya:6")


def test_an_evaluation_part_and_further_rows(parquet: Path, tmp_path: Path) -> None:
    out = tmp_path / "data"
    report = rankine.convert("arrow", TABLE.slice(0, 560), out, eval=TABLE.slice(560), schema=TABLE_SCHEMA)
    assert (report["files"], report["eval"]) == (["<train>"], ["<eval>"])
    written, expected = contents(out), contents(parquet)
    assert {path for path in expected if written[path] != expected[path]} == {"conversion.json", "dataset.json"}

    like = rankine.convert("arrow", TABLE, tmp_path / "like", like=parquet)
    assert like["rows"]["train"] == 700
    assert contents(tmp_path / "like")["vocabulary/film.tsv"] == expected["vocabulary/film.tsv"]
    summary = rankine.train(JOB, tmp_path / "run", data={"dir": out}, train={"max_steps": 2})
    assert summary["train"]["steps"] == 2


def test_many_rows_take_several_row_groups(tmp_path: Path) -> None:
    schema = {"label": {"column": "y"}, "categorical": [{"column": "c", "vocabulary": {"kind": "hash", "rows": 50}}]}
    piece = pa.table({"y": [0, 1] * 5000, "c": list(range(10_000))})
    report = rankine.convert("arrow", (piece for _ in range(20)), tmp_path / "data", schema=schema)
    assert report["rows"]["train"] == 200_000
    first = next(rankine.Dataset(tmp_path / "data").batches("train", 20_000))
    assert (first.categorical["c"][1][:10_000] == first.categorical["c"][1][10_000:]).all()


def refusal(rows: Any, out: Path, **options: Any) -> str:
    with pytest.raises(rankine.Error) as error:
        options = options if "like" in options else {"schema": TABLE_SCHEMA, **options}
        rankine.convert("arrow", rows, out, **options)
    assert not out.exists() and list(out.parent.iterdir()) == []
    return str(error.value)


def test_rows_that_do_not_fit_are_refused(parquet: Path, tmp_path: Path) -> None:
    out = tmp_path / "data"
    renamed = TABLE.rename_columns(["film_id" if name == "film" else name for name in TABLE.column_names])
    missing = "<train> has no column `film` (did you mean `film_id`?); it has `rating`, "
    assert missing in refusal(renamed, out)
    assert refusal(renamed, out, like=parquet).startswith(missing)
    assert "<eval> has no column `film`" in refusal(TABLE, out, eval=renamed)
    later = "<train> has no column `film` in a later piece than the first"
    assert refusal(iter([TABLE, TABLE.drop_columns(["film"])]), out) == later
    texts = TABLE.set_column(TABLE.column_names.index("price"), "price", pa.array(["1"] * 700))
    assert refusal([TABLE, texts], out) == (
        "<train>: column `price` has values of type Float64, and of type Utf8 in a later piece"
    )
    assert "column `price` has strings in <train>, but must have numbers" in refusal(texts, out)
    twice = pa.table([*TABLE.columns, TABLE["age"]], names=[*TABLE.column_names, "age"])
    assert refusal(twice, out) == "<train> has two columns named `age`"
    assert refusal(iter([]), out) == "<train> has no record batch, and so no columns"
    assert refusal([{"film": ["f1"]}], out).startswith("<train> has a dict; expected record batches")
    assert refusal(3, out) == (
        "<train> is a int; expected a data frame, an Arrow table, or an iterable of record batches"
    )
    bad = TABLE.set_column(TABLE.column_names.index("hour"), "hour", pa.array([24] * 700))
    assert "<train>" in refusal(bad, out) and "row 1" in refusal(bad, out)
    assert "no option shape" in refusal(TABLE, out, shape="dlrm")


def test_an_output_that_exists_is_refused_before_rows_are_read(parquet: Path) -> None:
    before, rows = contents(parquet), batches()
    with pytest.raises(rankine.DataError, match="data"):
        rankine.convert("arrow", rows, parquet, schema=TABLE_SCHEMA)
    assert next(rows) == next(batches()) and contents(parquet) == before
    assert [path.name for path in parquet.parent.iterdir() if path.name.endswith(".partial")] == []


def test_an_error_of_the_callers_iterator_arrives(tmp_path: Path) -> None:
    def broken() -> Iterator[pa.RecordBatch]:
        yield from batches()
        raise LookupError("the connection is lost")

    with pytest.raises(LookupError, match="^the connection is lost$"):
        rankine.convert("arrow", broken(), tmp_path / "data", schema=TABLE_SCHEMA)
    assert list(tmp_path.iterdir()) == []
    reader = pa.RecordBatchReader.from_batches(TABLE.schema, broken())
    with pytest.raises(rankine.DataError, match="the connection is lost"):
        rankine.convert("arrow", reader, tmp_path / "data", schema=TABLE_SCHEMA)


def test_the_report_is_that_of_the_file(tmp_path: Path) -> None:
    report = rankine.convert("arrow", TABLE, tmp_path / "data", schema=TABLE_SCHEMA)
    written = json.loads((tmp_path / "data/conversion.json").read_text())
    assert {key: value for key, value in report.items() if key != "dataset"} == written
