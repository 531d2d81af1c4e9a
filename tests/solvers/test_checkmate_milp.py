"""Checkmate's MILP: equal to the oracle within its stage space."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkmate_tf.graph import Graph
from checkmate_tf.simulator import least_step, retain_all_schedule, simulate
from checkmate_tf.solvers import solve
from checkmate_tf.solvers.checkmate_milp import CheckmateMilp
from checkmate_tf.solvers.exhaustive import Exhaustive
from tests.graphs import graphs

FORMS = {
    "default": CheckmateMilp(),
    "cold": CheckmateMilp(start_from=()),
    "no presolve": CheckmateMilp(start_from=(), presolve=False),
}


def draw_budget(graph: Graph, data: st.DataObject) -> int:
    peak_bytes = simulate(graph, retain_all_schedule(graph)).peak_bytes
    least = least_step(graph).peak_bytes
    return data.draw(st.integers(max(1, least), max(1, least, peak_bytes)))


@pytest.mark.parametrize("form", FORMS)
def test_equals_the_oracle(form):
    @settings(deadline=None, max_examples=40)
    @given(graphs(max_nodes=8), st.data())
    def check(graph, data):
        budget = draw_budget(graph, data)
        oracle = solve(graph, budget, solver=Exhaustive(stages=True))
        solution = solve(graph, budget, solver=FORMS[form])
        assert solution.status is oracle.status
        assert solution.schedule is None or solution.simulation.cost == oracle.simulation.cost

    check()
