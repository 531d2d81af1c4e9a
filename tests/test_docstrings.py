"""Docstrings of the public interface say what is so: each has an example, and all examples run."""

import doctest
from importlib import import_module

import pytest

import checkmate_tf
from tests.graphs import training_chain
from tests.plans import make_plan

CORE = (
    "budget", "graph", "graph_arrays", "origins", "schedule", "serialization", "simulator", "solution_json",
    "executors.step", "max_batch.search", "max_batch.sized_step", "reports.batches", "reports.budget_curve",
    "solvers.base", "solvers.search", "solvers.solving",
)  # fmt: skip
TENSORFLOW = (
    "errors",
    "max_batch.best_batch",
    "max_batch.max_batch_size",
    "max_batch.result",
    "planning.options",
    "planning.pattern_costs",
    "profiling.costs",
    "training.estimate",
    "training.functions",
    "training.memory_report",
    "training.rematerialize",
    "tradeoff.pareto",
)
# Examples here have a `plan` and its `view`, of a chain of three layers within 80 % of its memory.
OF_A_PLAN = ("reports.plan", *(f"reports.{name}" for name in ("page", "pictures", "records", "summary", "trace")))
ALL = (*CORE, *TENSORFLOW, *OF_A_PLAN)


@pytest.mark.parametrize("name", ALL)
def test_examples_run(name: str, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    plan = make_plan(training_chain(3, size=1000), "80%")
    given = {"plan": plan, "view": plan.view} if name in OF_A_PLAN else {}
    result = doctest.testmod(import_module(f"checkmate_tf.{name}"), extraglobs=given)
    assert result.attempted > 0
    assert result.failed == 0


@pytest.mark.parametrize("name", [name for name in checkmate_tf.__all__ if name != "__version__"])
def test_every_public_name_has_an_example_that_runs(name: str) -> None:
    public = getattr(checkmate_tf, name)
    assert ">>>" in (public.__doc__ or "")
    assert public.__module__.removeprefix("checkmate_tf.") in ALL
