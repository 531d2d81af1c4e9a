"""Docstrings of the public interface say what is so: their examples run."""

import doctest
from importlib import import_module

import pytest

CORE = ("budget", "graph", "schedule", "serialization", "simulator", "solution_json", "reports.pareto")
TENSORFLOW = (
    "max_batch.max_batch_size",
    "training.estimate",
    "training.functions",
    "training.memory_report",
    "training.rematerialize",
)


@pytest.mark.parametrize("name", [*CORE, *TENSORFLOW])
def test_examples_run(name: str, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = doctest.testmod(import_module(f"checkmate_tf.{name}"))
    assert result.attempted > 0
    assert result.failed == 0
