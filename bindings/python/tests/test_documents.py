"""The code of the guide and of the notebook runs."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

PACKAGE = Path(__file__).resolve().parent.parent
GUIDE = PACKAGE.parent.parent / "docs/guide/python.md"
NOTEBOOK = PACKAGE / "tutorial.ipynb"


def execute(pieces: list[str], name: str) -> None:
    namespace: dict[str, Any] = {}
    for number, piece in enumerate(pieces, 1):
        exec(compile(piece, f"{name}, piece {number}", "exec"), namespace)


def test_the_guide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 8
    execute(blocks, GUIDE.name)


def test_the_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    notebook = json.loads(NOTEBOOK.read_text())
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert len(cells) >= 8 and all(cell["outputs"] == [] for cell in cells)
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    execute(["".join(cell["source"]) for cell in cells], NOTEBOOK.name)
