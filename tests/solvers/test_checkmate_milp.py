"""Checkmate's MILP: equal to the oracle within its stage space."""

import sys
import warnings
from dataclasses import replace
from types import SimpleNamespace
from typing import get_args

import cvxpy
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkmate_tf.graph import Graph
from checkmate_tf.simulator import find_peak_bound, simulate_stock
from checkmate_tf.solvers import Problem, Search, Status, get_solver, solve
from checkmate_tf.solvers.checkmate import backends
from checkmate_tf.solvers.checkmate.lp import CheckmateLp
from checkmate_tf.solvers.checkmate.milp import CheckmateMilp
from checkmate_tf.solvers.checkmate.model import build_model
from checkmate_tf.solvers.checkmate.rows import Formulation
from checkmate_tf.solvers.checkmate.settings import SETTINGS
from checkmate_tf.solvers.checkmate.stage_space import full_space
from checkmate_tf.solvers.exhaustive import Exhaustive
from checkmate_tf.solvers.mip.cvxpy import _Problem
from checkmate_tf.solvers.mip.program import CvxpySolver, LinearDuals
from experiments.layer_graphs import committed_graph
from tests.graphs import graphs, published, tight_problem, training_chain, training_graphs
from tests.solvers.checkmate_reference import reference_optimum

NO_BUILDING = replace(SETTINGS, build_share=0.0)
FORMS = {
    "default": CheckmateMilp(),
    "cold": CheckmateMilp(start_from=(), backend="highs"),
    "no presolve": CheckmateMilp(start_from=(), presolve=False, backend="highs"),
    "all rows": CheckmateMilp(lazy_rows=False, backend="highs"),
    "paper": replace(CheckmateMilp.paper(), backend="highs"),
    "paper, all FREE": replace(
        CheckmateMilp.paper(), form=Formulation(tight=False, diagonal_free=True), backend="highs"
    ),
    "cpsat": CheckmateMilp(backend="cpsat", start_from=()),
}


def draw_budget(graph: Graph, data: st.DataObject) -> int:
    peak_bytes = simulate_stock(graph).peak_bytes
    least = find_peak_bound(graph).peak_bytes
    return data.draw(st.integers(max(1, least), max(1, least, peak_bytes)))


@pytest.mark.parametrize("form", FORMS)
def test_equals_the_oracle(form):
    @settings(deadline=None, max_examples=30)
    @given(st.one_of(graphs(max_nodes=8), training_graphs()), st.data())
    def check(graph, data):
        budget = draw_budget(graph, data)
        oracle = solve(graph, budget, solver=Exhaustive(stages=True))
        solution = solve(graph, budget, solver=FORMS[form])
        assert solution.status is oracle.status
        assert solution.schedule is None or solution.simulation.cost == oracle.simulation.cost

    check()


@pytest.mark.parametrize("form", ["default", "cold", "paper"])
def test_equals_the_oracle_where_budgets_are_tight(form):
    for seed in range(16):
        problem = tight_problem(seed)
        oracle = solve(problem.graph, problem.budget_bytes, solver=Exhaustive(stages=True))
        solution = solve(problem.graph, problem.budget_bytes, solver=FORMS[form])
        assert solution.status is oracle.status
        assert solution.schedule is None or solution.simulation.cost == oracle.simulation.cost


def without_inplace(graph: Graph) -> Graph:
    return replace(graph, nodes=tuple(replace(node, inplace=False) for node in graph.nodes))


@settings(deadline=None, max_examples=15)
@given(graphs(max_nodes=5), st.data())
def test_equals_the_reference(graph, data):
    graph = without_inplace(graph)
    budget = draw_budget(graph, data)
    solution = solve(graph, budget, solver=CheckmateMilp(start_from=()))
    assert reference_optimum(graph, budget) == (solution.simulation.cost if solution.simulation else None)


OTHERS = {
    "cpsat": CheckmateMilp(backend="cpsat", start_from=()),
    **{name: CheckmateMilp(backend="cvxpy", cvxpy_solver=name, start_from=()) for name in get_args(CvxpySolver)},
}
COMMERCIAL = ("CPLEX", "XPRESS", "MOSEK", "COPT", "CUOPT")


@pytest.mark.parametrize("name", [name for name in OTHERS if name not in COMMERCIAL])
def test_other_back_ends_equal_highs(name):
    if name not in (*cvxpy.installed_solvers(), "cpsat"):
        pytest.skip(f"CVXPY does not find {name}")

    @settings(deadline=None, max_examples=8)
    @given(graphs(max_nodes=6), st.data())
    def check(graph, data):
        budget = draw_budget(graph, data)
        other = solve(graph, budget, solver=OTHERS[name])
        highs = solve(graph, budget, solver=CheckmateMilp(backend="highs", start_from=()))
        assert other.status is highs.status
        assert (other.simulation and other.simulation.cost) == (highs.simulation and highs.simulation.cost)
        assert "fallback" not in other.stats

    check()


@pytest.mark.gurobi
@settings(deadline=None, max_examples=10)
@given(graphs(max_nodes=6), st.data())
def test_gurobi_equals_highs(graph, data):
    pytest.importorskip("gurobipy")
    budget = draw_budget(graph, data)
    gurobi = solve(graph, budget, solver=CheckmateMilp(backend="gurobi", start_from=()))
    highs = solve(graph, budget, solver=CheckmateMilp(backend="highs", start_from=()))
    assert gurobi.status is highs.status
    assert (gurobi.simulation and gurobi.simulation.cost) == (highs.simulation and highs.simulation.cost)
    assert gurobi.stats.get("backend", "gurobi") in ("gurobi", "none needed")


@pytest.mark.gurobi
def test_gurobi_with_a_size_limited_licence_names_it_and_falls_back():
    gurobipy = pytest.importorskip("gurobipy")
    # 30 layers are 2,600 columns; a full licence solves it, a limited one says so and HiGHS does.
    graph = training_chain(30)
    solver = CheckmateMilp(backend="gurobi", presolve=False, lazy_rows=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of a limited licence
        solution = solve(graph, "97%", solver=solver, time_limit_s=20)
    assert solution.schedule is not None
    if solution.stats["backend"] == "highs":
        assert "licence" in solution.stats["fallback"]
        assert "2000 columns" in solution.stats["fallback"] or "cannot run" in solution.stats["fallback"]
    else:
        assert gurobipy.gurobi.version()


def test_an_uninstalled_back_end_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "gurobipy", None)
    with pytest.warns(RuntimeWarning, match="HiGHS solves the program instead of gurobi: .* pip install"):
        solution = solve(training_chain(4), 5, solver=CheckmateMilp(backend="gurobi"))
    assert solution.status is Status.OPTIMAL
    assert "pip install" in solution.stats["fallback"]


def refusing_gurobi(errno: int, message: str) -> SimpleNamespace:
    """In place of gurobipy: nothing runs for this reason."""

    class GurobiError(Exception):
        def __init__(self) -> None:
            super().__init__(message)
            self.errno = errno

    def refuse(**_):
        raise GurobiError

    grb = SimpleNamespace(Error=SimpleNamespace(SIZE_LIMIT_EXCEEDED=10010))
    return SimpleNamespace(GurobiError=GurobiError, GRB=grb, Env=refuse)


@pytest.mark.parametrize("solver", [CheckmateMilp, CheckmateLp])
@pytest.mark.parametrize("backend", ["gurobi", "auto"])
def test_a_refused_licence_is_named(monkeypatch, backend, solver):
    monkeypatch.setitem(sys.modules, "gurobipy", refusing_gurobi(10009, "No Gurobi license found"))
    with pytest.warns(RuntimeWarning, match="HiGHS .* instead of gurobi: .*No Gurobi license found; check its licence"):
        solution = solve(training_chain(4), 5, solver=solver(backend=backend))
    assert solution.schedule is not None
    assert solution.stats["backend"] == "highs"


@pytest.mark.parametrize("solver", [CheckmateMilp, CheckmateLp])
def test_a_licence_that_is_too_small_is_named_where_gurobi_was_asked_for(monkeypatch, solver):
    monkeypatch.setitem(sys.modules, "gurobipy", refusing_gurobi(10010, "Model too large"))
    with pytest.warns(RuntimeWarning, match="HiGHS .* instead of gurobi: .*allows 2000 columns"):
        named = solve(training_chain(4), 5, solver=solver(backend="gurobi"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        chosen = solve(training_chain(4), 5, solver=solver())
    assert named.stats["fallback"] == chosen.stats["fallback"]
    assert chosen.schedule is not None
    assert named.schedule == chosen.schedule


@pytest.mark.gurobi
@pytest.mark.parametrize("solver", [CheckmateMilp, CheckmateLp])
def test_gurobi_is_chosen_where_it_runs(solver):
    pytest.importorskip("gurobipy")
    assert solve(training_chain(4), 5, solver=solver()).stats["backend"] == "gurobi"


@pytest.mark.gurobi
def test_gurobi_tells_of_improvements():
    pytest.importorskip("gurobipy")
    graph, seen = training_chain(6), []
    found = solve(graph, 6, solver=CheckmateMilp(backend="gurobi", start_from=()), on_progress=seen.append)
    assert found.simulation.cost in [update.cost for update in seen]
    assert all(update.cost_lower_bound <= found.simulation.cost for update in seen)


def test_a_solver_that_cvxpy_does_not_find_is_named(monkeypatch):
    monkeypatch.setattr(cvxpy, "installed_solvers", lambda: ["SCIPY"])
    with pytest.warns(RuntimeWarning, match="instead of cvxpy: CVXPY does not find MOSEK: install it, or .* of SCIPY"):
        solution = solve(training_chain(4), 5, solver=OTHERS["MOSEK"])
    assert solution.status is Status.OPTIMAL


def test_a_point_that_breaks_the_program_is_dropped(monkeypatch):
    model = build_model(training_chain(4), 5, full_space(training_chain(4)))
    found = backends.solve_milp(model, "cvxpy", time_limit_s=20)
    assert found.optimal
    monkeypatch.setattr(_Problem, "solve", lambda *_: LinearDuals(found.x * 0, np.zeros(0), optimal=True))
    broken = backends.solve_milp(model, "cvxpy", time_limit_s=20)
    assert broken.x is None
    assert not broken.optimal
    assert broken.bound == -np.inf


def test_warm_start_is_kept_when_nothing_better_is_found_in_time():
    graph = training_chain(8)
    start = solve(graph, 7, solver="linearized_sqrt").schedule
    assert start is not None
    solution = solve(graph, 7, solver=CheckmateMilp(warm_start=start, start_from=()), time_limit_s=0.0)
    assert solution.schedule == start


def test_bytes_and_costs_of_very_different_magnitude():
    # The chain of the exhaustive test, 2 + 1 repeats, with values of 2**40 bytes and costs of 10**12.
    graph = training_chain(4, size=2**40, cost=10**12)
    solution = solve(graph, 4 * 2**40, solver="checkmate_milp")
    assert solution.status is Status.OPTIMAL
    assert solution.simulation.cost == 12 * 10**12
    below = solve(graph, 4 * 2**40 - 1, solver="checkmate_milp")
    assert below.status is Status.INFEASIBLE  # any node of a gradient takes as much


def test_fcn8_is_proved_at_90_and_80_percent():
    graph = published("fcn8-b32-train")
    # MOCCASIN, Table 2: overheads 0.0 and 0.1 % for Checkmate.
    for budget, percent in (("90%", 0.0), ("80%", 0.1)):
        solution = solve(graph, budget, solver="checkmate_milp")
        assert solution.status is Status.OPTIMAL
        assert round(100 * solution.simulation.overhead, 1) == percent


def test_model_is_built_without_python_objects_for_rows():
    graph = committed_graph("resnet50")
    model = build_model(graph, simulate_stock(graph).peak_bytes // 2, full_space(graph))
    assert len(model.cost) > 100_000
    assert model.matrix.nnz < 10 * model.matrix.shape[0]


def test_the_papers_program_has_the_papers_variables():
    # 5 nodes, 7 edges. In stages 0 to 4: 0 to 4 of R below the diagonal, as many of S, 1 to 5 of U, and FREE of the
    # 0, 1, 2, 5 and 7 edges into nodes that can run there.
    graph = training_chain(2)
    model = build_model(graph, 4, full_space(graph), form=CheckmateMilp.paper().form)
    assert model.integer.sum() == 10 + 10 + 15
    assert model.num_usage == 15
    solution = solve(training_chain(4), 5, solver=CheckmateMilp.paper())
    assert solution.stats["rounds"] == 1
    assert solution.stats["columns"] == 36 + 36 + 45 + sum((0, 1, 2, 3, 4, 7, 10, 13, 15))


def test_a_program_that_is_not_built_in_time_is_given_up():
    graph = training_chain(40)
    with pytest.raises(TimeoutError, match="only 0 of 81 stages were built early enough"):
        build_model(graph, 20, full_space(graph), deadline_s=0.0)
    late = Search(Problem(graph, 20, "fixed"), time_limit_s=0.0)
    gave_up = {"gave_up": "only 0 of 81 stages were prepared within the time limit"}
    assert get_solver("checkmate_milp").search(late).stats == gave_up
    assert get_solver("checkmate_lp").search(late).stats == {"relaxations": 0}


@pytest.mark.parametrize("solver", ["checkmate_milp", "checkmate_lp"])
def test_no_library_gets_a_program_that_it_could_not_read_in_time(monkeypatch, solver):
    """HiGHS reads and presolves without a look at the clock, in some multiple of the time that building takes."""
    monkeypatch.setattr(f"checkmate_tf.solvers.checkmate.{'milp' if 'milp' in solver else 'lp'}.SETTINGS", NO_BUILDING)
    monkeypatch.setattr(backends, "solve_milp", None)
    monkeypatch.setattr(backends, "relax", None)
    gave_up = solve(training_chain(12), "60%", solver=solver).stats["gave_up"]
    assert gave_up == "only 0 of 25 stages were built early enough for a library to solve the program"


def test_highs_completes_no_schedule_where_there_is_little_time(monkeypatch):
    starts = []

    def note(model, _backend, *, start, **_):
        starts.append(start is not None)
        return backends.Answer(None, 0.0)

    monkeypatch.setattr(backends, "solve_milp", note)
    for share in (SETTINGS.hint_share, 0.0):
        monkeypatch.setattr("checkmate_tf.solvers.checkmate.milp.SETTINGS", replace(SETTINGS, hint_share=share))
        solve(training_chain(12), "60%", solver="checkmate_milp")
    assert starts == [True, False]


def test_cpsat_builds_no_model_beyond_its_time_limit():
    model = build_model(training_chain(9), 8, full_space(training_chain(9)))
    answer = backends.solve_milp(model, "cpsat", time_limit_s=0.0)
    assert (answer.x, answer.bound) == (None, model.fixed_cost)
    assert answer.stats["model_status"] == "the model was not built in time"
