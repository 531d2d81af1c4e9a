"""Tables, and what the pictures show: the drawn figures against the schedule's."""

from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from checkmate_tf.errors import CheckmateError
from checkmate_tf.reports.tables import (
    draw_memory,
    draw_pareto,
    draw_recomputation,
    format_share,
    make_comparison_row,
    save_schedule_picture,
    tabulate_rows,
    tabulate_solution,
)
from checkmate_tf.schedule import Schedule
from checkmate_tf.simulator import simulate
from checkmate_tf.solvers import solve
from tests.graphs import graph_of, training_chain

CHAIN = training_chain(3, size=1000)
SKIP = graph_of({"a": "", "b": "a", "c": "b", "d": "ac"}, sizes=dict.fromkeys("abcd", 2**20))


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


def test_rows_table() -> None:
    found = make_comparison_row(CHAIN, solve(CHAIN, "100%", solver="retain_all"), budget="100%")
    missed = make_comparison_row(CHAIN, solve(CHAIN, 4000, solver="retain_all"), budget="4000")
    lines = tabulate_rows([found, missed]).splitlines()
    assert lines[0].split() == ["budget", "solver", "status", "overhead", "at", "least", "peak", "time"]
    assert lines[2].split()[:7] == ["100%", "retain_all", "OPTIMAL", "0.00", "%", "0.00", "%"]
    assert lines[3].split()[:4] == ["4000", "retain_all", "NOT_FOUND", "-"]
    assert tabulate_rows([]) == ""


def test_recomputation_marks_are_the_r_matrix() -> None:
    axes = Figure().subplots()
    draw_recomputation(axes, SKIP, Schedule((0, 1, 2, 0, 3)))
    first, again = axes.get_lines()
    assert np.asarray(first.get_xydata()).tolist() == [[0, 0], [1, 1], [2, 2], [3, 3]]
    assert np.asarray(again.get_xydata()).tolist() == [[0, 3]], "a is computed again in the stage of d"


def test_recomputation_in_free_order_counts_by_first_computation() -> None:
    graph = graph_of({"a": "", "b": "", "c": "ab"})
    axes = Figure().subplots()
    draw_recomputation(axes, graph, Schedule((1, 0, 1, 2)))
    assert np.asarray(axes.get_lines()[1].get_xydata()).tolist() == [[0, 2]]


def test_memory_timeline_is_the_simulation() -> None:
    axes = Figure().subplots()
    schedule = Schedule((0, 1, 2, 0, 3))
    draw_memory(axes, SKIP, {"schedule": schedule}, budget_bytes=3 * 2**20)
    (steps,) = axes.patches
    data = steps.get_data()  # type: ignore[attr-defined]
    np.testing.assert_allclose(data.values, simulate(SKIP, schedule).memory_bytes / 2**20)
    np.testing.assert_allclose(data.edges, [0, 0.25, 0.5, 0.75, 1, 1.25])
    assert list(axes.get_lines()[0].get_ydata()) == [3.0, 3.0]


def test_pareto_curve_has_a_point_a_solution() -> None:
    axes = Figure().subplots()
    solutions = [solve(CHAIN, budget, solver="exhaustive") for budget in (5000, 4000, 1000)]
    draw_pareto(axes, CHAIN, solutions)
    (line,) = axes.get_lines()
    assert solutions[1].simulation is not None
    expected = [[80, 100 * solutions[1].simulation.overhead], [100, 0]]
    np.testing.assert_allclose(np.asarray(line.get_xydata()), expected)


def test_unknown_picture_format(tmp_path: Path) -> None:
    with pytest.raises(CheckmateError, match="cannot write the picture"):
        save_schedule_picture(SKIP, Schedule((0, 1, 2, 3)), tmp_path / "picture.docx")
