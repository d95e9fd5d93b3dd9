import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias, final, overload

import numpy as np
import numpy.typing as npt

__all__ = [
    "Batch",
    "Batches",
    "Dataset",
    "Partial",
    "Ranker",
    "Trainer",
    "__version__",
    "commit",
    "convert",
    "encode",
    "evaluate",
    "fit",
    "learn",
    "train",
]

__version__: str

_Path: TypeAlias = str | os.PathLike[str]
_Part: TypeAlias = Literal["train", "eval"]
_Ids: TypeAlias = npt.NDArray[np.uint64] | npt.NDArray[np.int64]
# Offsets and ids, and the weights of the ids if they have some.
_Bags: TypeAlias = tuple[npt.NDArray[Any], ...]
_MappedColumn: TypeAlias = _Ids | _Bags

class _ArrowStream(Protocol):
    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...

class _ArrowArray(Protocol):
    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[object, object]: ...

_Rows: TypeAlias = _ArrowStream | _ArrowArray | Iterable[_ArrowStream | _ArrowArray]

@final
class Ranker:
    """A trained model that scores rows. Any number of threads may use it at the same time."""

    @staticmethod
    def load(path: _Path, *, threads: int = 1) -> Ranker:
        """Loads the model of a finished run, of a checkpoint, or of an export.

        Calls with more than 64 rows are divided among ``threads`` threads, which all calls share; 1 is best if as many
        threads of Python score at a time as there are processors. Scores do not depend on it.

        Compares every file with its checksum. Raises ModelError if there is no model, or it is damaged.
        """

    def score(self, data: Mapping[str, Any] | _ArrowStream | _ArrowArray) -> npt.NDArray[np.float32]:
        """Scores raw rows, as the files have them that the model's dataset was converted from.

        ``data`` is a pandas or Polars data frame, a PyArrow table or record batch, or a mapping from the names of
        columns to their values. Values are NumPy arrays ``[rows]`` or lists with an entry per row. A column with any
        number of categories per row is a list of lists, or a tuple ``(offsets, values)``: row ``i`` has
        ``values[offsets[i]:offsets[i + 1]]``. ``None``, NaN and nulls of Arrow are missing numbers.

        Columns that the model does not need are ignored. Applies the transforms and vocabularies of training;
        categories that training did not see share a row.

        Returns the probability of each row, float32 ``[rows]``, or ``[rows, heads]`` if the model has several heads.
        Raises RowError, which names column and row, if the columns do not fit the model.
        """

    def score_mapped(
        self,
        dense: npt.NDArray[np.floating[Any]],
        categorical: Sequence[_MappedColumn] | Mapping[str, _MappedColumn],
    ) -> npt.NDArray[np.float32]:
        """Scores mapped features, as a dataset has them; the only way to score with models of generated data.

        ``dense`` is float32 ``[rows, columns]``, after the transforms of training. ``categorical`` has a column per
        categorical column of the model, in its order or by name: uint64 or int64 ``[rows]`` or ``[rows, ids per row]``,
        or a tuple ``(offsets, ids)``, or ``(offsets, ids, weights)`` if ids have weights. Arrays of these types with
        consecutive values are not copied. At most 65536 rows.

        Returns the probability of each row, float32 ``[rows]``, or ``[rows, heads]`` if the model has several heads.
        Raises RowError, which names column and row, if the features do not fit the model.
        """

    def swap(self, path: _Path) -> None:
        """Replaces the model by another one with the same columns and labels.

        Other threads score with the old model until the new one is loaded. Raises ModelError if that cannot be loaded
        or has other columns; the old model then stays.
        """

    def apply(self, path: _Path) -> None:
        """Changes the model by a delta, which ``rankine ckpt delta`` writes, into the later model that the delta leads to.

        Other threads score with the old model meanwhile. Only what the delta has is read. Raises ModelError if it is
        damaged, or changes another model than this one; the old model then stays.
        """

    @property
    def labels(self) -> list[str]:
        """The labels that are predicted, one per head, in the order of scores."""

    @property
    def columns(self) -> list[str] | None:
        """The raw columns that ``score`` reads; ``None`` for models of generated data."""

    @property
    def schema(self) -> dict[str, Any]:
        """The columns of the model, with their transforms, vocabularies and numbers of rows."""

    @property
    def steps(self) -> int:
        """The number of steps that the model was trained for."""

@final
class Trainer:
    """Trains the model of a job on rows that the program gives it: each call of ``step`` is a step.

    ``job`` is the path of a job file, or a mapping with the contents of one; further keywords replace values of it.
    ``data`` is a dataset, or the folder of a run or of an export, whose columns and vocabularies the rows have; or the
    job's settings of data, as a mapping. By default, it is ``data.dir`` of the job. The evaluation part of a dataset is
    evaluated as the job says; its training part is not read.

    The steps run on a thread of their own, and up to 4 of them wait. ``run_dir``, ``resume``, ``restart`` and
    ``on_event`` are those of :func:`train`; events arrive during the calls of methods. A trainer that is dropped before
    ``finish`` saves a checkpoint.

    Raises JobError, DataError, ModelError or TrainError.
    """

    def __new__(
        cls,
        job: _Path | Mapping[str, Any] | None = None,
        data: _Path | Mapping[str, Any] | None = None,
        run_dir: _Path | None = None,
        *,
        resume: bool = False,
        restart: bool = False,
        on_event: Callable[[dict[str, Any]], object] | None = None,
        **settings: Any,
    ) -> Trainer: ...
    def step(self, data: Mapping[str, Any] | _ArrowStream | _ArrowArray) -> None:
        """Trains a step on raw rows with their labels, as the files have them that the dataset was converted from.

        ``data`` is that of :meth:`Ranker.score`, with the columns of labels, and of weights if the dataset has them. At
        most ``train.batch_size`` rows; no rows are no step. Returns once the rows are checked and queued; waits while 4
        steps wait.

        Raises RowError, which names column and row, if the rows do not fit: nothing has changed then. Raises TrainError
        if an earlier step failed.
        """

    def step_mapped(
        self,
        dense: npt.NDArray[np.floating[Any]],
        categorical: Sequence[_MappedColumn] | Mapping[str, _MappedColumn],
        labels: npt.NDArray[np.floating[Any]] | npt.NDArray[np.integer[Any]],
        weights: npt.NDArray[np.floating[Any]] | None = None,
    ) -> None:
        """Trains a step on mapped features with their labels, as a dataset has them.

        ``dense`` and ``categorical`` are those of :meth:`Ranker.score_mapped`. ``labels`` are 0, 1, or NaN where one is
        missing: ``[rows]``, or ``[rows, labels]`` if there are several. ``weights`` are ``[rows]``, if the dataset has
        them. The attributes of a :class:`Batch` fit.

        Raises RowError and TrainError, as ``step`` does.
        """

    def evaluate(self) -> dict[str, Any] | None:
        """Waits for all steps, and evaluates the model on the dataset's evaluation part.

        Returns what ``rankine eval --json`` prints, and ``seconds``; ``None`` if there is no evaluation part. Raises
        TrainError. Ctrl-C ends the training after a checkpoint, also in the methods below.
        """

    def checkpoint(self) -> Path:
        """Waits for all steps, and saves a checkpoint. Returns its folder. Raises TrainError."""

    def save(self, path: _Path) -> None:
        """Waits for all steps, and saves the model as an export in a folder that must not exist, which :class:`Ranker`
        loads. Raises TrainError.
        """

    def finish(self) -> dict[str, Any]:
        """Waits for all steps, evaluates the model, and saves it in the run folder.

        Returns the contents of the run's ``summary.json``, and ``run_dir``. The trainer cannot be used any more. Raises
        TrainError.
        """

    @property
    def steps(self) -> int:
        """The number of steps, those before a resume included."""

    @property
    def samples(self) -> int:
        """The number of rows in these steps: after a resume, go on with the rows that follow them."""

    @property
    def run_dir(self) -> Path:
        """The run folder."""

    @property
    def schema(self) -> dict[str, Any]:
        """The columns of rows, with their transforms, vocabularies and numbers of rows."""

@final
class Dataset:
    """A dataset, as :func:`convert` writes it. A list of paths is opened as one dataset. Raises DataError if they
    cannot be opened, or do not fit together."""

    def __new__(cls, path: _Path | Sequence[_Path]) -> Dataset: ...
    @property
    def path(self) -> Path: ...
    @property
    def schema(self) -> dict[str, Any]:
        """The columns, with their transforms, vocabularies and numbers of rows."""

    @property
    def samples(self) -> dict[str, int]:
        """The number of samples of each part: ``train`` and ``eval``."""

    def batches(self, part: _Part = "eval", batch_size: int = 4096) -> Batches:
        """Reads a part once, in the order of its files, while the caller uses earlier batches."""

@final
class Batches(Iterator[Batch]):
    """An iterator over the batches of a part. Raises DataError if a block is damaged."""

    def __iter__(self) -> Batches: ...
    def __next__(self) -> Batch: ...

@final
class Batch:
    """Samples of a dataset; ``len`` is their number."""

    @property
    def labels(self) -> npt.NDArray[np.float32]:
        """0, 1, or NaN where a label is missing: ``[rows]``, or ``[rows, labels]`` if there are several."""

    @property
    def weights(self) -> npt.NDArray[np.float32] | None:
        """``[rows]``; ``None`` if samples have no weights."""

    @property
    def dense(self) -> npt.NDArray[np.float32]:
        """``[rows, columns]``, after the transforms."""

    @property
    def categorical(self) -> dict[str, tuple[npt.NDArray[Any], ...]]:
        """The offsets ``[rows + 1]`` and ids of each column, and their weights if they have some: row ``i`` has
        ``ids[offsets[i]:offsets[i + 1]]``."""

    def __len__(self) -> int: ...

def train(
    job: _Path | Mapping[str, Any] | None = None,
    run_dir: _Path | None = None,
    *,
    resume: bool = False,
    restart: bool = False,
    on_event: Callable[[dict[str, Any]], object] | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """Trains the model of a job: the path of a job file, or a mapping with the contents of one.

    Further keywords replace values of the job: ``train("job.toml", train={"max_steps": 100})``. Without a job, they are
    the job. Every setting has the checks and the default of the job file.

    The run folder is a new one below ``runs``, unless ``run_dir`` names one. ``resume`` continues a run in it from its
    last checkpoint, or starts one; ``restart`` starts over. Ctrl-C saves a checkpoint after the current step and raises
    KeyboardInterrupt; so does an exception of ``on_event``.

    ``on_event`` receives the lines of ``metrics.jsonl`` as dicts, whose ``kind`` is ``train`` or ``eval``, and
    warnings of the kind ``warning``, with a ``text``.

    Returns the contents of the run's ``summary.json``, and ``run_dir``. Raises JobError, DataError or TrainError.
    """

def evaluate(
    run: _Path,
    data: _Path | None = None,
    *,
    part: _Part = "eval",
    raw: _Path | Sequence[_Path] | None = None,
    threads: int | None = None,
) -> dict[str, Any]:
    """Evaluates a trained model on a part of a dataset, by default that of its job.

    With ``raw``, evaluates it on files of raw rows in the format of its training data instead.

    Returns what ``rankine eval --json`` prints, and ``seconds``. Raises ModelError, DataError or TrainError.
    """

@overload
def convert(
    format: Literal["csv", "parquet"],
    train: _Path | Sequence[_Path],
    out: _Path,
    *,
    schema: _Path | Mapping[str, Any],
    eval: _Path | Sequence[_Path] = (),
    split: str = "none",
    on_bad: Literal["fail", "skip", "quarantine"] = "fail",
    bad_limit: str | int = "1%",
    min_count: int = 1,
    dense_dtype: Literal["f16", "f32"] = "f32",
    memory: int | None = None,
    block_samples: int | None = None,
    negatives_kept: float | str | None = None,
    threads: int | None = None,
) -> dict[str, Any]:
    """Converts click logs to a dataset in the folder ``out``, which must not exist.

    The options are those of ``rankine convert``: ``split`` is ``"last:0.2"``, ``"random:0.1:SEED"``,
    ``"hash:COLUMN:0.1"``, ``"after:COLUMN:VALUE"`` or ``"none"``, ``memory`` is in bytes, and ``schema`` is a schema
    file, or a mapping with the contents of one. For Criteo's logs, ``columns`` maps names to vocabularies, such as
    ``{"C3": "hash:100000"}``.

    With the format ``"arrow"``, ``train`` and ``eval`` are rows instead of files: a data frame of pandas or Polars, a
    table, record batch or reader of PyArrow, or an iterable of these. An iterable is read once. The columns that the
    schema or ``split`` names are written to a temporary Parquet file without a name on the disk of ``out``, since a
    conversion reads its rows up to three times; other columns are ignored. A Parquet file with these rows gives the
    same dataset.

    ``like`` is an existing dataset, a fit or a run, whose columns, transforms and vocabularies the new dataset keeps,
    instead of the options that describe columns. With ``grow=True``, new categories get rows after the old ones.

    Ctrl-C stops the conversion, and leaves no dataset. Returns the report of the conversion, and ``dataset``. Raises
    DataError.
    """

@overload
def convert(
    format: Literal["arrow"],
    train: _Rows,
    out: _Path,
    *,
    schema: _Path | Mapping[str, Any],
    eval: _Rows | None = None,
    split: str = "none",
    on_bad: Literal["fail", "skip", "quarantine"] = "fail",
    bad_limit: str | int = "1%",
    min_count: int = 1,
    dense_dtype: Literal["f16", "f32"] = "f32",
    memory: int | None = None,
    block_samples: int | None = None,
    negatives_kept: float | str | None = None,
    threads: int | None = None,
) -> dict[str, Any]: ...
@overload
def convert(
    format: Literal["arrow"],
    train: _Rows,
    out: _Path,
    *,
    like: _Path,
    grow: bool = False,
    eval: _Rows | None = None,
    split: str = "none",
    on_bad: Literal["fail", "skip", "quarantine"] = "fail",
    bad_limit: str | int = "1%",
    memory: int | None = None,
    block_samples: int | None = None,
    negatives_kept: float | str | None = None,
    threads: int | None = None,
) -> dict[str, Any]: ...
@overload
def convert(
    format: Literal["criteo-tsv"],
    train: _Path | Sequence[_Path],
    out: _Path,
    *,
    eval: _Path | Sequence[_Path] = (),
    split: str = "none",
    on_bad: Literal["fail", "skip", "quarantine"] = "fail",
    bad_limit: str | int = "1%",
    min_count: int = 1,
    dense: Literal["log", "mlperf"] = "log",
    dense_dtype: Literal["f16", "f32"] = "f16",
    vocabulary: str = "exact",
    columns: Mapping[str, str] = ...,
    memory: int | None = None,
    block_samples: int | None = None,
    negatives_kept: float | str | None = None,
    threads: int | None = None,
) -> dict[str, Any]: ...
@overload
def convert(
    format: Literal["csv", "parquet", "criteo-tsv", "hugectr-raw"],
    train: _Path | Sequence[_Path],
    out: _Path,
    *,
    like: _Path,
    grow: bool = False,
    eval: _Path | Sequence[_Path] = (),
    split: str = "none",
    on_bad: Literal["fail", "skip", "quarantine"] = "fail",
    bad_limit: str | int = "1%",
    memory: int | None = None,
    block_samples: int | None = None,
    negatives_kept: float | str | None = None,
    threads: int | None = None,
) -> dict[str, Any]: ...
@overload
def convert(
    format: Literal["hugectr-raw"],
    train: _Path | Sequence[_Path],
    out: _Path,
    *,
    shape: _Path,
    eval: _Path | Sequence[_Path] = (),
    split: str = "none",
    on_bad: Literal["fail", "skip", "quarantine"] = "fail",
    bad_limit: str | int = "1%",
    rows_cap: int | None = None,
    labels: int = 1,
    dense: Literal["float", "int"] = "float",
    ids: Literal["per-table", "global-offset"] = "per-table",
    dense_dtype: Literal["f16", "f32"] = "f32",
    block_samples: int | None = None,
    negatives_kept: float | str | None = None,
    threads: int | None = None,
) -> dict[str, Any]: ...

@final
class Partial:
    """What :func:`learn` has learned from a piece of the rows: a table of entries for Arrow's libraries, such as
    ``pyarrow.table(partial)``.

    The columns are ``column`` (text), ``value`` (bytes) and ``count`` (64-bit integer). The counts of entries with the
    same column and value may be added up, by an engine's group-by for example; one entry, whose column has an empty
    name, has the statistics of the piece. A partial is read once: keep the table to use it again.
    """

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...

@overload
def learn(
    rows: _Rows,
    *,
    schema: _Path | Mapping[str, Any],
    split: str = "none",
    on_bad: Literal["fail", "skip"] = "fail",
    bad_limit: str | int = "1%",
    min_count: int = 1,
    dense_dtype: Literal["f16", "f32"] = "f32",
    memory: int | None = None,
    negatives_kept: float | str | None = None,
    threads: int | None = None,
) -> Partial:
    """Learns from a piece of the rows: a worker calls this for each of its partitions.

    ``rows`` and the options mean what they do in :func:`convert` with the format ``"arrow"``; all pieces need the same
    options. ``split`` is ``"hash:COLUMN:0.1"``, ``"after:COLUMN:VALUE"`` or ``"none"``, since a piece does not know the
    numbers of its rows. ``like`` is a dataset, a fit or a run whose vocabularies the fit continues. Categories beyond
    ``memory`` bytes are counted on disk, in the folder for temporary files.

    The fit does not depend on how rows are divided into pieces, nor on their order. Rows that cannot be read are
    counted if ``on_bad`` is ``"skip"``; ``bad_limit`` applies to the piece. No rows give no entries. Raises DataError.
    """

@overload
def learn(
    rows: _Rows,
    *,
    like: _Path,
    split: str = "none",
    on_bad: Literal["fail", "skip"] = "fail",
    bad_limit: str | int = "1%",
    memory: int | None = None,
    negatives_kept: float | str | None = None,
    threads: int | None = None,
) -> Partial: ...
def fit(
    partials: _Rows,
    out: _Path,
    *,
    like: _Path | None = None,
    names: Iterable[str] = ("<rows>",),
    memory: int | None = None,
    threads: int | None = None,
) -> dict[str, Any]:
    """Writes the fit of all pieces to the folder ``out``, which must not exist: the files of ``rankine fit`` for the
    same rows in Parquet.

    ``partials`` are the entries of all partials, in any order and added up or not: partials, tables or record batches.
    ``like`` is what they continue, if they were learned with it: rows keep their numbers, and new categories follow.
    ``names`` are what the fit records as the files of its rows. Categories beyond ``memory`` bytes are counted on disk.

    Returns what ``rankine fit --json`` prints, and ``fit``. Raises DataError, if pieces were learned with different
    options, for example.
    """

def encode(
    rows: _Rows,
    fit: _Path,
    out: _Path,
    *,
    name: str,
    split: str = "none",
    on_bad: Literal["fail", "skip", "quarantine"] = "fail",
    bad_limit: str | int = "1%",
    block_samples: int | None = None,
    negatives_kept: float | str | None = None,
    threads: int | None = None,
) -> dict[str, Any] | None:
    """Converts a piece of the rows to a shard of the collection in the folder ``out``: a worker calls this for each of
    its partitions.

    ``fit`` is a fit, or a dataset or a run whose columns and vocabularies the shard has. ``name`` is the piece's own:
    its folder is ``out/shards/NAME-CHECKSUM``, so that the same piece gives the same folder again, and processes that
    encode it at the same time do not disturb each other. The shard has no effect until it is committed.

    Returns the report of the conversion, and ``dataset``, the shard; ``None`` if there are no rows. Raises DataError.
    """

def commit(
    shards: Iterable[Mapping[str, Any] | _Path | None],
    out: _Path,
    *,
    mode: Literal["new", "append", "overwrite"] = "new",
) -> dict[str, Any]:
    """Lists shards in the collection in the folder ``out``, all at once, in this order: what :func:`encode` has
    returned, or paths of datasets and collections.

    If there is a collection, ``"append"`` adds the shards that it does not list, ``"overwrite"`` lists only the new
    ones, and ``"new"`` raises DataError unless it lists these. A commit that is repeated changes nothing. Shards that
    no collection lists can be removed by ``rankine dataset gc``.

    Returns ``dataset``, the number of ``datasets``, and ``samples`` of each part. Raises DataError.
    """
