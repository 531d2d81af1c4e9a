"""The package as editors and type checkers see it from outside, who do not run it."""

import ast
import os
import runpy
import subprocess
import sys
from pathlib import Path

import checkmate_tf

ROOT = Path(__file__).resolve().parents[1]
# A line that is to be refused says as what; mypy reports those that are not.
SCRIPT = """
from typing import assert_type

import keras

import checkmate_tf
from checkmate_tf import MemoryReport, load_graph, solve

model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
try:
    plan = checkmate_tf.rematerialize(model, batch_size=64, budget="60%")
except checkmate_tf.InfeasibleBudgetError as error:
    assert_type(error.least_budget_bytes, int | None)
    raise
assert_type(plan, checkmate_tf.Plan)
assert_type(plan.measured_peak_bytes, int | None)
checkmate_tf.restore(model)
curve = checkmate_tf.pareto(model, batch_size=64, budgets=["60%", 10**9])
assert_type(curve.points, tuple[checkmate_tf.ParetoPoint, ...])
plan.to_html("plan.html", pareto=curve)
assert_type(checkmate_tf.estimate(model, batch_size=64).peak_bytes, int)
assert_type(checkmate_tf.max_batch_size(model, budget="6GiB").install(), checkmate_tf.Plan)
found = checkmate_tf.best_batch(model, budget="6GiB", effective_batch_size=256)
assert_type(found.trials, tuple[checkmate_tf.BatchTrial, ...])
graph = load_graph("graph.json")
assert_type(solve(graph, "80%").status, checkmate_tf.Status)
MemoryReport()

checkmate_tf.rematerialise(model)  # type: ignore[attr-defined]
checkmate_tf.rematerialize(model, batch_size="64", budget="60%")  # type: ignore[arg-type]
checkmate_tf.rematerialize(model, batch_size=64, budgets="60%")  # type: ignore[call-arg]
solve("graph.json", "80%")  # type: ignore[arg-type]
"""


def run_mypy(script: str, folder: Path) -> str:
    """Returns what mypy says of a script beside the installed package, with the strictest settings of its user."""
    runpy.run_path(str(ROOT / ".ci" / "typecheck.py"))["lay_out_package"](folder)
    (folder / "script.py").write_text(script, encoding="utf-8")
    # Without the packages of others, which are slow to read: their types are not what is tested.
    options = ("--strict", "--no-site-packages", "--ignore-missing-imports", "--follow-imports=silent")
    result = subprocess.run(
        [sys.executable, "-m", "mypy", *options, "--config-file=", f"--cache-dir={os.devnull}", "script.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    return result.stdout + result.stderr


def test_a_script_is_checked_from_outside(tmp_path: Path) -> None:
    assert run_mypy(SCRIPT, tmp_path).startswith("Success")


def test_every_public_name_has_a_type(tmp_path: Path) -> None:
    lines = [f"reveal_type(checkmate_tf.{name})" for name in checkmate_tf.__all__]
    revealed = run_mypy("\n".join(["import checkmate_tf", *lines, ""]), tmp_path)
    assert "Success" in revealed
    assert revealed.count("Revealed type is") == len(checkmate_tf.__all__)
    assert 'is "Any"' not in revealed


def test_type_checkers_see_the_names_that_there_are() -> None:
    tree = ast.parse((ROOT / "checkmate_tf" / "__init__.py").read_text(encoding="utf-8"))
    imported = [
        (item.module.removeprefix("checkmate_tf."), alias)
        for item in ast.walk(tree)
        if isinstance(item, ast.ImportFrom) and item.module is not None and item.module.startswith("checkmate_tf.")
        for alias in item.names
    ]
    assert {alias.name: home for home, alias in imported} == checkmate_tf._HOME
    assert all(alias.asname == alias.name for _, alias in imported), "without `as` a name is not public"
