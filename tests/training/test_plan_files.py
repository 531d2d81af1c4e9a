"""Plans that outlive a process: files that are installed without solving, and plans that are kept."""

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import checkmate_tf
from checkmate_tf.errors import BudgetError, PlanError
from checkmate_tf.planning import plan_cache, search
from checkmate_tf.profiling.profiler import cut_node_fragments
from checkmate_tf.solvers.checkpointing.retain_all import RetainAll
from checkmate_tf.training import batches
from checkmate_tf.training.installed_step import find_installed_step
from checkmate_tf.training.traced_model import trace_model
from tests.programs import WITHOUT_OPTIONAL

layers = keras.layers
QUICK: dict[str, Any] = {"options": checkmate_tf.Options(costs="flops"), "progress": False}


def build(
    optimizer: str | keras.optimizers.Optimizer = "adam", *, width: int = 64, jit_compile: bool = False
) -> keras.Model:
    keras.utils.set_random_seed(0)
    hidden = [layers.Dense(width, activation="relu") for _ in range(6)]
    model = keras.Sequential([keras.Input((64,)), *hidden, layers.Dense(1)], name="deep")
    model.compile(optimizer, "mse", jit_compile=jit_compile)
    return model


@pytest.fixture
def solves(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is solved and timed from now on."""
    done: list[str] = []
    for name in ("solve", "minimum_memory", "measure_stock"):
        function = getattr(search, name)

        def note(*arguments: Any, _name: str = name, _function: Any = function, **options: Any) -> Any:
            done.append(_name)
            return _function(*arguments, **options)

        monkeypatch.setattr(search, name, note)
    return done


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[checkmate_tf.Plan, Path]:
    plan = checkmate_tf.rematerialize(build(), batch_size=4096, budget="80%", **QUICK)
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    plan.save(path)
    return plan, path


def test_a_plan_file_is_installed_without_solving(saved: tuple[checkmate_tf.Plan, Path], solves: list[str]) -> None:
    plan, path = saved
    stock, model = build(), build()
    again = checkmate_tf.rematerialize(model, batch_size=4096, plan=path, progress=False)
    assert solves == []
    assert again.schedule == plan.schedule
    assert again.budget_bytes == plan.budget_bytes
    assert again.stock_peak_bytes == plan.stock_peak_bytes
    assert again.measured_peak_bytes is not None
    assert again.difference == plan.difference
    x = np.random.default_rng(0).normal(size=(4096, 64)).astype("float32")
    for one in (stock, model):
        one.fit(x, x[:, :1], batch_size=4096, epochs=2, verbose=0)
    for mine, theirs in zip(model.weights, stock.weights, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)


def test_a_plan_may_be_given_as_it_is_and_trusted(saved: tuple[checkmate_tf.Plan, Path]) -> None:
    plan, _ = saved
    again = checkmate_tf.rematerialize(build(), batch_size=4096, plan=plan, measure=False, progress=False)
    assert again.measured_peak_bytes == plan.measured_peak_bytes


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"optimizer": "sgd"}, r"an optimizer state of .* instead of .* node 18 is sgd\S*/Mul_10, which"),
        ({"width": 32}, "parameters of .* node 0 is"),
        ({"jit_compile": True}, "executor XLA instead of graph executor"),
        ({"batch_size": 2048}, r"batches of float32\[2048, 64\], float32\[2048, 1\] instead of float32\[4096, 64\]"),
    ],
    ids=["optimizer", "model", "executor", "batch"],
)
def test_a_plan_of_another_step_is_refused_with_the_difference(
    saved: tuple[checkmate_tf.Plan, Path], change: dict[str, Any], message: str
) -> None:
    batch_size = change.pop("batch_size", 4096)
    model = build(**change)
    with pytest.raises(PlanError, match=message):
        checkmate_tf.rematerialize(model, batch_size=batch_size, plan=saved[1], progress=False)
    assert find_installed_step(model) is None


def test_a_plan_of_another_step_is_planned_anew_where_that_is_asked_for(
    saved: tuple[checkmate_tf.Plan, Path], solves: list[str]
) -> None:
    options = checkmate_tf.Options(costs="flops", on_mismatch="replan")
    again = checkmate_tf.rematerialize(build("sgd"), batch_size=4096, plan=saved[1], options=options, progress=False)
    assert "measure_stock" in solves
    assert again.budget_bytes == saved[0].budget_bytes
    assert again.peak_bytes <= again.budget_bytes


def test_a_plan_brings_its_own_budget(saved: tuple[checkmate_tf.Plan, Path]) -> None:
    with pytest.raises(BudgetError, match="leave budget out"):
        checkmate_tf.rematerialize(build(), batch_size=4096, plan=saved[1], budget="50%", progress=False)


def test_the_same_step_is_planned_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, solves: list[str]) -> None:
    monkeypatch.setattr(plan_cache, "get_default_folder", lambda: tmp_path)
    first = checkmate_tf.rematerialize(build("sgd"), batch_size=2048, budget="80%", **QUICK)
    assert "solve" in solves
    solves.clear()
    second = checkmate_tf.rematerialize(build("sgd"), batch_size=2048, budget="80%", **QUICK)
    assert solves == []
    assert second.schedule == first.schedule
    assert second.measured_peak_bytes is not None
    for other in ({"batch_size": 1024, "budget": "80%"}, {"batch_size": 2048, "budget": "85%"}):
        checkmate_tf.rematerialize(build("sgd"), **other, **QUICK)
        assert "measure_stock" in solves
        solves.clear()


def test_a_prefetched_batch_more_is_no_other_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, solves: list[str]
) -> None:
    """One more or less is counted from run to run; far more of them come from data of another kind."""
    monkeypatch.setattr(plan_cache, "get_default_folder", lambda: tmp_path)
    x, y = np.zeros((8192, 64), "float32"), np.zeros((8192, 1), "float32")
    batch_bytes = 2048 * 65 * 4
    for prefetched_bytes, is_planned in ((3 * batch_bytes, True), (2 * batch_bytes, False), (9 * batch_bytes, True)):
        solves.clear()
        monkeypatch.setattr(batches, "measure_prefetched_bytes", lambda *_, held=prefetched_bytes, **__: held)
        plan = checkmate_tf.rematerialize(
            build("sgd"), data=(x, y), batch_size=2048, budget="80%", time_limit_s=2, **QUICK
        )
        assert ("solve" in solves) == is_planned
        assert plan.resident.prefetched == prefetched_bytes


class OwnSolver(RetainAll):
    """A solver of the user's own, whose code may change between two runs of a script."""


def test_plans_of_a_solver_that_is_the_users_own_are_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, solves: list[str]
) -> None:
    monkeypatch.setattr(plan_cache, "get_default_folder", lambda: tmp_path)
    options = checkmate_tf.Options(solver=OwnSolver(), costs="flops")
    for _ in range(2):
        solves.clear()
        checkmate_tf.rematerialize(build("sgd"), batch_size=2048, budget="150%", options=options, progress=False)
        assert "solve" in solves
    assert list(tmp_path.iterdir()) == []


def test_a_profile_with_other_costs_is_planned_for_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, solves: list[str]
) -> None:
    monkeypatch.setattr(plan_cache, "get_default_folder", lambda: tmp_path / "plans")
    signatures = [cut.signature for cut in cut_node_fragments(trace_model(build("sgd"), batch_size=2048).extract())]
    profile = tmp_path / "profile.json"
    for cost_ns in (5.0, 7.0):
        entries = [{"signature": signature, "cost_ns": cost_ns} for signature in signatures]
        profile.write_text(json.dumps({"format": "checkmate-profile/1", "profiles": [{"measurements": entries}]}))
        solves.clear()
        options = checkmate_tf.Options(costs=str(profile))
        plan = checkmate_tf.rematerialize(build("sgd"), batch_size=2048, budget="80%", options=options, progress=False)
        assert "solve" in solves
        assert {node.cost for node in plan.graph.nodes} == {int(cost_ns)}


def test_a_kept_plan_that_takes_more_than_it_did_is_planned_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, solves: list[str]
) -> None:
    monkeypatch.setattr(plan_cache, "get_default_folder", lambda: tmp_path)
    checkmate_tf.rematerialize(build("sgd"), batch_size=2048, budget="80%", **QUICK)
    solves.clear()
    monkeypatch.setattr(search, "adopt_plan", _refuse)
    checkmate_tf.rematerialize(build("sgd"), batch_size=2048, budget="80%", **QUICK)
    assert "solve" in solves


def _refuse(*_: Any) -> None:
    raise PlanError("it takes more")


SCRIPT = """
import sys
from pathlib import Path
from checkmate_tf.planning import plan_cache, search
import checkmate_tf
from tests.training.test_plan_files import build
plan_cache.get_default_folder = lambda: Path(sys.argv[1])
solve, solved = search.solve, []
search.solve = lambda *arguments, **options: solved.append("solve") or solve(*arguments, **options)
print("ready", flush=True)
input()
plan = checkmate_tf.rematerialize(build(), batch_size=2048, budget="80%", time_limit_s=2, progress=False)
print("solved" if solved else "found", plan.overhead, plan.measured_peak_bytes <= plan.budget_bytes)
"""


def test_of_two_processes_that_plan_the_same_step_one_solves(tmp_path: Path) -> None:
    """The cache of profiles holds nothing: each node is timed by one process, while the other waits for it.

    Both are new processes. In this one, other tests have divided the allocator's memory, and a plan may take more.
    """
    environment = {
        **os.environ,
        **dict.fromkeys(("HOME", "XDG_CACHE_HOME"), str(tmp_path)),
        "PYTHONWARNINGS": "error::RuntimeWarning",
    }
    with ExitStack() as stack:
        processes = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", WITHOUT_OPTIONAL + SCRIPT, str(tmp_path)],
                    cwd=Path(__file__).resolve().parents[2],
                    env=environment,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for _ in range(2)
        ]
        for process in processes:
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            process.stdin.write("\n")
            process.stdin.flush()
        said = sorted(process.communicate()[0].split() for process in processes)
    assert [process.returncode for process in processes] == [0, 0]
    assert [words[0] for words in said] == ["found", "solved"]
    assert said[0][1:] == [said[1][1], "True"]
    assert list(tmp_path.rglob("*.sqlite")), "another cache was used"


def test_a_job_that_restarts_finds_its_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, solves: list[str]) -> None:
    """Checkpoints have the stock model, which trains on as the planned one would."""
    monkeypatch.setattr(plan_cache, "get_default_folder", lambda: tmp_path / "plans")
    x = np.random.default_rng(0).normal(size=(4096, 64)).astype("float32")

    def train(epochs: int) -> keras.Model:
        model = build()
        checkmate_tf.rematerialize(model, batch_size=2048, budget="80%", **QUICK)
        backup = keras.callbacks.BackupAndRestore(tmp_path / "backup", delete_checkpoint=False)
        checkpoint = keras.callbacks.ModelCheckpoint(tmp_path / "model.keras")
        model.fit(x, x[:, :1], batch_size=2048, epochs=epochs, verbose=0, shuffle=False, callbacks=[backup, checkpoint])
        return model

    train(2)
    solves.clear()
    restarted = train(4)
    assert solves == []
    whole = build()
    whole.fit(x, x[:, :1], batch_size=2048, epochs=4, verbose=0, shuffle=False)
    saved = keras.models.load_model(tmp_path / "model.keras")
    assert find_installed_step(saved) is None
    for mine, other, kept in zip(whole.weights, restarted.weights, saved.weights, strict=True):
        np.testing.assert_allclose(other, mine, rtol=1e-4, atol=1e-6)
        np.testing.assert_array_equal(kept, other)
