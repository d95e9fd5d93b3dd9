"""Learning, encoding and committing in pieces: the result is the one of all rows at once."""

import contextlib
import copy
import random
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import JOB, SCHEMA, command, ratings, refused

import rankine

TABLE_SCHEMA: dict[str, Any] = copy.deepcopy(SCHEMA)
del TABLE_SCHEMA["categorical"][-1]["separator"]
SCHEMA_TEXT = """
label = [{ column = "rating", at_least = 4, missing = "mask" }, { column = "bought" }]
[[dense]]
column = "age"
transform = ["log1p", "standardize"]
[[dense]]
column = "price"
transform = ["standardize"]
[[categorical]]
column = "film"
vocabulary = { kind = "exact", min_count = 2 }
[[categorical]]
column = "last"
vocabulary = { kind = "shared", with = "film" }
[[categorical]]
column = "hour"
vocabulary = { kind = "identity", rows = 24 }
[[categorical]]
column = "tags"
"""


def days() -> list[pa.Table]:
    """Two days of rows; the second one has films that the first one lacks, and a category that is long."""
    first, second = (pa.table(ratings(2000, seed)) for seed in (1, 2))
    films = pa.array(["a film with a title of more than fifteen bytes"] * 3 + second["film"].to_pylist()[3:])
    return [first, second.set_column(second.column_names.index("film"), "film", films)]


def contents(folder: Path) -> dict[str, bytes]:
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(paths)}


def samples(dataset: Path, part: Any = "train") -> list[tuple[Any, ...]]:
    """Returns all samples of a part, in their order."""
    found: list[tuple[Any, ...]] = []
    for batch in rankine.Dataset(dataset).batches(part, 512):
        columns = [
            [ids[start:end].tobytes() for start, end in zip(offsets, offsets[1:])]
            for offsets, ids in batch.categorical.values()
        ]
        rows = zip(batch.labels, batch.dense, *columns)
        found += [(labels.tobytes(), dense.tobytes(), *bags) for labels, dense, *bags in rows]
    return found


def pieces(table: pa.Table, count: int) -> list[pa.Table]:
    """Divides rows into pieces of different sizes."""
    ends = [table.num_rows * (piece + 1) ** 2 // count**2 for piece in range(count)]
    return [table.slice(start, end - start) for start, end in zip([0, *ends], ends)]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files with the rows of two days, fits of the first and of both, and a dataset of each day, by the command."""
    place = tmp_path_factory.mktemp("command")
    (place / "schema.toml").write_text(SCHEMA_TEXT)
    with contextlib.chdir(place):
        for number, table in enumerate(days()):
            pq.write_table(table, f"day{number}.parquet")
        options = ["--schema", "schema.toml"]
        command("fit", "parquet", "day0.parquet", "--out", "fit0", *options)
        command("fit", "parquet", "day1.parquet", "--like", "fit0", "--grow", "--out", "fit1")
        command("convert", "parquet", "day0.parquet", "--like", "fit0", "--out", "data0")
        command("convert", "parquet", "day1.parquet", "--like", "fit1", "--out", "data1")
    return place


@pytest.mark.parametrize("count", [1, 4, 16])
def test_the_fit_is_that_of_the_command(place: Path, tmp_path: Path, count: int) -> None:
    first, second = days()
    # Neither the order of pieces nor the one of their rows matters.
    parts = [piece.take(list(range(piece.num_rows))[::-1]) for piece in pieces(first, count)][::-1]
    partials = [rankine.learn(piece, schema=place / "schema.toml") for piece in parts]
    report = rankine.fit(partials, tmp_path / "fit0", names=["day0.parquet"])
    assert contents(tmp_path / "fit0") == contents(place / "fit0")
    assert report["rows"]["train"] == 2000 and report["fit"] == str(tmp_path / "fit0")

    more = (rankine.learn(piece, like=tmp_path / "fit0") for piece in pieces(second, count))
    report = rankine.fit(more, tmp_path / "fit1", like=tmp_path / "fit0", names=["day1.parquet"])
    assert contents(tmp_path / "fit1") == contents(place / "fit1")
    assert report["columns"]["film"]["new_categories"] > 0


def test_whoever_transports_entries_may_add_them_up(place: Path, tmp_path: Path) -> None:
    # The same piece twice: their statistics are equal, so that they are added up, too.
    piece = days()[0].slice(0, 500)
    entries = [pa.table(rankine.learn(piece, schema=place / "schema.toml")) for _ in range(2)]
    table = pa.concat_tables([*entries, pa.table(rankine.learn(days()[0].slice(500), schema=place / "schema.toml"))])
    added = table.group_by(["column", "value"]).aggregate([("count", "sum")]).rename_columns(table.column_names)
    assert added.num_rows < table.num_rows
    for name, given in [
        ("as they are", table),
        ("added up", added.take(random.Random(1).sample(range(added.num_rows), added.num_rows))),
        ("polars", pl.from_arrow(added)),
        ("batches", iter(added.to_batches(max_chunksize=7))),
    ]:
        rankine.fit(given, tmp_path / name, names=["rows.parquet"])
        assert contents(tmp_path / name) == contents(tmp_path / "as they are"), name
    pq.write_table(pa.concat_tables([piece, piece, days()[0].slice(500)]), tmp_path / "rows.parquet")
    with contextlib.chdir(tmp_path):
        command("fit", "parquet", "rows.parquet", "--schema", place / "schema.toml", "--out", "expected")
    assert contents(tmp_path / "added up") == contents(tmp_path / "expected")


def test_counts_on_disk_give_the_same_fit(place: Path, tmp_path: Path) -> None:
    partials = [rankine.learn(piece, schema=place / "schema.toml", memory=1) for piece in pieces(days()[0], 4)]
    rankine.fit(partials, tmp_path / "fit", names=["day0.parquet"], memory=1)
    assert contents(tmp_path / "fit") == contents(place / "fit0")


@pytest.mark.parametrize("count", [1, 4, 16])
def test_shards_have_the_samples_of_the_command(place: Path, tmp_path: Path, count: int) -> None:
    out = tmp_path / "clicks"
    for day, table in enumerate(days()):
        parts = pieces(table, count)
        shards = [
            rankine.encode(piece, place / f"fit{day}", out, name=f"day{day}-{number}")
            for number, piece in enumerate(parts)
        ]
        committed = rankine.commit(shards, out, mode="append")
        assert committed["datasets"] == (day + 1) * count
    assert committed["samples"] == {"train": 4000, "eval": 0}
    assert samples(out) == samples(place / "data0") + samples(place / "data1")
    assert {path.name for path in out.iterdir()} == {"collection.json", "shards", "statistics"}


def test_the_model_is_that_of_the_same_shards_by_the_command(place: Path, tmp_path: Path) -> None:
    with contextlib.chdir(tmp_path):
        for number, piece in enumerate(pieces(days()[0], 3)):
            pq.write_table(piece, f"{number}.parquet")
            command("convert", "parquet", f"{number}.parquet", "--like", place / "fit0", "--out", f"d{number}")
        command("dataset", "merge", "d0", "d1", "d2", "--out", "merged")
    named = [(piece, f"p{number}") for number, piece in enumerate(pieces(days()[0], 3))]
    # Encoded in another order than committed.
    shards = [rankine.encode(piece, place / "fit0", tmp_path / "clicks", name=name) for piece, name in named[::-1]]
    rankine.commit(shards[::-1], tmp_path / "clicks")
    models = []
    for data in ("merged", "clicks"):
        rankine.train(JOB, tmp_path / f"run-{data}", data={"dir": tmp_path / data}, train={"epochs": 2})
        models.append((tmp_path / f"run-{data}/model/model.safetensors").read_bytes())
    assert models[0] == models[1]


def test_a_piece_that_is_encoded_again_is_the_same_shard(place: Path, tmp_path: Path) -> None:
    out = tmp_path / "clicks"
    first, again = (rankine.encode(days()[0], place / "fit0", out, name="a") for _ in range(2))
    assert first is not None and first == again
    shard = Path(first["dataset"])
    assert [path.name for path in (out / "shards").iterdir()] == [shard.name]
    assert shard.name.startswith("a-")
    # The vocabularies are links to the fit.
    assert (shard / "vocabulary/film.tsv").samefile(place / "fit0/vocabulary/film.tsv")
    # Other rows are another shard.
    other = rankine.encode(days()[0].slice(1), place / "fit0", out, name="a")
    assert other is not None and other["dataset"] != first["dataset"]
    assert rankine.encode(days()[0].slice(0, 0), place / "fit0", out, name="b") is None
    assert rankine.encode(iter([]), place / "fit0", out, name="b") is None


def test_commits_are_repeated_appended_and_overwritten(place: Path, tmp_path: Path) -> None:
    out = tmp_path / "clicks"
    one, two, three = (
        rankine.encode(piece, place / "fit0", out, name=f"p{number}")
        for number, piece in enumerate(pieces(days()[0], 3))
    )
    rankine.commit([one, None, two], out)
    before = contents(out)
    assert rankine.commit([one, two], out)["datasets"] == 2
    assert rankine.commit([two], out, mode="append")["datasets"] == 2
    assert contents(out) == before
    with pytest.raises(rankine.DataError, match="already has a collection of other shards"):
        rankine.commit([one], out)
    assert rankine.commit([three], out, mode="append")["samples"]["train"] == 2000
    # A reader of the old collection finds its statistics.
    assert set(before) - {"collection.json"} <= set(contents(out))
    assert rankine.commit([three], out, mode="overwrite")["datasets"] == 1
    assert samples(out) == samples(Path(three["dataset"]))  # type: ignore[index]
    with pytest.raises(rankine.DataError, match="is a dataset"):
        rankine.commit([one], place / "data0")
    with pytest.raises(rankine.DataError, match="at least one dataset"):
        rankine.commit([None], tmp_path / "empty")


def test_what_no_collection_lists_is_found_and_removed(place: Path, tmp_path: Path) -> None:
    out = tmp_path / "clicks"
    one, two, three = (
        rankine.encode(piece, place / "fit0", out, name=f"p{number}")
        for number, piece in enumerate(pieces(days()[0], 3))
    )
    assert one and two and three
    rankine.commit([one], out)
    rankine.commit([two], tmp_path / "other")
    (unfinished := out / "shards/p9-0123456789abcdef.partial").mkdir()
    (own := out / "shards/notes").mkdir()
    # Work that runs may still commit them.
    assert command("dataset", "gc", out) == "nothing to remove\n"
    old = ["--older-than-hours", "0"]
    listed = command("dataset", "gc", out, *old, "--keep", tmp_path / "other").splitlines()
    assert [line.split()[0] for line in listed[:-1]] == [three["dataset"], str(unfinished)]
    assert unfinished.exists() and listed[-1].startswith("2 shards, ") and "--remove" in listed[-1]
    command("dataset", "gc", out, *old, "--keep", tmp_path / "other", "--remove")
    left = {str(path) for path in (out / "shards").iterdir()}
    assert left == {one["dataset"], two["dataset"], str(own)}
    assert samples(out) == samples(Path(one["dataset"]))
    assert command("dataset", "gc", out, *old, "--remove").splitlines()[-1].startswith("removed 1 shard, ")
    assert not Path(two["dataset"]).exists()
    assert "has no folder shards" in refused("dataset", "gc", place / "data0")


def test_a_split_by_a_column_holds_out_the_same_rows(place: Path, tmp_path: Path) -> None:
    split, out = "hash:film:0.2", tmp_path / "clicks"
    table = days()[0]
    parts = pieces(table, 4)
    partials = [rankine.learn(piece, schema=place / "schema.toml", split=split) for piece in parts]
    rankine.fit(partials, tmp_path / "fit", names=["day0.parquet"])
    shards = [
        rankine.encode(piece, tmp_path / "fit", out, name=f"{number}", split=split)
        for number, piece in enumerate(parts)
    ]
    rankine.commit(shards, out)
    with contextlib.chdir(place):
        options = ["--schema", "schema.toml", "--split", split]
        command("fit", "parquet", "day0.parquet", "--out", tmp_path / "expected", *options)
        command("convert", "parquet", "day0.parquet", "--out", tmp_path / "data", *options)
    assert contents(tmp_path / "fit") == contents(tmp_path / "expected")
    for part in ("train", "eval"):
        assert Counter(samples(out, part)) == Counter(samples(tmp_path / "data", part))
    assert len(samples(out, "eval")) > 0


def rows_of_all_types(rows: int) -> pa.Table:
    """Rows whose values are null now and then, in columns of all types that can be read."""
    draw = random.Random(3)

    def values(value: Any, kind: pa.DataType) -> pa.Array:
        return pa.array([None if draw.random() < 0.1 else value(draw.randrange(50)) for _ in range(rows)], kind)

    def few(number: int) -> list[str | None]:
        return [None if word == 3 else f"w{word}" for word in range(number % 6)]

    def lists(number: int) -> list[list[str | None] | None]:
        return [few(number), None, few(number // 7)]

    pairs = pa.array(list(range(2 * rows)), pa.int16())
    words = values(lambda number: f"word {number}", pa.string())
    return pa.table(
        {
            "click": pa.array([draw.random() < 0.5 for _ in range(rows)]),
            "small": values(lambda number: number - 20, pa.int8()),
            "half": values(np.float16, pa.float16()),
            "single": values(lambda number: number / 7, pa.float32()),
            "double": values(lambda number: float("nan") if number == 3 else number / 7, pa.float64()),
            "money": values(lambda number: Decimal(number - 9) / 100, pa.decimal128(9, 2)),
            "short": values(lambda number: number, pa.uint16()),
            "int": values(lambda number: number - 9, pa.int32()),
            "unsigned": values(lambda number: 2**32 - 1 - number, pa.uint32()),
            "wide": values(lambda number: 2**64 - 1 - number, pa.uint64()),
            "yes": values(lambda number: number > 9, pa.bool_()),
            "day": values(lambda number: number, pa.date32()),
            "time": values(lambda number: number * 1_000_000_007, pa.timestamp("us", "UTC")),
            "text": words,
            "all texts": words.fill_null("none"),
            "large": words.cast(pa.large_string()),
            "view": words.cast(pa.string_view()),
            "entry": words.dictionary_encode(),
            "bytes": words.cast(pa.binary()),
            "fixed": values(lambda number: b"%03d" % number, pa.binary(3)),
            "list": values(few, pa.list_(pa.string())),
            "nested": values(lists, pa.large_list(pa.list_(pa.string()))),
            "pair": pa.FixedSizeListArray.from_arrays(pairs, 2),
            "clock": values(lambda number: number, pa.time32("s")),
        }
    )


def test_rows_of_all_types_are_those_of_a_file(tmp_path: Path) -> None:
    table = rows_of_all_types(9000)
    dense = ["small", "half", "single", "double", "money", "yes"]
    # Times of day go through a file, and so do all columns besides them.
    for name, given in [("direct", table.drop_columns(["clock"])), ("file", table)]:
        categorical = [{"column": column} for column in given.column_names if column not in ["click", *dense]]
        schema = {
            "label": {"column": "click"},
            "dense": [{"column": column, "transform": ["standardize"]} for column in dense],
            "categorical": categorical,
        }
        place = tmp_path / name
        rankine.convert("arrow", given, place / "data", schema=schema)
        # Record batches end within chunks of rows, and some have none.
        batches = [given.slice(start, 1501) for start in range(0, given.num_rows, 1501)]
        batches.insert(1, given.slice(0, 0))
        rankine.fit([rankine.learn(iter(batches), schema=schema)], place / "fit")
        encoded = rankine.encode(iter(batches), place / "fit", place / "clicks", name="a")
        assert encoded is not None
        expected, found = contents(place / "data"), contents(Path(encoded["dataset"]))
        # They name their rows.
        for files in (expected, found):
            del files["dataset.json"], files["conversion.json"]
        assert expected == found and any(path.endswith(".blocks") for path in found)
        assert contents(place / "fit/vocabularies") == contents(place / "data/vocabularies")


def test_a_piece_must_have_the_columns_of_the_first(place: Path, tmp_path: Path) -> None:
    table = days()[0]
    renamed = table.rename_columns(["ages" if name == "age" else name for name in table.column_names])
    texts = table.set_column(table.column_names.index("age"), "age", table["age"].cast(pa.string()))
    for second, expected in [(renamed, "no column `age` in a later piece"), (texts, "of type Utf8 in a later piece")]:
        with pytest.raises(rankine.DataError, match=expected):
            rankine.encode(iter([table, second]), place / "fit0", tmp_path / "clicks", name="a")
        assert not list((tmp_path / "clicks/shards").glob("a-*"))


def test_bad_rows_are_named_or_counted(place: Path, tmp_path: Path) -> None:
    table = days()[0]
    hours = pa.array([24, *table["hour"].to_pylist()[1:]])
    bad = table.set_column(table.column_names.index("hour"), "hour", hours)
    with pytest.raises(rankine.DataError, match="<rows> row 1, column hour"):
        rankine.learn(bad, schema=place / "schema.toml")
    with pytest.raises(rankine.DataError, match="<rows> row 1, column hour"):
        rankine.encode(bad, place / "fit0", tmp_path / "clicks", name="a")
    partials = [rankine.learn(piece, schema=place / "schema.toml", on_bad="skip") for piece in (bad, bad)]
    report = rankine.fit(partials, tmp_path / "fit")
    assert report["rows"]["bad"] == 2 and report["bad_by_reason"] == {"row_number": 2}
    shard = rankine.encode(bad, place / "fit0", tmp_path / "clicks", name="a", on_bad="quarantine")
    assert shard is not None and shard["rows"]["bad"] == 1
    assert (Path(shard["dataset"]) / "bad-rows.jsonl").exists()


def test_what_does_not_fit_is_refused(place: Path, tmp_path: Path) -> None:
    def partial(**options: Any) -> pa.Table:
        options = options if "like" in options else {"schema": place / "schema.toml", **options}
        return pa.table(rankine.learn(days()[0], **options))

    def refusal(partials: Any, **options: Any) -> str:
        with pytest.raises(rankine.Error) as error:
            rankine.fit(partials, tmp_path / "fit", **options)
        assert list(tmp_path.iterdir()) == []
        return str(error.value)

    one = partial()
    assert "different schemas" in refusal([one, partial(min_count=9, schema=TABLE_SCHEMA)])
    assert "different schemas" in refusal([one, partial(split="hash:film:0.1")])
    assert "continue the vocabularies of a dataset" in refusal(partial(like=place / "fit0"))
    assert "do not continue" in refusal(one, like=place / "fit0")
    assert "no rows" in refusal([]) and "no rows" in refusal(rankine.learn(iter([]), schema=TABLE_SCHEMA))
    statistics, counts = one.slice(0, 1), one.slice(1)
    assert statistics["column"][0].as_py() == ""
    assert "no statistics" in refusal(counts)
    assert "the statistics of a partial: its checksum is" in refusal(changed(statistics))
    assert "column hours is counted" in refusal([one, entries("hours", b"1", 3)])
    assert "column film has an entry with a count of 0" in refusal([one, entries("film", b"1", 0)])
    assert "add up to 2^62 or more" in refusal([one, entries("film", b"1", 2**62 - 1)])
    assert "a count is -1" in refusal([one, entries("film", b"1", -1)])
    assert "no column value" in refusal(one.drop_columns(["value"]))
    assert "1 entries have no value" in refusal(entries("film", pa.scalar(None, pa.binary()), 1))
    assert "count has values of type Float64" in refusal(entries("film", b"1", 1.0))
    assert "value has values of type Int64" in refusal(entries("film", 7, 1))
    assert refusal([1]) == "partials has a int; expected partials, tables or record batches"
    assert refusal(one, min_count=2) == "fit() has no option min_count"
    once = rankine.learn(days()[0], schema=place / "schema.toml")
    pa.table(once)
    assert "were read already" in refusal(once)
    for split in ("last:0.1", "random:0.1:7"):
        with pytest.raises(rankine.DataError, match="depends on the numbers of rows"):
            rankine.learn(days()[0], schema=TABLE_SCHEMA, split=split)
        with pytest.raises(rankine.DataError, match="depends on the numbers of rows"):
            rankine.encode(days()[0], place / "fit0", tmp_path / "clicks", name="a", split=split)
    with pytest.raises(rankine.DataError, match="cannot be the name of a shard"):
        rankine.encode(days()[0], place / "fit0", tmp_path / "clicks", name="../a")
    with pytest.raises(rankine.ArgumentError, match=r"encode\(\) needs name"):
        rankine.encode(days()[0], place / "fit0", tmp_path / "clicks")  # type: ignore[call-arg]
    with pytest.raises(rankine.ArgumentError, match="choose new, append or overwrite"):
        rankine.commit([], tmp_path / "clicks", mode="add")  # type: ignore[arg-type]


def entries(column: str, value: Any, count: Any) -> pa.Table:
    return pa.table({"column": [column], "value": pa.array([value]), "count": [count]})


def changed(statistics: pa.Table) -> pa.Table:
    value = statistics["value"][0].as_py().replace(b'"read": 2000', b'"read": 2001')
    return entries("", value, 1)


def test_an_error_of_the_callers_iterator_arrives(place: Path, tmp_path: Path) -> None:
    def broken(table: pa.Table = days()[0]) -> Iterator[pa.RecordBatch]:
        yield from table.to_batches()
        raise LookupError("the connection is lost")

    with pytest.raises(LookupError, match="^the connection is lost$"):
        rankine.learn(broken(), schema=place / "schema.toml")
    with pytest.raises(LookupError, match="^the connection is lost$"):
        rankine.encode(broken(), place / "fit0", tmp_path / "clicks", name="a")
    with pytest.raises(LookupError, match="^the connection is lost$"):
        rankine.fit(broken(pa.table(rankine.learn(days()[0], schema=place / "schema.toml"))), tmp_path / "fit")
    assert not (tmp_path / "fit").exists()
