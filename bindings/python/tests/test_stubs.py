"""The documentation of the stubs is that of the compiled module. CI compares the signatures with mypy's stubtest."""

import ast
import inspect
from pathlib import Path
from typing import Any

import rankine

STUBS = Path(rankine.__file__).parent / "_rankine.pyi"


def documented(body: list[ast.stmt], of: Any) -> int:
    """Compares docstrings, and returns their number."""
    count = 0
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not (node.name[0] == "_" and node.name[1] != "_"):
            named = getattr(of, node.name)
            stated = ast.get_docstring(node)
            if stated:
                assert inspect.getdoc(named) == stated, node.name
                count += 1
            if isinstance(node, ast.ClassDef):
                count += documented(node.body, named)
    return count


def test_stubs_have_the_documentation_of_the_module() -> None:
    stubs = ast.parse(STUBS.read_text())
    assert documented(stubs.body, rankine) > 20
    public = [name for name in rankine.__all__ if name != "__version__"]
    assert all(inspect.getdoc(getattr(rankine, name)) for name in public)
    assert (STUBS.parent / "py.typed").exists()
