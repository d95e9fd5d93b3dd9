"""Training on a Ray cluster: one machine, which is enough for lost workers."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import Films, command

import rankine

ray = pytest.importorskip("ray")
import rankine.ray  # noqa: E402

STEPS = {
    "train.epochs": 200,
    "train.max_steps": 4000,
    "checkpoint.every_steps": 500,
    "train.log_every_steps": 500,
}


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    ray.init(num_cpus=2, num_gpus=0, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def processes(run: Path) -> list[int]:
    """Returns the processes that train in a run folder."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_text().split("\0")
        except OSError:
            continue
        if "--run-dir" in words and str(run) in words:
            found.append(int(folder.name))
    return found


def model(run: Path) -> bytes:
    return (run / "model/model.safetensors").read_bytes()


def kill_after_a_checkpoint(run: Path, parent: bool) -> None:
    """Kills the process of a run, or the worker that started it."""
    while not list(run.glob("checkpoints/step-*/manifest.json")):
        time.sleep(0.01)
    [process] = processes(run)
    if parent:
        fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
        process = int(fields[1])
    os.kill(process, signal.SIGKILL)


@pytest.fixture(scope="module")
def expected(films: Films, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    run = tmp_path_factory.mktemp("uninterrupted") / "run"
    words = [word for key, value in STEPS.items() for word in ("--set", f"{key}={value}")]
    command("train", films.run / "job.toml", "--run-dir", run, "--quiet", *words)
    return model(run)


def test_a_worker_trains_the_model_of_the_command(films: Films, expected: bytes, tmp_path: Path) -> None:
    summary = rankine.ray.train(films.run / "job.toml", tmp_path / "run", cpus_per_worker=2, settings=STEPS)
    assert model(tmp_path / "run") == expected
    assert summary["train"]["steps"] == 4000 and summary["run_dir"] == str(tmp_path / "run")


@pytest.mark.parametrize("parent", [False, True], ids=["process", "worker"])
def test_what_is_killed_continues_from_its_checkpoint(
    films: Films, expected: bytes, tmp_path: Path, parent: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    killer = threading.Thread(target=kill_after_a_checkpoint, args=(run, parent))
    killer.start()
    summary = rankine.ray.train(films.run / "job.toml", run, settings=STEPS)
    killer.join()
    assert model(run) == expected
    assert summary["train"]["steps"] == 4000
    what = "worker 0 was lost" if parent else "the process of worker 0 was ended by SIGKILL"
    assert f"rankine: start 1 of 4 failed: {what}" in capfd.readouterr().err
    assert processes(run) == []


def test_starts_are_counted(films: Films, tmp_path: Path) -> None:
    run = tmp_path / "run"
    killer = threading.Thread(target=kill_after_a_checkpoint, args=(run, False))
    killer.start()
    with pytest.raises(rankine.TrainError, match="1 starts failed, max_failures is 0.*SIGKILL"):
        rankine.ray.train(films.run / "job.toml", run, settings=STEPS, max_failures=0)
    killer.join()


def test_errors_of_the_job_are_not_tried_again(films: Films, tmp_path: Path) -> None:
    with pytest.raises(rankine.JobError, match="max_stepz"):
        rankine.ray.train(films.run / "job.toml", tmp_path / "run", settings={"train.max_stepz": 1})
    with pytest.raises(rankine.JobError, match=r"^no dataset at .*elsewhere"):
        rankine.ray.train(films.run / "job.toml", tmp_path / "run", settings={"data.dir": tmp_path / "elsewhere"})


def test_arguments_are_checked(films: Films, tmp_path: Path) -> None:
    job = films.run / "job.toml"
    for refused, message in [
        ({"num_workers": 2}, "without GPUs, one worker trains"),
        ({"num_workers": 0}, "num_workers and cpus_per_worker start at 1"),
        ({"settings": {"eval.set": {"name": "x"}}}, "eval.set is"),
    ]:
        with pytest.raises(rankine.ArgumentError, match=message):
            rankine.ray.train(job, tmp_path / "run", **refused)  # type: ignore[arg-type]
    with pytest.raises(rankine.TrainError, match=r"not available within 0.5 s; the cluster has .*'CPU': 2"):
        rankine.ray.train(job, tmp_path / "run", cpus_per_worker=64, start_timeout_s=0.5)


def test_processes_are_numbered_node_by_node() -> None:
    places = [("b", "10.0.0.2", 7000), ("a", "10.0.0.1", 7001), ("b", "10.0.0.2", 7002), ("a", "10.0.0.1", 7003)]
    environments = rankine.ray._environments(places)
    numbers = [(e["RANK"], e["LOCAL_RANK"], e["LOCAL_WORLD_SIZE"], e["WORLD_SIZE"]) for e in environments]
    assert numbers == [("0", "0", "2", "4"), ("2", "0", "2", "4"), ("1", "1", "2", "4"), ("3", "1", "2", "4")]
    assert {(e["MASTER_ADDR"], e["MASTER_PORT"]) for e in environments} == {("10.0.0.2", "7000")}
    assert len({e["RANKINE_SECRET"] for e in environments}) == 1
