"""Datasets from the rows of Ray Data, whatever its blocks, and whatever happens to its tasks."""

import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import JOB, command
from test_shards import contents, days, pieces, place, samples

import rankine

ray = pytest.importorskip("ray")
pytest.importorskip("ray.data")
import rankine.ray  # noqa: E402

__all__ = ["place"]
# What Ray says of the versions of other packages.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning")


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    ray.init(num_cpus=2, num_gpus=0, include_dashboard=False, log_to_driver=False)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.execution_options.preserve_order = True
    yield
    ray.shutdown()


def rows(day: int, blocks: int) -> Any:
    return ray.data.from_arrow(pieces(days()[day], blocks))


@pytest.mark.parametrize("blocks", [1, 4, 16])
def test_fit_and_samples_are_those_of_the_command(place: Path, tmp_path: Path, blocks: int) -> None:
    out = tmp_path / "clicks"
    for day in range(2):
        how = {"like": str(tmp_path / "fit0")} if day else {"schema": str(place / "schema.toml")}
        rankine.ray.fit(rows(day, blocks), tmp_path / f"fit{day}", names=(f"day{day}.parquet",), **how)
        assert contents(tmp_path / f"fit{day}") == contents(place / f"fit{day}")
        rankine.ray.write(rows(day, blocks), out, fit=tmp_path / f"fit{day}", mode="append")
    assert samples(out) == samples(place / "data0") + samples(place / "data1")
    with pytest.raises(rankine.DataError, match="already has a collection"):
        rankine.ray.write(rows(0, blocks), out, fit=place / "fit0")


@pytest.mark.parametrize("written", [False, True], ids=["while it reads", "when it has written"])
def test_a_task_that_is_killed_is_repeated(place: Path, tmp_path: Path, written: bool) -> None:
    """A worker is killed once; the model is the same as without it."""
    attempt = tmp_path / "attempt"

    def die_once() -> None:
        if not attempt.exists():
            attempt.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    sink = rankine.ray.datasink(tmp_path / "killed", fit=place / "fit0")
    write = type(sink).write

    def troubled(self: Any, blocks: Any, ctx: Any) -> Any:
        if ctx.task_idx == 1 and not written:
            die_once()
        message = write(self, blocks, ctx)
        if ctx.task_idx == 1:
            die_once()
        return message

    sink.write = troubled.__get__(sink)
    rows(0, 4).write_datasink(sink, ray_remote_args={"max_retries": 3})
    assert attempt.exists()
    rankine.ray.write(rows(0, 4), tmp_path / "expected", fit=place / "fit0")
    assert samples(tmp_path / "killed") == samples(tmp_path / "expected") == samples(place / "data0")
    models = []
    for name in ("killed", "expected"):
        rankine.train(JOB, tmp_path / f"run-{name}", data={"dir": tmp_path / name}, train={"epochs": 1})
        models.append((tmp_path / f"run-{name}/model/model.safetensors").read_bytes())
    assert models[0] == models[1]
    command("dataset", "gc", tmp_path / "killed", "--older-than-hours", "0", "--remove")
    assert Counter(samples(tmp_path / "killed")) == Counter(samples(place / "data0"))


def test_a_job_that_fails_changes_nothing(place: Path, tmp_path: Path) -> None:
    def spoil(table: Any) -> Any:
        import pyarrow as pa

        return table.set_column(table.column_names.index("hour"), "hour", pa.array([24] * table.num_rows))

    bad = rows(0, 4).map_batches(spoil, batch_format="pyarrow")
    with pytest.raises(Exception, match="column hour"):
        rankine.ray.write(bad, tmp_path / "clicks", fit=place / "fit0")
    assert not (tmp_path / "clicks/collection.json").exists()
    with pytest.raises(Exception, match="column hour"):
        rankine.ray.fit(bad, tmp_path / "fit", schema=str(place / "schema.toml"))
    assert not (tmp_path / "fit").exists()
