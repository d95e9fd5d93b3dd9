"""Training on rows of the program has the bits of training from a dataset."""

import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from conftest import JOB, Films, Generated, command, ratings

import rankine

TRAINED = 1600
STEP = 64
TABLES: Any = [{"columns": ["film", "last"]}]


def rows_of(columns: dict[str, list[Any]], first: int, end: int) -> dict[str, list[Any]]:
    return {name: values[first:end] for name, values in columns.items()}


def weights(run: Path) -> bytes:
    return (run / "model/model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def read(films: Films, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that reads the rows of the films in their order."""
    run = tmp_path_factory.mktemp("read") / "run"
    rankine.train(JOB, run, data={"dir": films.data}, table=TABLES, train={"shuffle": False})
    return run


def to_frame(columns: dict[str, list[Any]]) -> pd.DataFrame:
    frame = pd.DataFrame(columns)
    return frame.set_index(frame.index + 1000)


def to_table(columns: dict[str, list[Any]]) -> pa.Table:
    table = pa.table(columns)
    return pa.concat_tables([table.slice(0, 10), table.slice(10)])


@pytest.mark.parametrize("form", [dict, to_frame, pl.DataFrame, pa.RecordBatch.from_pydict, to_table])
def test_raw_rows_have_the_bits_of_their_dataset(form: Any, films: Films, read: Path, tmp_path: Path) -> None:
    columns = ratings(2000, 1)
    trainer = rankine.Trainer(JOB, films.data, tmp_path / "run", table=TABLES)
    for first in range(0, TRAINED, STEP):
        trainer.step(form(rows_of(columns, first, first + STEP)))
    assert (trainer.steps, trainer.samples) == (25, TRAINED)
    summary = trainer.finish()
    assert weights(tmp_path / "run") == weights(read)
    written = json.loads((tmp_path / "run/summary.json").read_text())
    assert summary == {"run_dir": str(tmp_path / "run"), **written}
    assert summary["train"]["stopped"] == "program" and summary["eval"]["heads"].keys() == {"rating", "bought"}


def test_mapped_rows_have_the_bits_of_their_dataset(films: Films, read: Path, tmp_path: Path) -> None:
    trainer = rankine.Trainer(JOB, run_dir=tmp_path / "run", data={"dir": films.data}, table=TABLES)
    for batch in rankine.Dataset(films.data).batches("train", STEP):
        trainer.step_mapped(batch.dense, batch.categorical, batch.labels, batch.weights)
    trainer.finish()
    assert weights(tmp_path / "run") == weights(read)


def test_a_run_gives_the_columns_and_a_model_can_be_saved_meanwhile(films: Films, tmp_path: Path) -> None:
    columns = ratings(STEP, 3)
    trainer = rankine.Trainer(JOB, films.run, tmp_path / "run")
    assert trainer.schema == rankine.Dataset(films.data).schema and trainer.run_dir == tmp_path / "run"
    trainer.step(columns)
    assert trainer.evaluate() is None
    trainer.save(tmp_path / "first")
    ranker = rankine.Ranker.load(tmp_path / "first")
    before = ranker.score(films.features())
    trainer.step(columns)
    trainer.save(tmp_path / "second")
    ranker.swap(tmp_path / "second")
    assert not np.array_equal(before, ranker.score(films.features()))
    with pytest.raises(rankine.DataError, match="first already exists"):
        trainer.save(tmp_path / "first")
    trainer.step(columns)
    assert trainer.finish()["train"]["steps"] == 3


def test_an_evaluation_and_its_events(films: Films, tmp_path: Path) -> None:
    events: list[dict[str, Any]] = []
    trainer = rankine.Trainer(JOB, films.data, tmp_path / "run", on_event=events.append)
    trainer.step(ratings(STEP, 3))
    evaluation = trainer.evaluate()
    assert evaluation is not None
    trainer.finish()
    evaluated = json.loads(command("eval", "--run", tmp_path / "run", "--json"))
    # Only an evaluation during a training says how many samples were scored at a time.
    assert evaluation.pop("batch_size") == 8192
    assert evaluation.pop("seconds") > 0 and evaluation == evaluated
    of_event = next(event for event in events if event["kind"] == "eval")
    assert of_event["heads"] == evaluated["heads"] and of_event["step"] == 1


def test_a_training_resumes_to_the_bit(films: Films, read: Path, tmp_path: Path) -> None:
    columns = ratings(2000, 1)

    def steps(trainer: rankine.Trainer, end: int) -> None:
        for first in range(trainer.samples, end, STEP):
            trainer.step(rows_of(columns, first, first + STEP))

    trainer = rankine.Trainer(JOB, films.data, tmp_path / "run", table=TABLES)
    steps(trainer, 5 * STEP)
    saved = trainer.checkpoint()
    assert saved.name == "step-5" and saved.is_dir()
    steps(trainer, 8 * STEP)
    del trainer
    trainer = rankine.Trainer(JOB, films.data, tmp_path / "run", resume=True, table=TABLES)
    assert trainer.steps == 8
    steps(trainer, TRAINED)
    trainer.finish()
    assert weights(tmp_path / "run") == weights(read)


def test_rows_that_do_not_fit_change_nothing(films: Films, generated: Generated, tmp_path: Path) -> None:
    good = ratings(STEP, 3)

    def refusal(**changes: Any) -> str:
        with pytest.raises(rankine.RowError) as error:
            trainer.step({**good, **changes})
        return str(error.value)

    trainer = rankine.Trainer(JOB, films.data, tmp_path / "bad")
    assert refusal(bought=[2] * STEP) == "column bought, row 0: 2 is not a label: it must be 0 or 1"
    assert refusal(hour=[0, 24] + good["hour"][2:]).startswith("column hour, row 1: 24 is not the number of one")
    assert refusal(film=["f1"]) == f"column film has 1 row; expected {STEP}"
    with pytest.raises(rankine.RowError, match=r"^the dict has no column `rating`; it has `bought`, `age`"):
        trainer.step({name: values for name, values in good.items() if name != "rating"})
    with pytest.raises(rankine.RowError, match="^a push has at most train.batch_size .64. rows, not 65: push"):
        trainer.step(ratings(65, 3))
    trainer.step(ratings(0, 3))
    assert trainer.steps == 0
    # Columns that the dataset does not have are ignored.
    trainer.step({**good, "id": [object()] * STEP})
    trainer.finish()
    trainer = rankine.Trainer(JOB, films.data, tmp_path / "good")
    trainer.step(good)
    trainer.finish()
    assert weights(tmp_path / "bad") == weights(tmp_path / "good")

    trainer = rankine.Trainer(JOB, generated.data, tmp_path / "generated")
    with pytest.raises(rankine.RowError, match="^generated data have no raw rows: give mapped features$"):
        trainer.step(good)
    batch = next(rankine.Dataset(generated.data).batches("train", STEP))
    step: Any = trainer.step_mapped
    with pytest.raises(rankine.RowError, match=r"^labels have the shape \[1, 1, 64\]; expected \[rows\] or"):
        step(batch.dense, batch.categorical, batch.labels.reshape(1, 1, -1))
    with pytest.raises(rankine.RowError, match="^2 labels; expected 1$"):
        step(batch.dense, batch.categorical, np.zeros((STEP, 2)))
    with pytest.raises(rankine.RowError, match="^labels are of type <U1; expected float32$"):
        step(batch.dense, batch.categorical, np.array(["0"] * STEP))
    with pytest.raises(rankine.RowError, match="^weights were given, but the dataset has no weight column: omit them$"):
        step(batch.dense, batch.categorical, batch.labels, np.ones(STEP))
    step(batch.dense, list(batch.categorical.values()), batch.labels.astype(np.int64)[:, None])
    assert trainer.steps == 1


def test_trainings_that_cannot_be_are_refused(films: Films, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with pytest.raises(rankine.JobError, match="target_auc is set"):
        rankine.Trainer(JOB, films.data, run, eval={"target_auc": 0.7, "every_steps": 1})
    with pytest.raises(TypeError, match="^resume and restart need run_dir$"):
        rankine.Trainer(JOB, films.data, resume=True)
    with pytest.raises(rankine.DataError):
        rankine.Trainer(JOB, tmp_path / "nowhere", run)
    trainer = rankine.Trainer(JOB, films.data, run, train={"batch_size": 64, "max_steps": 1})
    with pytest.raises(rankine.TrainError, match="^no rows were pushed, so there is no model to save$"):
        rankine.Trainer(JOB, films.data, tmp_path / "empty").finish()
    trainer.step(ratings(STEP, 3))
    ended = "^training ended at train.max_steps, after 1 step: raise it to continue$"
    with pytest.raises(rankine.TrainError, match=ended):
        trainer.step(ratings(STEP, 3))
    trainer.finish()
    with pytest.raises(rankine.TrainError, match="^the trainer has finished: create a new one$"):
        trainer.step(ratings(STEP, 3))


def test_threads_share_a_trainer(films: Films, tmp_path: Path) -> None:
    trainer = rankine.Trainer(JOB, films.data, tmp_path / "run")
    rows = ratings(STEP, 3)

    def steps() -> None:
        for _ in range(20):
            trainer.step(rows)

    threads = [threading.Thread(target=steps) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert trainer.finish()["train"]["steps"] == 80


def test_ctrl_c_ends_a_training_with_a_checkpoint(films: Films, tmp_path: Path) -> None:
    trainer = rankine.Trainer(JOB, films.data, tmp_path / "run")
    rows = ratings(STEP, 3)

    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        while True:
            trainer.step(rows)
            trainer.evaluate()
    timer.join()
    steps = trainer.steps
    del trainer
    assert rankine.Trainer(JOB, films.data, tmp_path / "run", resume=True).steps == steps
