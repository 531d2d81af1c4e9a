"""The package as editors and type checkers see it from outside, who do not run it."""

import argparse
import ast
import inspect
import os
import runpy
import subprocess
import sys
from importlib import import_module
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
options = checkmate_tf.Options(solver="moccasin", order="free")
rewritten = checkmate_tf.rewrite_function(None, options=options, time_limit_s=5, measure=False)
assert_type(rewritten, checkmate_tf.RewrittenFunction)
assert_type(plan.measured_peak_bytes, int | None)
checkmate_tf.restore(model)
curve = checkmate_tf.pareto(model, batch_size=64, budgets=["60%", 10**9])
assert_type(curve.points, tuple[checkmate_tf.ParetoPoint, ...])
plan.to_html("plan.html", pareto=curve)
assert_type(checkmate_tf.estimate(model, batch_size=64).peak_bytes, int)
largest = checkmate_tf.max_batch_size(model, axis=checkmate_tf.Axis("batch", multiple_of=8))
assert_type(largest.install(), checkmate_tf.Plan)
found = checkmate_tf.best_batch(model, budget="6GiB", effective_batch_size=256)
assert_type(found.trials, tuple[checkmate_tf.BatchTrial, ...])
graph = load_graph("graph.json")
assert_type(solve(graph, "80%").status, checkmate_tf.Status)
MemoryReport()

checkmate_tf.rematerialise(model)  # type: ignore[attr-defined]
checkmate_tf.rematerialize(model, batch_size="64", budget="60%")  # type: ignore[arg-type]
checkmate_tf.rematerialize(model, batch_size=64, budgets="60%")  # type: ignore[call-arg]
checkmate_tf.Options(order="any")  # type: ignore[arg-type]
checkmate_tf.load_solution("schedule.json")  # type: ignore[call-arg]
solve("graph.json", "80%")  # type: ignore[arg-type]
"""


FRONT = ("rematerialize", "rewrite_function", "estimate", "pareto", "max_batch_size", "best_batch")
ORDER = (
    "model", "concrete_function", "effective_batch_size", "batch_size", "data", "budget", "budgets", "max_overhead",
    "axis", "other_solvers", "time_limit_s", "options", "measure", "progress", "on_infeasible",
    "plan",
)  # fmt: skip


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


def test_functions_take_the_same_arguments_in_the_same_order() -> None:
    defaults: dict[str, set[str]] = {}
    for name in FRONT:
        parameters = inspect.signature(getattr(checkmate_tf, name)).parameters
        assert len(parameters) <= 10, name
        assert list(parameters) == sorted(parameters, key=ORDER.index), name
        first, *others = parameters.values()
        assert first.kind is first.POSITIONAL_OR_KEYWORD
        assert all(each.kind is each.KEYWORD_ONLY for each in others), name
        assert "progress" in parameters, name
        for each in others:
            defaults.setdefault(each.name, set()).add(f"{each.annotation} = {each.default}")
    assert {name: forms for name, forms in defaults.items() if len(forms) > 1} == {}
    solve = inspect.signature(checkmate_tf.solve).parameters
    assert f"{solve['time_limit_s'].annotation} = {solve['time_limit_s'].default}" in defaults["time_limit_s"]
    options = inspect.signature(checkmate_tf.Options).parameters
    assert all(options[name].default == solve[name].default for name in ("solver", "order", "seed"))


def test_subcommands_take_what_the_functions_take() -> None:
    limit = inspect.signature(checkmate_tf.rematerialize).parameters["time_limit_s"].default
    for name in ("solve", "compare", "profile", "plan", "pareto", "max-batch", "best-batch"):
        parser = argparse.ArgumentParser()
        import_module(f"checkmate_tf.commands.{name.replace('-', '_')}").add_arguments(parser)
        actions = {option: action for action in parser._actions for option in action.option_strings}
        assert actions["--time-limit"].default == limit, name
        assert actions["--order"].default == checkmate_tf.Options().order, name
        assert actions["--seed"].default == checkmate_tf.Options().seed, name
        if name in ("plan", "max-batch", "best-batch"):
            assert (actions["--budget"].default, actions["--solver"].default) == ("auto", "auto"), name
        if name in ("plan", "pareto", "max-batch"):
            assert actions["--no-measure"].dest == "measure", name
