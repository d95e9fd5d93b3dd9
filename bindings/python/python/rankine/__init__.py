"""Train ranking models, and score with them: DLRM and its family.

Start at :func:`train`, which trains the model of a job, at :class:`Trainer`, which trains it on rows of the program, and
at :class:`Ranker`, which scores with it.
"""


class Error(Exception):
    """What every error of Rankine is."""


class ArgumentError(Error, ValueError, TypeError):
    """An argument of a call has a type or a value that it cannot have."""


class JobError(Error):
    """A job is invalid, or does not suit its dataset or this machine."""


class DataError(Error):
    """Data cannot be read, converted or written."""


class ModelError(Error):
    """A model cannot be loaded."""


class RowError(Error, ValueError):
    """Rows cannot be scored or trained on: their columns or values do not fit the model."""


class TrainError(Error):
    """A training or an evaluation has failed."""


# The compiled module raises these errors, so it comes after them.
from rankine._rankine import (  # noqa: E402
    Batch,
    Batches,
    Dataset,
    Partial,
    Ranker,
    Trainer,
    __version__,
    commit,
    convert,
    encode,
    evaluate,
    fit,
    learn,
    train,
)

__all__ = [
    "ArgumentError",
    "Batch",
    "Batches",
    "DataError",
    "Dataset",
    "Error",
    "JobError",
    "ModelError",
    "Partial",
    "Ranker",
    "RowError",
    "TrainError",
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
