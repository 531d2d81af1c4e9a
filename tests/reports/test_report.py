"""Tables of solutions, and the picture of what they trade."""

from dataclasses import replace

import numpy as np
from matplotlib.figure import Figure

from checkmate_tf.measurement.step_run import StepRun
from checkmate_tf.planning.planned_step import Stock
from checkmate_tf.reports.plan import Plan
from checkmate_tf.reports.tables import (
    draw_pareto,
    format_share,
    make_comparison_row,
    tabulate_rows,
    tabulate_solution,
)
from checkmate_tf.solvers import solve
from tests.graphs import training_chain
from tests.plans import make_curve, make_plan

CHAIN = training_chain(3, size=1000)


def test_format_share() -> None:
    assert format_share(0.0426) == "4.26 %"
    assert format_share(None) == "-"


def test_solution_table_has_the_figures() -> None:
    table = tabulate_solution(CHAIN, solve(CHAIN, 4000, solver="exhaustive"), budget_bytes=4000)
    assert "chain-3 (7 nodes)" in table
    assert "4.88 KiB" in table, "5,000 bytes without rematerialization"
    assert "3.91 KiB (80.0%)" in table
    assert "OPTIMAL" in table
    failed = tabulate_solution(CHAIN, solve(CHAIN, 1000, solver="exhaustive"), budget_bytes=1000)
    assert "INFEASIBLE" in failed
    assert "overhead" not in failed


def test_a_plan_states_the_measured_time_beside_the_predicted_one() -> None:
    planned = make_plan(CHAIN, 4000).planned
    assert planned.measured_overhead is None
    for step_s, sentence in ((1.1, "took 10.0% longer than"), (0.9, "took 10.0% less time than")):
        timed = Plan(replace(planned, run=StepRun(4000, step_s), stock=Stock(5000, StepRun(5000, 1.0))))
        assert f"Its step {sentence} the stock step (measured)." in str(timed)
    compiled = Plan(replace(planned, run=StepRun(4000, is_compiled=True), stock=Stock(5000, StepRun(5000, 1.0))))
    assert compiled.measured_overhead is None
    assert "Its step took" not in str(compiled)


def test_rows_table() -> None:
    found = make_comparison_row(CHAIN, solve(CHAIN, "100%", solver="retain_all"), budget="100%")
    missed = make_comparison_row(CHAIN, solve(CHAIN, 4000, solver="retain_all"), budget="4000")
    lines = tabulate_rows([found, missed]).splitlines()
    assert lines[0].split() == ["budget", "solver", "status", "overhead", "overhead", "bound", "peak", "time"]
    assert lines[2].split()[:7] == ["100%", "retain_all", "OPTIMAL", "0.00", "%", "0.00", "%"]
    assert lines[3].split()[:4] == ["4000", "retain_all", "NOT_FOUND", "-"]
    assert tabulate_rows([]) == ""


def test_pareto_curve_has_a_point_a_solution() -> None:
    axes = Figure().subplots()
    solutions = [solve(CHAIN, budget, solver="exhaustive") for budget in (5000, 4000, 1000)]
    draw_pareto(axes, CHAIN, solutions)
    (line,) = axes.get_lines()
    assert solutions[1].simulation is not None
    expected = [[80, 100 * solutions[1].simulation.overhead], [100, 0]]
    np.testing.assert_allclose(np.asarray(line.get_xydata()), expected)


def test_what_is_printed_escapes_what_a_terminal_would_obey() -> None:
    nodes = tuple(replace(node, name=f"{node.name}\x1b[2J") for node in CHAIN.nodes)
    plan = make_plan(replace(CHAIN, nodes=nodes), "80%")
    for text in (str(plan), plan.summary(), str(make_curve("f0\x1b[2J"))):
        assert r"f0\x1b[2J" in text
        assert "\x1b" not in text
