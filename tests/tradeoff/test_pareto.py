"""pareto: its points against planning and single solves, refused budgets, interrupts, and the model left alone."""

import json
import re
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest

import checkmate_tf
from checkmate_tf import cli
from checkmate_tf.errors import BudgetError, SearchInterrupt, SolverError
from checkmate_tf.graph import Graph
from checkmate_tf.measurement.step_run import StepRun
from checkmate_tf.origins import guess_origins
from checkmate_tf.planning.options import Request
from checkmate_tf.reports.budget_curve import Pareto, ParetoPoint
from checkmate_tf.schedule import Schedule
from checkmate_tf.simulator import simulate, simulate_stock
from checkmate_tf.solvers import Scheduled, Solution, solve
from checkmate_tf.tradeoff import sweep
from checkmate_tf.training.installed_step import find_installed_step
from tests.graphs import training_chain
from tests.plans import make_curve
from tests.training_steps import conv_chain

ROWS = 16
QUICK: dict[str, Any] = {
    "batch_size": ROWS,
    "options": checkmate_tf.Options(costs="flops"),
    "time_limit_s": 5,
    "progress": False,
}


@pytest.fixture(scope="module")
def model() -> keras.Model:
    model = conv_chain(num_layers=4, size=32)
    model.compile("adam", "sparse_categorical_crossentropy", jit_compile=False)
    return model


def test_measured_points_keep_to_their_budgets_and_the_model_stays_as_it_was(
    model: keras.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "_NUM_BUDGETS", 4)
    model.fit(np.ones((ROWS, 32, 32, 3)), np.zeros(ROWS), verbose=0)
    state = [*model.variables, *model.optimizer.variables]
    before = [np.asarray(variable) for variable in state]
    sweeps: list[sweep.Sweep] = []
    time_stock = sweep.Sweep.time_stock
    monkeypatch.setattr(
        sweep.Sweep, "time_stock", lambda one, solution: [sweeps.append(one), time_stock(one, solution)]
    )
    curve = checkmate_tf.pareto(model, **QUICK)
    beside_s = sweeps[0].stock_s.values()
    assert len(beside_s) > 1
    assert find_installed_step(model) is None
    assert all(np.array_equal(old, np.asarray(new)) for old, new in zip(before, state, strict=True))
    budgets = [point.budget_bytes for point in curve.points]
    assert len(budgets) == 4
    assert budgets == sorted(budgets, reverse=True)
    assert (budgets[0], budgets[-1]) == (curve.stock_peak_bytes, curve.least_budget_bytes)
    assert curve.lower_bound_bytes <= curve.least_budget_bytes < curve.stock_peak_bytes
    for point in curve.points:
        assert point.is_met
        assert max(point.measured_peak_bytes, 0) <= point.budget_bytes
        assert point.step_s > 0
        assert any(point.measured_overhead == pytest.approx(point.step_s / one_s - 1) for one_s in beside_s)
        assert point.least_overhead <= point.overhead + 1e-9
    overheads = [point.overhead for point in curve.points]
    assert (overheads[0], curve.points[0].measured_overhead) == (0, 0)
    assert overheads == sorted(overheads)
    found = {point.predicted_peak_bytes for point in curve.points}
    assert len(found) <= curve.num_solves


def test_predicted_points_are_those_of_single_plans_and_other_solvers_stand_beside(model: keras.Model) -> None:
    budgets = ["100%", "90%", "80%", "1%"]
    curve = checkmate_tf.pareto(model, budgets=budgets, other_solvers=["retain_all"], measure=False, **QUICK)
    mine, other = curve.points[:4], curve.points[4:]
    for point, budget in zip(mine[:3], budgets, strict=False):
        plan = checkmate_tf.rematerialize(model, budget=budget, measure=False, **QUICK)
        checkmate_tf.restore(model)
        assert point.is_met
        assert point.budget_bytes == plan.budget_bytes
        assert point.overhead == pytest.approx(plan.overhead, abs=0.01)  # the tolerance of planning
        assert point.predicted_peak_bytes <= point.budget_bytes
        assert (point.step_s, point.measured_peak_bytes, point.measured_overhead) == (None, None, None)
        assert point.overhead == 0 if budget == "100%" else point.overhead > 0
    assert [point.is_met for point in mine] == [True, True, True, False]
    assert (mine[3].status, mine[3].overhead) == ("INFEASIBLE", None)
    assert [(point.solver, point.is_met) for point in other] == [("retain_all", point is other[0]) for point in other]
    assert "refused: proved" in str(curve)


def test_a_bound_of_more_memory_holds_for_less() -> None:
    graph = replace(training_chain(6, size=100), cost_unit="ns")
    peak_bytes = simulate_stock(graph).peak_bytes
    budgets = [peak_bytes, peak_bytes * 3 // 4]
    high, low = (solve(graph, budget, solver="auto", time_limit_s=5) for budget in budgets)
    assert low.scheduled.simulation.peak_bytes < high.scheduled.simulation.peak_bytes
    request = Request("100%", measure=False)
    step = SimpleNamespace(graph=graph, origins=guess_origins(graph))
    swept = sweep.Sweep(step, request, SimpleNamespace(peak_bytes=peak_bytes, run=None), None)
    cost, bound = graph.baseline_cost, graph.baseline_cost + 1
    swept.solutions = {
        budgets[0]: replace(high, cost_lower_bound=cost),
        budgets[1]: replace(low, cost_lower_bound=bound),
    }
    assert [point.least_overhead for point in swept.list_points()] == pytest.approx([0, 1 / cost])
    swept.solutions = {
        budgets[0]: replace(high, cost_lower_bound=bound),
        budgets[1]: replace(low, cost_lower_bound=cost),
    }
    assert [point.least_overhead for point in swept.list_points()] == pytest.approx([1 / cost, 1 / cost])


def test_a_schedule_without_recomputation_runs_where_the_stock_step_takes_too_much() -> None:
    """XLA holds more for a stock step than for one that is written to keep to the order of a schedule."""
    graph = replace(training_chain(6, size=100), cost_unit="ns")
    peak_bytes = simulate_stock(graph).peak_bytes
    step = SimpleNamespace(
        graph=graph,
        origins=guess_origins(graph),
        stock="stock",
        orderings=("chain",),
        emit=lambda schedule, ordering: "emitted",
        measure=lambda function, predicted_bytes, budget_bytes=None: StepRun(peak_bytes),
    )
    stock = SimpleNamespace(peak_bytes=2 * peak_bytes, predicted_bytes=peak_bytes, run=StepRun(2 * peak_bytes))
    bar = SimpleNamespace(begin_stage=lambda *args: None, set_fraction=lambda *args: None)
    swept = sweep.Sweep(step, Request("100%"), stock, bar)
    retained = solve(graph, peak_bytes, solver="retain_all")
    swept.solutions = dict.fromkeys([2 * peak_bytes, peak_bytes], retained)
    swept.measure()
    assert [attempt.function for attempt in swept.attempts] == ["stock", "emitted"]


def test_bad_input_is_refused(model: keras.Model) -> None:
    with pytest.raises(SolverError, match="'moccasin', pass that in other_solvers"):
        checkmate_tf.pareto(model, batch_size=ROWS, options=checkmate_tf.Options(solver="moccasin"))
    with pytest.raises(SolverError):
        checkmate_tf.pareto(model, other_solvers=["nothing"], **QUICK)
    with pytest.raises(BudgetError):
        checkmate_tf.pareto(model, budgets=["60 parsecs"], measure=False, **QUICK)


def test_an_interrupt_gives_what_was_found(model: keras.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    before = [np.asarray(variable) for variable in model.variables]

    def interrupt(*given: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(sweep.Sweep, "measure_schedule", interrupt)
        with pytest.raises(SearchInterrupt, match="with 3 budgets solved") as stopped:
            checkmate_tf.pareto(model, budgets=["100%", "90%", "80%"], **QUICK)
    found = stopped.value.found
    assert [point.is_met for point in found.points] == [True, True, True]
    assert found.points[0].step_s is not None
    # Lower budgets may have the schedule of least memory, which runs before all others.
    assert len({point.predicted_peak_bytes for point in found.points if point.step_s is not None}) <= 2
    monkeypatch.setattr(sweep, "minimum_memory", interrupt)
    with pytest.raises(SearchInterrupt, match="before any budget was solved") as stopped:
        checkmate_tf.pareto(model, **QUICK)
    assert stopped.value.found is None
    assert find_installed_step(model) is None
    assert all(np.array_equal(old, np.asarray(new)) for old, new in zip(before, model.variables, strict=True))


def test_the_knee_is_where_the_curve_bends() -> None:
    assert make_curve().knee.budget_bytes == 60
    points = [ParetoPoint(size, "auto", "OPTIMAL", True, size, 1 - size / 100, 0.0) for size in (100, 75, 50)]
    assert Pareto("line", "CPU:0", tuple(points), 100, None, 50, 50, 3, 0, 1.0).knee is None


def test_page_and_picture_show_every_point_and_escape_names(tmp_path: Path) -> None:
    curve = make_curve()
    curve.to_html(tmp_path / "curve.html")
    page = (tmp_path / "curve.html").read_text(encoding="utf-8")
    assert "<b>" not in page
    assert "&lt;b&gt;net" in page
    assert page.count("<title>") == 1 + 4 + 4 + 1  # of the page, predicted, measured, refused
    assert "//" not in page
    assert [f">{size}<" in page for size in (20, 40, 60, 80, 100)] == [True] * 5, "the axis is in bytes"
    curve.plot().savefig(tmp_path / "curve.png")
    figure = curve.plot()
    assert figure.axes[0].get_xlabel() == "budget (bytes)"
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    for words in ("predicted", "measured", "lower bound", "refused", "knee", "least budget"):
        assert any(words in label for label in labels), words


def test_steps_that_ran_faster_than_the_stock_step_are_drawn_below_it(tmp_path: Path) -> None:
    curve = make_curve()
    first, second, *rest = curve.points
    replace(curve, points=(first, replace(second, measured_overhead=-0.3), *rest)).to_html(tmp_path / "curve.html")
    page = (tmp_path / "curve.html").read_text(encoding="utf-8")
    found = re.findall(r'cy="([\d.]+)"[^>]*aria-label="\d+ B: (\S+)% measured', page)
    heights = {float(overhead): float(y) for y, overhead in found}
    # 50 % more is above nothing more by 5 / 3 of what 30 % less is below.
    assert heights[-30] > heights[0] > heights[50]
    assert heights[0] - heights[50] == pytest.approx(5 / 3 * (heights[-30] - heights[0]), abs=0.2)


def test_columns_of_which_nothing_is_known_are_left_out() -> None:
    curve = make_curve()
    assert "measured peak" in str(curve)
    points = tuple(replace(one, measured_peak_bytes=None, step_s=None, measured_overhead=None) for one in curve.points)
    text = str(replace(curve, points=points))
    assert "measured" not in text
    assert "overhead" in text


def test_command(model: keras.Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, page = str(tmp_path / "chain.keras"), tmp_path / "curve.html"
    model.save(path)
    options = ["--batch-size", str(ROWS), "--budgets", "100%", "80%", "--no-measure", "--costs", "flops"]
    assert cli.main(["pareto", path, *options, "--json", "--html", str(page)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [set(point) for point in found["points"]] == [set(asdict(make_curve().points[0]))] * 2
    assert found["knee_budget_bytes"] is None
    assert page.exists()


def test_points_are_of_schedules_as_they_run(model: keras.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorFlow computes nothing that nothing reads, so that a schedule which does costs less than a solver says."""
    solve_budgets = sweep.solve_budgets

    def waste(graph: Graph, *args: Any, **kwargs: Any) -> list[Solution]:
        unread = next(i for i, node in enumerate(graph.nodes) if node.recomputable and node.cost)
        schedules = [
            (one, Schedule((*one.scheduled.schedule.order, unread))) for one in solve_budgets(graph, *args, **kwargs)
        ]
        return [replace(one, best=Scheduled(schedule, simulate(graph, schedule))) for one, schedule in schedules]

    monkeypatch.setattr(sweep, "solve_budgets", waste)
    curve = checkmate_tf.pareto(model, budgets=["100%"], measure=False, **QUICK)
    assert [point.overhead for point in curve.points] == [0.0]
