"""Datasets from the rows of Spark, whatever its partitions, and whatever happens to its tasks."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import JOB, command
from test_shards import contents, days, place, samples

import rankine

pyspark = pytest.importorskip("pyspark")
from pyspark import TaskContext  # noqa: E402
from pyspark.sql import DataFrame, SparkSession  # noqa: E402

import rankine.spark  # noqa: E402

__all__ = ["place"]
# What Spark says of the versions of other packages.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")


@contextlib.contextmanager
def cluster(work: Path) -> Iterator[str]:
    """Starts a cluster of two workers with two cores each. Spark runs a task twice only on hosts of different names."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        url = f"spark://127.0.0.1:{found.getsockname()[1]}"
    port, starter = url.rsplit(":", 1)[1], Path(pyspark.__file__).parent / "bin/spark-class"
    worker = ["worker.Worker", "--cores", "2", "--memory", "1g"]
    calls: list[list[Any]] = [
        ["master.Master", "--host", "127.0.0.1", "--port", port],
        [*worker, "--host", "127.0.0.1", "--work-dir", work / "1", url],
        [*worker, "--host", "127.0.0.2", "--work-dir", work / "2", url],
    ]
    processes = []
    with (work / "log").open("w") as log:
        for kind, *words in calls:
            call = [starter, f"org.apache.spark.deploy.{kind}", "--webui-port", "0", *words]
            processes.append(subprocess.Popen(list(map(str, call)), stdout=log, stderr=log))
    try:
        yield url
    finally:
        for process in processes:
            process.terminate()
            process.wait()


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    # Workers import the classes below from here.
    os.environ["PYTHONPATH"] = str(Path(__file__).parent)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.executor.memory": "900m",
        "spark.scheduler.minRegisteredResourcesRatio": "1",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.adaptive.enabled": "false",
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.multiplier": "1.5",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.minTaskRuntime": "500ms",
    }
    with cluster(tmp_path_factory.mktemp("cluster")) as url:
        builder = SparkSession.builder.master(url)
        for name, value in settings.items():
            builder = builder.config(name, value)
        session = builder.getOrCreate()
        session.sparkContext.setLogLevel("OFF")
        rankine.spark.register(session)
        session.dataSource.register(Troubled)
        yield session
        session.stop()


class Troubled(rankine.spark.RankineDataSource):
    """The format, with a task that is killed or late at its first attempt. Each attempt leaves a file."""

    @classmethod
    def name(cls) -> str:
        return "troubled"

    def writer(self, schema: Any, overwrite: bool) -> Any:
        trouble, attempts = self.options.pop("trouble"), self.options.pop("attempts")
        writer: Any = super().writer(schema, overwrite)
        writer.__class__ = TroubledWriter
        writer.trouble, writer.attempts = trouble, attempts
        return writer


class TroubledWriter(rankine.spark._Writer):
    trouble: str
    attempts: str

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Any:
        context = TaskContext.get()
        assert context is not None
        attempt, partition = context.attemptNumber(), context.partitionId()
        attempts = Path(self.attempts)
        first = partition == 0 and not list(attempts.glob("0-*"))
        (attempts / f"{partition}-{attempt}").touch()

        def rows() -> Iterator[pa.RecordBatch]:
            for batch in iterator:
                yield batch
                if first and self.trouble == "killed while it reads":
                    os.kill(os.getpid(), signal.SIGKILL)
                if first and self.trouble == "late":
                    time.sleep(15)

        message = super().write(rows())
        if first and self.trouble == "killed when it has written":
            os.kill(os.getpid(), signal.SIGKILL)
        return message


def frame(spark: SparkSession, table: pa.Table, partitions: int) -> DataFrame:
    """Returns rows in partitions whose rows follow each other."""
    numbered = table.append_column("number", pa.array(range(table.num_rows)))
    df = spark.createDataFrame(numbered)
    return df.repartitionByRange(partitions, "number").sortWithinPartitions("number")


def save(df: DataFrame, out: Path, fit: Path, mode: str = "append", format: str = "rankine", **options: Any) -> None:
    df.write.format(format).options(fit=str(fit), **options).mode(mode).save(str(out))


def shards(out: Path) -> list[Path]:
    return [path for path in (out / "shards").iterdir() if not path.name.startswith(".")]


@pytest.mark.parametrize("partitions", [1, 4, 16])
def test_fit_and_samples_are_those_of_the_command(
    spark: SparkSession, place: Path, tmp_path: Path, partitions: int
) -> None:
    out = tmp_path / "clicks"
    for day, table in enumerate(days()):
        df, fit = frame(spark, table, partitions), tmp_path / f"fit{day}"
        how = {"like": str(tmp_path / "fit0")} if day else {"schema": str(place / "schema.toml")}
        rankine.spark.fit(df, fit, names=(f"day{day}.parquet",), **how)
        assert contents(fit) == contents(place / f"fit{day}")
        save(df, out, fit)
        assert len(shards(out)) == (day + 1) * partitions
    assert samples(out) == samples(place / "data0") + samples(place / "data1")
    save(frame(spark, days()[0], partitions), out, place / "fit0", mode="overwrite")
    assert samples(out) == samples(place / "data0")


@pytest.mark.parametrize("trouble", ["killed while it reads", "killed when it has written", "late"])
def test_every_sample_is_there_once(spark: SparkSession, place: Path, tmp_path: Path, trouble: str) -> None:
    out, attempts = tmp_path / "clicks", tmp_path / "attempts"
    attempts.mkdir()
    df = frame(spark, days()[0], 4)
    save(df, out, place / "fit0", format="troubled", trouble=trouble, attempts=str(attempts))
    # Killing a worker may cost an attempt of another task, and Spark may also run another one twice.
    ran = Counter(path.name.split("-")[0] for path in attempts.iterdir())
    assert set(ran) == {"0", "1", "2", "3"} and ran["0"] >= 2, ran
    assert samples(out) == samples(place / "data0")

    # The model of the same partitions, converted by the command.
    first = 0
    listed = rankine.Dataset(out)
    names = sorted(shards(out), key=lambda path: path.name)
    assert sum(rankine.Dataset(name).samples["train"] for name in names) == listed.samples["train"] == 2000
    merged = []
    for number, name in enumerate(names):
        count = rankine.Dataset(name).samples["train"]
        pq.write_table(days()[0].slice(first, count), tmp_path / f"{number}.parquet")
        merged.append(tmp_path / f"data{number}")
        command("convert", "parquet", tmp_path / f"{number}.parquet", "--like", place / "fit0", "--out", merged[-1])
        first += count
    models = []
    for run, data in (("spark", [out]), ("command", merged)):
        rankine.train(JOB, tmp_path / run, data={"dir": data}, train={"epochs": 1})
        models.append((tmp_path / run / "model/model.safetensors").read_bytes())
    assert models[0] == models[1]


def test_a_job_that_fails_changes_nothing(spark: SparkSession, place: Path, tmp_path: Path) -> None:
    out = tmp_path / "clicks"
    df = frame(spark, days()[0], 4)
    save(df, out, place / "fit0")
    before = (out / "collection.json").read_bytes()
    bad = df.selectExpr("* except (hour)", "if(number = 1999, 24, hour) as hour")
    with pytest.raises(Exception, match="column hour"):
        save(bad, out, place / "fit0")
    assert (out / "collection.json").read_bytes() == before
    kept = set(shards(out))
    command("dataset", "gc", out, "--older-than-hours", "0", "--remove")
    assert len(shards(out)) == 4 and set(shards(out)) <= kept
    assert samples(out) == samples(place / "data0")


def test_partitions_without_rows_are_no_shards(spark: SparkSession, place: Path, tmp_path: Path) -> None:
    df = frame(spark, days()[0], 4)
    save(df.where("number < 10").repartition(8), tmp_path / "clicks", place / "fit0")
    assert rankine.Dataset(tmp_path / "clicks").samples["train"] == 10
    save(df.where("number < 0"), tmp_path / "clicks", place / "fit0")
    assert rankine.Dataset(tmp_path / "clicks").samples["train"] == 10


def test_partitions_with_equal_rows_are_two_shards(spark: SparkSession, place: Path, tmp_path: Path) -> None:
    row = days()[0].slice(5, 1)
    df = frame(spark, pa.concat_tables([row, row]), 2)
    for times in (1, 2):
        save(df, tmp_path / "clicks", place / "fit0")
        assert len(shards(tmp_path / "clicks")) == 2 * times
        assert rankine.Dataset(tmp_path / "clicks").samples["train"] == 2 * times


def test_options_are_checked(spark: SparkSession, place: Path, tmp_path: Path) -> None:
    df, fit = frame(spark, days()[0], 1), str(place / "fit0")
    for options, message in [
        ({}, "needs a path and the option fit"),
        ({"fit": fit, "spilt": "none"}, "has no option spilt"),
        ({"fit": "s3://bucket/fit"}, "is a url"),
        ({"fit": str(tmp_path / "none")}, "none"),
    ]:
        with pytest.raises(Exception, match=message):
            df.write.format("rankine").options(**options).mode("append").save(str(tmp_path / "clicks"))
    with pytest.raises(Exception, match="only writes"):
        spark.read.format("rankine").load(str(tmp_path)).count()
