"""Docstrings of the public interface say what is so: each has an example, and all examples run."""

import doctest
from importlib import import_module
from pathlib import Path

import pytest

import checkmate_tf
from tests.graphs import training_chain
from tests.plans import make_plan

ROOT = Path(__file__).resolve().parents[1]


def list_modules_with_examples() -> list[str]:
    """The names below `checkmate_tf` of all modules that have an example."""
    return [
        ".".join([*prefix, *path.relative_to(ROOT / folder).with_suffix("").parts])
        for folder, prefix in (("checkmate_tf", ()), ("profiling", ("profiling",)), ("solvers", ("solvers",)))
        for path in sorted((ROOT / folder).rglob("*.py"))
        if ">>>" in path.read_text(encoding="utf-8")
    ]


@pytest.mark.parametrize("name", list_modules_with_examples())
def test_examples_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Examples of reports have a `plan` and its `view`, of a chain of three layers within 80 % of its memory."""
    monkeypatch.chdir(tmp_path)
    plan = make_plan(training_chain(3, size=1000), "80%")
    given = {"plan": plan, "view": plan.view} if name.startswith("reports.") else {}
    result = doctest.testmod(import_module(f"checkmate_tf.{name}"), extraglobs=given)
    assert result.attempted > 0
    assert result.failed == 0


@pytest.mark.parametrize("name", [name for name in checkmate_tf.__all__ if name != "__version__"])
def test_every_public_name_has_an_example(name: str) -> None:
    assert ">>>" in (getattr(checkmate_tf, name).__doc__ or "")
