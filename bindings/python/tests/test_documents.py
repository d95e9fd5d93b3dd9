"""The code of the guide and of the notebook runs."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from conftest import JOB, Films

import rankine

PACKAGE = Path(__file__).resolve().parent.parent
GUIDE = PACKAGE.parent.parent / "docs/guide/python.md"
NOTEBOOK = PACKAGE / "tutorial.ipynb"


def guide(page: Path = GUIDE) -> list[str]:
    """The code of the guide."""
    return re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


def execute(pieces: list[str], name: str) -> None:
    namespace: dict[str, Any] = {}
    for number, piece in enumerate(pieces, 1):
        exec(compile(piece, f"{name}, piece {number}", "exec"), namespace)


def test_the_guide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = [block for block in guide() if "import mlflow" not in block]
    assert len(blocks) == 8
    execute(blocks, GUIDE.name)


def test_the_four_functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = GUIDE.with_name("engines.md")
    [block] = [block for block in guide(page) if "rankine.learn(" in block]
    execute([block], page.name)
    assert rankine.Dataset("clicks").samples == {"train": 4, "eval": 0}


@pytest.mark.filterwarnings("default")
def test_the_recipe_for_mlflow(films: Films, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With MLflow itself, and a store of files."""
    # Its file store is in maintenance mode, but needs no database.
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow = pytest.importorskip("mlflow")
    mlflow.set_tracking_uri((tmp_path / "mlruns").as_uri())
    [recipe] = [block for block in guide() if "import mlflow" in block]
    namespace: dict[str, Any] = {"rankine": rankine}
    exec(compile(recipe, "recipe", "exec"), namespace)
    job = {**JOB, "data": {"dir": str(films.data)}, "train": {"batch_size": 64, "log_every_steps": 5}}
    job["eval"] = {"every_steps": 10}
    summary = namespace["train_tracked"](job, str(tmp_path / "run"))

    client = mlflow.MlflowClient()
    [run] = client.search_runs([client.get_experiment_by_name("Default").experiment_id])
    assert run.info.status == "FINISHED" and run.info.run_name == "tests"
    assert run.data.params["train.batch_size"] == "64" and run.data.params["model.embedding_dim"] == "4"
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    losses = [(line["step"], line["loss"]) for line in lines if line["kind"] == "train"]
    history = client.get_metric_history(run.info.run_id, "train.loss")
    assert sorted((metric.step, metric.value) for metric in history) == losses and len(losses) >= 4
    assert run.data.metrics["eval.seconds"] > 0
    assert run.data.metrics["samples_per_second"] == summary["train"]["samples_per_second"]
    saved = client.list_artifacts(run.info.run_id, "model")
    assert "model/model.safetensors" in [artifact.path for artifact in saved]


def test_the_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    notebook = json.loads(NOTEBOOK.read_text())
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert len(cells) >= 8 and all(cell["outputs"] == [] for cell in cells)
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    execute(["".join(cell["source"]) for cell in cells], NOTEBOOK.name)
