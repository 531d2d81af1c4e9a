"""Docstrings of the public interface say what is so: their examples run."""

import doctest
from importlib import import_module

import pytest

from tests.graphs import training_chain
from tests.plans import make_plan

CORE = (
    "budget", "graph", "origins", "schedule", "serialization", "simulator", "solution_json",
    "reports.batches", "reports.budget_curve", "solvers.solving",
)  # fmt: skip
TENSORFLOW = (
    "max_batch.best_batch",
    "max_batch.max_batch_size",
    "training.estimate",
    "training.functions",
    "training.memory_report",
    "training.rematerialize",
    "tradeoff.pareto",
)
# Examples here have a `plan` and its `view`, of a chain of three layers within 80 % of its memory.
OF_A_PLAN = ("reports.plan", *(f"reports.{name}" for name in ("page", "pictures", "records", "summary", "trace")))


@pytest.mark.parametrize("name", [*CORE, *TENSORFLOW, *OF_A_PLAN])
def test_examples_run(name: str, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    plan = make_plan(training_chain(3, size=1000), "80%")
    given = {"plan": plan, "view": plan.view} if name in OF_A_PLAN else {}
    result = doctest.testmod(import_module(f"checkmate_tf.{name}"), extraglobs=given)
    assert result.attempted > 0
    assert result.failed == 0
