"""Raw rows: scores are those of `rankine predict`, whatever library has the rows."""

from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from conftest import Films, predicted, ratings, write_csv

import rankine


def bags(rows: list[list[str]]) -> tuple[Any, Any]:
    return np.cumsum([0, *map(len, rows)]), np.array([tag for row in rows for tag in row])


def numbers(values: list[float | None]) -> Any:
    return np.array([np.nan if value is None else value for value in values])


def arrays(columns: dict[str, Any]) -> dict[str, Any]:
    """The features as NumPy arrays."""
    return {
        "age": numbers(columns["age"]),
        "price": numbers(columns["price"]),
        "film": np.array(columns["film"]),
        "last": np.array(columns["last"], dtype=object),
        "hour": np.array(columns["hour"], dtype=np.uint8),
        "tags": bags(columns["tags"]),
    }


def tables(columns: dict[str, Any]) -> dict[str, Any]:
    """The rows as each kind of data that `score` takes."""
    table = pa.table(columns)
    categories = table.set_column(table.column_names.index("film"), "film", table["film"].dictionary_encode())
    kinds = {
        "lists": columns,
        "numpy": arrays(columns),
        "reordered": dict(reversed(arrays(columns).items())),
        "pandas": pd.DataFrame(columns),
        "pandas categories": pd.DataFrame(columns).astype({"film": "category", "age": "Int64"}),
        "polars": pl.DataFrame(columns),
        "polars categories": pl.DataFrame(columns).with_columns(pl.col("film").cast(pl.Categorical)),
        "arrow table": table,
        "arrow chunks": pa.concat_tables([table.slice(0, 123), table.slice(123, 1), table.slice(124)]),
        "arrow dictionary": categories,
        "arrow batch": table.combine_chunks().to_batches()[0],
        "arrow slice": pa.concat_tables([table.slice(7), table.slice(0, 7)]).combine_chunks(),
    }
    return kinds


@pytest.mark.parametrize("kind", tables(ratings(3, 2)))
def test_scores_are_those_of_the_command(films: Films, kind: str) -> None:
    ranker = rankine.Ranker.load(films.run)
    scores = ranker.score(tables(films.columns)[kind])
    expected = films.expected
    if kind == "arrow slice":
        expected = np.concatenate([expected[7:], expected[:7]])
    assert scores.dtype == np.float32
    np.testing.assert_array_equal(scores, expected)


def test_a_frame_with_another_index_has_the_same_rows(films: Films) -> None:
    ranker = rankine.Ranker.load(films.run)
    frame = pd.DataFrame(films.features())
    older = frame[frame["age"] > 50]
    assert 0 < len(older) < len(frame)
    np.testing.assert_array_equal(ranker.score(older), films.expected[older.index])


def test_columns_that_the_model_does_not_need_are_ignored(films: Films) -> None:
    """As by `rankine predict`, whatever their types are."""
    ranker = rankine.Ranker.load(films.run)
    rows = len(films.expected)
    dates = pd.date_range("2026-01-01", periods=rows)
    frame = pd.DataFrame({"id": range(rows), **films.features(), "when": dates})
    table = pa.table({**films.features(), "when": pa.array([0] * rows, pa.date32())})
    mapping: dict[Any, Any] = {**arrays(films.columns), "when": dates, 7: object()}
    for data in (frame, pl.from_pandas(frame), table, mapping):
        np.testing.assert_array_equal(ranker.score(data), films.expected)
    with pytest.raises(rankine.RowError, match=r"^the DataFrame has no column `film` \(did you mean `film_id`\?\)"):
        ranker.score(frame.rename(columns={"film": "film_id"}))


def test_many_rows_are_scored_in_pieces(films: Films) -> None:
    ranker = rankine.Ranker.load(films.run)
    repeats = 300
    table = pa.concat_tables([pa.table(films.features())] * repeats).combine_chunks()
    assert len(table) > 2 * 65536
    np.testing.assert_array_equal(ranker.score(table), np.tile(films.expected, (repeats, 1)))
    # The row of an error counts from the first row of all.
    hours = np.array(films.columns["hour"] * repeats)
    hours[140_000] = 24
    tags = [tags for _ in range(repeats) for tags in films.columns["tags"]]
    columns = {name: np.array(values * repeats) for name, values in films.features().items() if name != "tags"}
    columns |= {"age": numbers(films.columns["age"] * repeats), "price": numbers(films.columns["price"] * repeats)}
    with pytest.raises(rankine.RowError, match="^column hour, row 140000: 24 is not the number of one of its"):
        ranker.score({**columns, "hour": hours, "tags": bags(tags)})


def test_nulls_of_arrow_are_missing_values(films: Films) -> None:
    """A null list is an empty one, and nulls in lists are left out."""
    ranker = rankine.Ranker.load(films.run)
    features = {name: values[:3] for name, values in films.features().items()}
    features |= {"age": [None, 30, None], "film": [None, "f1", "f2"], "tags": [["t1"], [], ["t2", "t3"]]}
    write_csv(films.run.parent / "nulls.csv", features)
    expected = predicted(films.run, films.run.parent / "nulls.csv")
    with_nulls = pa.table({**features, "tags": pa.array([["t1", None], None, ["t2", None, "t3"]])})
    np.testing.assert_array_equal(ranker.score(with_nulls), expected)
    for list_type in (pa.large_list(pa.large_string()), pa.list_(pa.string_view())):
        np.testing.assert_array_equal(
            ranker.score(with_nulls.set_column(5, "tags", with_nulls["tags"].cast(list_type))), expected
        )
    # A null list may have values, which are not part of it.
    hidden = pa.ListArray.from_arrays([0, 1, 2, 4], ["t1", "t9", "t2", "t3"], mask=pa.array([False, True, False]))
    np.testing.assert_array_equal(ranker.score(with_nulls.set_column(5, "tags", hidden)), expected)


def test_integers_of_any_width_are_categories(films: Films) -> None:
    ranker = rankine.Ranker.load(films.run)
    for dtype in "int8 uint8 int16 uint16 int32 uint32 int64 uint64 >i4".split():
        hours = np.array(films.columns["hour"], dtype=dtype)
        np.testing.assert_array_equal(ranker.score({**arrays(films.columns), "hour": hours}), films.expected)
    for dtype in "float16 float32 >f8 int64".split():
        ages = np.nan_to_num(numbers(films.columns["age"]), nan=33.0)
        expected = ranker.score({**arrays(films.columns), "age": ages})
        np.testing.assert_array_equal(ranker.score({**arrays(films.columns), "age": ages.astype(dtype)}), expected)


def test_arrays_that_are_not_consecutive_are_read_in_order(films: Films) -> None:
    ranker = rankine.Ranker.load(films.run)
    prices = numbers(films.columns["price"])
    wide = np.zeros((len(prices), 3))
    wide[:, 1] = prices
    np.testing.assert_array_equal(ranker.score({**arrays(films.columns), "price": wide[:, 1]}), films.expected)


def test_no_rows_have_no_scores(films: Films) -> None:
    ranker = rankine.Ranker.load(films.run)
    empty = pa.table(films.features()).slice(0, 0)
    assert ranker.score(empty).shape == (0, 2)
    with pytest.raises(rankine.RowError, match="^the Table has no column `age`; it has `price`, `film`"):
        ranker.score(empty.drop_columns(["age"]))


def test_a_ranker_says_what_it_is(films: Films) -> None:
    ranker = rankine.Ranker.load(films.run)
    assert ranker.labels == ["rating", "bought"]
    assert ranker.columns == ["age", "price", "film", "last", "hour", "tags"]
    assert [column["name"] for column in ranker.schema["categorical"]] == ["film", "last", "hour", "tags"]
    assert ranker.steps == 50
    assert repr(ranker) == "<rankine.Ranker of rating, bought after 50 steps>"


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "missing": (
        {"age": None},
        "the dict has no column `age`; it has `price`, `film`, `last`, `hour`, `tags`",
    ),
    "misspelt": (
        {"last": None, "last_film": ["f1"] * 3},
        "the dict has no column `last` (did you mean `last_film`?); it has `age`, `price`, `film`, `hour`, `tags`, "
        "`last_film`",
    ),
    "length": ({"hour": [1, 2]}, "column hour has 2 rows; expected 3"),
    "text": ({"price": ["1", "2", "dear"]}, 'column price, row 2: "dear" is not a number of at most 3.4028235e38'),
    "out of range": ({"hour": [0, 24, 0]}, "column hour, row 1: 24 is not the number of one of its table's 24 rows"),
    "floats": (
        {"film": np.zeros(3)},
        "column film has floating-point numbers, but the model needs categories (strings, integers, decimals, dates or "
        "times)",
    ),
    "booleans": (
        {"film": [True, False, True]},
        "column film has floating-point numbers, but the model needs categories (strings, integers, decimals, dates or "
        "times)",
    ),
    "bag": ({"hour": [[1], [2], []]}, "column hour, row 2: 0 categories; expected 1, as in training"),
    "decreasing offsets": (
        {"tags": ([0, 2, 1, 2], ["a", "b"])},
        "column tags: its offsets must rise from 0 to the number of values, 2",
    ),
    "offsets beyond the values": (
        {"tags": ([0, 2, 3, 4], ["a", "b"])},
        "column tags: its offsets must rise from 0 to the number of values, 2",
    ),
    "negative offsets": (
        {"tags": ([0, -1, 1, 2], ["a", "b"])},
        "column tags: its offsets must be from 0 to 4294967295, not -1",
    ),
    "offsets of floats": (
        {"tags": ([0.0, 1.0, 1.0, 2.0], ["a", "b"])},
        "column tags: its offsets have the shape [4] and the type float64; expected one dimension of integers",
    ),
    "triple": (
        {"film": ("f1", "f2", "f3")},
        "column film is a tuple of length 3, but a tuple must be (offsets, values): pass rows as a list",
    ),
    "mixed": ({"film": ["f1", 2, "f3"]}, "column film, row 1: 2 is not a string, as others are"),
    "mixed lists": ({"tags": [["t1"], "t2", []]}, "column tags, row 1: 't2' is not a list, as other rows are"),
    "objects": ({"price": [1, {}, 3]}, "column price, row 1: {} is not a number or a string"),
    "dates": (
        {"price": np.zeros(3, dtype="datetime64[s]")},
        "column price has values of type datetime64[s]; expected numbers or strings",
    ),
    "complex": (
        {"price": np.zeros(3, dtype=complex)},
        "column price has values of type complex128; expected numbers or strings",
    ),
    "dimensions": ({"price": np.zeros((3, 1, 1))}, "column price has the shape [3, 1, 1]; expected one entry per row"),
    "scalar": ({"price": 1.0}, "column price has the shape []; expected one entry per row"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_columns_that_do_not_fit_are_refused(films: Films, name: str) -> None:
    change, message = REFUSED[name]
    columns = {**{name: values[:3] for name, values in films.features().items()}, **change}
    columns = {name: values for name, values in columns.items() if values is not None}
    with pytest.raises(rankine.RowError) as refused:
        rankine.Ranker.load(films.run).score(columns)
    assert str(refused.value) == message
    assert isinstance(refused.value, ValueError) and isinstance(refused.value, rankine.Error)


def test_dates_are_days_and_lists_of_lists_are_bags(films: Films) -> None:
    ranker = rankine.Ranker.load(films.run)
    table = pa.table(films.features())
    rows = len(table)
    for name, values, same in [
        ("age", pa.array([30] * rows, pa.date32()), pa.array([30] * rows)),
        ("age", pa.array([30_500] * rows, pa.timestamp("ms")), pa.array([30.5] * rows)),
        ("tags", pa.array([[["t1"], None, ["t2", "t3"]]] * rows), pa.array([["t1", "t2", "t3"]] * rows)),
    ]:
        at = table.column_names.index(name)
        found, expected = (ranker.score(table.set_column(at, name, column)) for column in (values, same))
        np.testing.assert_array_equal(found, expected)


def test_tables_that_do_not_fit_are_refused(films: Films) -> None:
    ranker = rankine.Ranker.load(films.run)
    table = pa.table(films.features())

    def refusal(data: Any) -> str:
        with pytest.raises(rankine.RowError) as refused:
            ranker.score(data)
        return str(refused.value)

    twice = pa.table([*table.columns, table["age"]], names=[*table.column_names, "age"])
    assert refusal(twice) == "column age is given twice"
    durations = table.set_column(0, "age", pa.array([0] * len(table), pa.duration("s")))
    assert refusal(durations).startswith("column age has values of type Duration(")
    assert refusal(durations).endswith(", but the model needs numbers, strings, dates, times, or lists of them")
    assert refusal([1, 2]) == (
        "a list has no named columns: give a mapping from names to arrays, a data frame or an Arrow table"
    )
    assert refusal(pa.array([1])).startswith("an Arrow array has no column names")
