"""Datasets from the rows of Spark: ``pip install 'rankine[spark]'``.

:func:`fit` learns columns and vocabularies, and ``df.write.format("rankine")`` converts rows with them, once a session
knows the format by :func:`register`::

    rankine.spark.register(spark)
    rankine.spark.fit(df, "fit", schema="schema.toml")
    df.write.format("rankine").option("fit", "fit").mode("append").save("clicks")
"""

import os
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

import rankine
from rankine import ArgumentError

__all__ = ["RankineDataSource", "fit", "learn", "register"]

# The columns of a partial.
_ENTRIES = "column string, value binary, count long"
_WRITE_OPTIONS = ("fit", "split", "on_bad", "bad_limit", "block_samples", "negatives_kept", "threads")


def register(session: SparkSession) -> None:
    """Lets a session write with ``format("rankine")``."""
    session.dataSource.register(RankineDataSource)


def learn(df: DataFrame, **options: Any) -> DataFrame:
    """Returns the entries of :func:`rankine.learn` for each partition, added up: a frame of ``column``, ``value`` and
    ``count``, which is a part of Spark's plan and may be cached, written and read again.

    The options are passed to :func:`rankine.learn`; paths must be readable by all workers.
    """
    options = {"threads": 1, **options}

    def of_partition(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from pa.RecordBatchReader.from_stream(rankine.learn(batches, **options))

    entries = df.mapInArrow(of_partition, _ENTRIES)
    return entries.groupBy("column", "value").agg(F.sum("count").alias("count"))


def fit(
    df: DataFrame,
    out: str | os.PathLike[str],
    *,
    names: tuple[str, ...] = ("<rows>",),
    **options: Any,
) -> dict[str, Any]:
    """Learns from all rows, and writes a fit to the folder ``out``, which must not exist: the one of
    :func:`rankine.fit`, whatever the partitions.

    The workers count categories, Spark adds the counts up, and the driver collects them as an Arrow table and sorts
    them. The options are passed to :func:`rankine.learn`, with ``like`` to continue the vocabularies of a fit.
    """
    return rankine.fit(learn(df, **options).toArrow(), out, like=options.get("like"), names=names)


class RankineDataSource(DataSource):
    """The format ``rankine`` of :class:`pyspark.sql.DataFrameWriter`.

    The path is the folder of a collection, on a file system that the driver and all workers share; mode ``append``
    makes it, or adds samples to it, and ``overwrite`` replaces its samples. The option ``fit`` names the fit, and the
    options ``split``, ``on_bad``, ``bad_limit``, ``block_samples``, ``negatives_kept`` and ``threads`` are
    passed to :func:`rankine.encode`. Samples are in the order of partitions.
    """

    @classmethod
    def name(cls) -> str:
        return "rankine"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        given = {name.lower(): value for name, value in self.options.items()}
        path = given.pop("path", None)
        if path is None or "fit" not in given:
            raise ArgumentError("format rankine needs a path and the option fit: .option('fit', FIT).save(PATH)")
        unknown = sorted(set(given) - set(_WRITE_OPTIONS))
        if unknown:
            raise ArgumentError(f"format rankine has no option {unknown[0]}; it has {', '.join(_WRITE_OPTIONS)}")
        return _Writer(_local(path), given, overwrite)

    def schema(self) -> StructType:
        raise ArgumentError("format rankine only writes: train on the collection, or read it with rankine.Dataset")


def _local(path: str) -> str:
    """Returns the path of a file system that is mounted; Spark writes ``file:/path``."""
    for prefix in ("file://", "file:"):
        path = path.removeprefix(prefix)
    if "://" in path:
        raise ArgumentError(f"{path} is a url, but shards need a file system that the workers share: name its path")
    return str(Path(path).absolute())


@dataclass
class _Shard(WriterCommitMessage):
    """What a task that has succeeded tells the driver; ``None`` for a partition without rows."""

    partition: int
    dataset: str | None


class _Writer(DataSourceArrowWriter):
    """Is made on the driver, and copied to the tasks."""

    def __init__(self, path: str, options: Mapping[str, str], overwrite: bool) -> None:
        self.path = path
        self.overwrite = overwrite
        self.options = {"threads": "1", **options}
        self.fit = _local(self.options.pop("fit"))
        # Rows that are appended twice are two jobs, but a task that is repeated belongs to one.
        self.job = uuid.uuid4().hex[:12]

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None
        partition = context.partitionId()
        options: dict[str, Any] = {name: _number(value) for name, value in self.options.items()}
        shard = rankine.encode(iterator, self.fit, self.path, name=f"{self.job}-{partition:05}", **options)
        return _Shard(partition, None if shard is None else shard["dataset"])

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        shards = sorted((message for message in messages if isinstance(message, _Shard)), key=lambda of: of.partition)
        written = [shard.dataset for shard in shards if shard.dataset is not None]
        if written or self.overwrite:
            rankine.commit(written, self.path, mode="overwrite" if self.overwrite else "append")

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Leaves the shards to ``rankine dataset gc``: tasks of the job may still write."""


def _number(value: str) -> str | int:
    return int(value) if value.isdecimal() else value
