"""Datasets from the rows of Ray Data, and training on the workers of a Ray cluster: ``pip install 'rankine[ray]'``.

:func:`fit` learns columns and vocabularies from a :class:`ray.data.Dataset`, :func:`write` converts its rows with them,
and :func:`train` trains a model::

    rankine.ray.fit(rows, "fit", schema="schema.toml")
    rankine.ray.write(rows, "clicks", fit="fit")
    rankine.ray.train("job.toml", "run")
"""

import ctypes
import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

import rankine
from rankine import ArgumentError, DataError, Error, JobError, TrainError

__all__ = ["datasink", "fit", "train", "write"]

# Once a process is lost, the others end within a minute.
_PATIENCE_S = 120
# Exit codes of processes that can continue: another process was lost, or a signal asked this one to end.
_CONTINUES = (5, 75)


def fit(
    rows: Any,
    out: str | os.PathLike[str],
    *,
    names: tuple[str, ...] = ("<rows>",),
    **options: Any,
) -> dict[str, Any]:
    """Learns from all rows of a :class:`ray.data.Dataset`, and writes a fit to the folder ``out``, which must not
    exist: the one of :func:`rankine.fit`, whatever the blocks.

    The workers count the categories of each block, and this process adds the counts up as they arrive. The options are
    passed to :func:`rankine.learn`, with ``like`` to continue the vocabularies of a fit; paths must be readable by all
    workers.
    """
    options = {"threads": 1, **options}

    def of_block(table: Any) -> Any:
        import pyarrow

        return pyarrow.table(rankine.learn(table, **options))

    partials = rows.map_batches(of_block, batch_format="pyarrow", batch_size=None)
    tables = partials.iter_batches(batch_format="pyarrow", batch_size=None)
    # A block without rows has no entries, and may lose their types.
    entries = (table for table in tables if table.num_rows)
    return rankine.fit(entries, out, like=options.get("like"), names=names)


def write(
    rows: Any,
    out: str | os.PathLike[str],
    *,
    fit: str | os.PathLike[str],
    mode: Literal["new", "append", "overwrite"] = "new",
    **options: Any,
) -> None:
    """Converts the rows of a :class:`ray.data.Dataset` with the columns and vocabularies of a fit, and commits them to
    the collection in the folder ``out``, on a file system that all workers share. :func:`rankine.commit` explains
    ``mode``.

    The options are passed to :func:`rankine.encode`. Samples are in the order of the tasks, which is the order of rows
    if ``ray.data.DataContext`` has ``execution_options.preserve_order``.
    """
    rows.write_datasink(datasink(out, fit=fit, mode=mode, **options))


def datasink(
    out: str | os.PathLike[str],
    *,
    fit: str | os.PathLike[str],
    mode: Literal["new", "append", "overwrite"] = "new",
    **options: Any,
) -> Any:
    """Returns the :class:`ray.data.Datasink` that :func:`write` uses."""
    # Training needs no Ray Data, which needs more packages.
    from ray.data import Datasink
    from ray.data.block import BlockAccessor

    out, fit = Path(out).absolute(), Path(fit).absolute()
    options = {"threads": 1, **options}
    # Rows that are appended twice are two jobs, but a task that is repeated belongs to one.
    job = uuid.uuid4().hex[:12]

    def tables(blocks: Any) -> Iterator[Any]:
        accessors = (BlockAccessor.for_block(block) for block in blocks)
        yield from (accessor.to_arrow() for accessor in accessors if accessor.num_rows())

    class RankineDatasink(Datasink):  # type: ignore
        def write(self, blocks: Any, ctx: Any) -> tuple[int, str | None]:
            shard = rankine.encode(tables(blocks), fit, out, name=f"{job}-{ctx.task_idx:05}", **options)
            return ctx.task_idx, None if shard is None else shard["dataset"]

        def on_write_complete(self, write_result: Any) -> None:
            shards = [shard for _, shard in sorted(write_result.write_returns) if shard is not None]
            if shards or mode != "append":
                rankine.commit(shards, out, mode=mode)

    return RankineDatasink()


def train(
    job: str | os.PathLike[str],
    run_dir: str | os.PathLike[str],
    *,
    num_workers: int = 1,
    gpus_per_worker: int = 0,
    cpus_per_worker: int = 1,
    settings: Mapping[str, Any] | None = None,
    resume: bool = False,
    max_failures: int = 3,
    start_timeout_s: float = 600,
) -> dict[str, Any]:
    """Trains the model of a job file with one process per worker, and returns the contents of ``summary.json``.

    Job file, dataset and ``run_dir`` must be at the same place on all nodes, for example on a shared file system. Each
    worker starts the command ``rankine train`` (``RANKINE_BIN`` may name it) with ``gpus_per_worker`` GPUs; without
    GPUs there is one worker. ``settings`` replaces values of the job, by dotted keys: ``{"train.max_steps": 100}``.

    If a worker is lost, all are started again and continue from the last checkpoint, at most ``max_failures`` times; so
    the job should save checkpoints. ``resume`` lets the first start continue, too. Ctrl-C saves a checkpoint.

    Raises JobError, DataError or TrainError with the message of the process that failed. TrainError is also raised if
    the cluster does not offer the workers within ``start_timeout_s``, or if more workers are lost.
    """
    if num_workers < 1 or gpus_per_worker < 0 or cpus_per_worker < 1 or max_failures < 0:
        raise ArgumentError("num_workers and cpus_per_worker start at 1, gpus_per_worker and max_failures at 0")
    if num_workers > 1 and gpus_per_worker == 0:
        raise ArgumentError("without GPUs, one worker trains: set gpus_per_worker, or more cpus_per_worker")
    device: dict[str, Any]
    if gpus_per_worker:
        device = {"device.kind": "cuda", "device.ranks": num_workers * gpus_per_worker}
    else:
        device = {"device.kind": "cpu", "device.threads": cpus_per_worker}
    words = ["train", str(Path(job).absolute()), "--run-dir", str(Path(run_dir).absolute()), "--launcher", "torchrun"]
    for key, value in {**device, **(settings or {})}.items():
        words += ["--set", f"{key}={_toml(key, value)}"]
    resources = {"CPU": cpus_per_worker, **({"GPU": gpus_per_worker} if gpus_per_worker else {})}
    for failures in range(max_failures + 1):
        ends = _attempt(words, resume or failures > 0, resources, num_workers, start_timeout_s)
        lost = _lost(ends)
        if not lost:
            summary: dict[str, Any] = json.loads((Path(run_dir) / "summary.json").read_text())
            return {**summary, "run_dir": str(run_dir)}
        print(f"rankine: start {failures + 1} of {max_failures + 1} failed: {lost}", file=sys.stderr)
    raise TrainError(f"{max_failures + 1} starts failed, max_failures is {max_failures}; the last one: {lost}")


def _toml(key: str, value: Any) -> str:
    """Returns a value as TOML. That of numbers, strings and lists is JSON."""
    items = value if isinstance(value, list | tuple) else [value]
    if not all(isinstance(item, bool | int | float | str | os.PathLike) for item in items):
        raise ArgumentError(f"settings: {key} is {value!r}; expected a boolean, a number, a string or a list of these")
    return json.dumps(value, default=os.fspath, ensure_ascii=False)


@dataclass(frozen=True)
class _End:
    """How the process of a worker has ended: by an exit code, or by a signal if that is negative."""

    code: int
    message: str


class _Worker:
    """An actor, which starts one process."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[str] | None = None

    def place(self) -> tuple[str, str, int]:
        """Returns the node, its address, and a free port."""
        with socket.socket() as found:
            found.bind(("", 0))
            port = found.getsockname()[1]
        return ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address(), port  # type: ignore[no-untyped-call]

    def run(self, words: list[str], environment: dict[str, str]) -> _End:
        """Runs the command and passes its messages on."""
        command = os.environ.get("RANKINE_BIN") or shutil.which("rankine")
        command = command or shutil.which("rankine", path=str(Path(sys.executable).parent))
        if command is None:
            return _End(1, "the command rankine is not on PATH of this worker: install the package rankine there")
        variables = {name: value for name, value in os.environ.items() if name != "RANKINE_SECRET_FILE"}
        self.process = subprocess.Popen(
            [command, *words], env={**variables, **environment}, stderr=subprocess.PIPE, text=True,
            preexec_fn=_end_with_parent,
        )
        assert self.process.stderr is not None
        last: deque[str] = deque(maxlen=20)
        for line in self.process.stderr:
            sys.stderr.write(line)
            last.append(line)
        return _End(self.process.wait(), "".join(last).strip())

    def stop(self) -> None:
        """Lets the process save a checkpoint and end."""
        if self.process is not None:
            self.process.send_signal(signal.SIGTERM)


def _end_with_parent() -> None:
    """Lets the system kill this process when its parent ends."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def _attempt(
    words: list[str], resume: bool, resources: Mapping[str, int], num_workers: int, start_timeout_s: float
) -> list[_End | None]:
    """Starts all workers, and returns how their processes have ended; ``None`` for a worker that was lost."""
    group = placement_group([dict(resources) for _ in range(num_workers)], strategy="PACK")
    workers: list[Any] = []
    try:
        if not group.wait(start_timeout_s):
            raise TrainError(
                f"{num_workers} workers with {dict(resources)} each were not available within {start_timeout_s:g} s; "
                f"the cluster has {ray.cluster_resources()}"
            )
        workers = [
            ray.remote(_Worker).options(
                num_cpus=resources["CPU"], num_gpus=resources.get("GPU", 0), max_concurrency=2,
                scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=number),
            ).remote()
            for number in range(num_workers)
        ]
        try:
            environments = _environments(ray.get([worker.place.remote() for worker in workers]))
        except ray.exceptions.RayActorError:
            return [None] * num_workers
        words = [*words, "--resume"] if resume else words
        runs = {
            worker.run.remote(words, environment): number
            for number, (worker, environment) in enumerate(zip(workers, environments, strict=True))
        }
        try:
            return _ends(runs)
        except KeyboardInterrupt:
            for worker in workers:
                worker.stop.remote()
            ray.wait(list(runs), num_returns=num_workers, timeout=_PATIENCE_S)
            raise
    finally:
        for worker in workers:
            ray.kill(worker)
        remove_placement_group(group)


def _environments(places: list[tuple[str, str, int]]) -> list[dict[str, str]]:
    """Returns the variables of each worker: those of torchrun, with processes numbered node by node, and a secret."""
    nodes = list(dict.fromkeys(node for node, _, _ in places))
    order = sorted(range(len(places)), key=lambda worker: nodes.index(places[worker][0]))
    _, address, port = places[order[0]]
    workers_of, found = Counter(node for node, _, _ in places), Counter[str]()
    secret = secrets.token_hex(32)
    environments: list[dict[str, str]] = [{} for _ in places]
    for number, worker in enumerate(order):
        node = places[worker][0]
        environments[worker] = {
            "RANK": str(number), "WORLD_SIZE": str(len(places)),
            "LOCAL_RANK": str(found[node]), "LOCAL_WORLD_SIZE": str(workers_of[node]),
            "MASTER_ADDR": address, "MASTER_PORT": str(port),
            "RANKINE_SECRET": secret,
        }
        found[node] += 1
    return environments


def _ends(runs: dict[Any, int]) -> list[_End | None]:
    ends: list[_End | None] = [None] * len(runs)
    pending, deadline = dict(runs), None
    while pending:
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        ready, _ = ray.wait(list(pending), timeout=left)
        if not ready:
            break
        number = pending.pop(ready[0])
        try:
            end = ends[number] = ray.get(ready[0])
        except ray.exceptions.RayActorError:
            end = None
        if deadline is None and (end is None or end.code != 0):
            deadline = time.monotonic() + _PATIENCE_S
    return ends


def _lost(ends: list[_End | None]) -> str:
    """Returns what was lost, if another start can continue; empty if all have succeeded. Raises other errors."""
    for end in ends:
        if end is not None and end.code > 0 and end.code not in _CONTINUES:
            kind: type[Error] = {2: JobError, 3: DataError}.get(end.code, TrainError)
            # Other messages come before the error.
            raise kind(re.split(r"^error(?: \(process \d+\))?: ", end.message, maxsplit=1, flags=re.MULTILINE)[-1])
    for number, end in enumerate(ends):
        if end is None:
            return f"worker {number} was lost"
        if end.code < 0:
            return f"the process of worker {number} was ended by {signal.Signals(-end.code).name}"
    return next((end.message for end in ends if end is not None and end.code != 0), "")
