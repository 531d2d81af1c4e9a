"""Whatever an experiment imports of the project, at its top or within a function, exists."""

import ast
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = sorted((ROOT / "experiments").rglob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_what_an_experiment_imports_of_the_project_exists(path):
    for found in ast.walk(ast.parse(path.read_text())):
        if isinstance(found, ast.ImportFrom) and (found.module or "").split(".")[0] in ("checkmate_tf", "experiments"):
            missing = [name.name for name in found.names if not exists(found.module, name.name)]
            assert not missing, f"{found.module} has no {missing}"


def exists(module: str, name: str) -> bool:
    """Whether a module has a name; what needs a package that is not installed is taken for good."""
    try:
        if hasattr(importlib.import_module(module), name):
            return True
        importlib.import_module(f"{module}.{name}")
    except ModuleNotFoundError as error:
        return error.name is not None and not error.name.startswith(("checkmate_tf", "experiments"))
    return True
