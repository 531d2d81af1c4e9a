"""Random problems for a random solver: what it finds is simulated here, and its proofs are tried on small graphs."""

import random

from checkmate_tf.serialization import graph_from_json
from checkmate_tf.solvers import SOLVER_NAMES, solve
from checkmate_tf.solvers.base import Solver
from checkmate_tf.solvers.portfolio.auto import Auto
from tests.fuzz.problems import random_graph
from tests.fuzz.reference import find_least_cost, find_peak_bound_bytes, keeps_input_order, simulate

_TIME_LIMIT_S = 2.0
_SMALL_NODES = 6  # of graphs whose least cost is found here too


def check_solver(seed: int) -> str:
    """Raises AssertionError where a schedule is not what the solver says of it, or a proof is wrong."""
    lot = random.Random(seed)
    data = random_graph(lot, max_nodes=lot.choice((_SMALL_NODES, _SMALL_NODES, 12, 40)))
    plain = list(range(len(data["nodes"])))
    peak_bytes = simulate(data, plain).peak_bytes
    least_bytes = min(find_peak_bound_bytes(data), peak_bytes)
    share = lot.choice((0.0, lot.random(), lot.random(), lot.random() ** 2, lot.uniform(-0.1, 0.0), 1.0))
    budget_bytes = max(1, least_bytes + int(share * (peak_bytes - least_bytes if share > 0 else least_bytes)))
    order = lot.choice(("fixed", "free"))
    name = lot.choice((*SOLVER_NAMES, "auto", "block_relaxation"))
    solver: str | Solver = Auto(workers=0) if name == "auto" and lot.random() < 0.9 else name
    limit_s = lot.choice((_TIME_LIMIT_S, _TIME_LIMIT_S, 0.01))
    graph = graph_from_json(data)
    found = solve(graph, budget_bytes, solver=solver, order=order, time_limit_s=limit_s, seed=seed)
    what = f"{name}, {order}, budget {budget_bytes}: {found.status}"
    cost = None
    if found.schedule is not None and found.simulation is not None:
        cost = found.simulation.cost
        positions = list(found.schedule.order)
        figures = simulate(data, positions)
        assert figures == (found.simulation.peak_bytes, cost), f"{what}: {figures} by the reference"
        assert figures.peak_bytes <= budget_bytes, f"{what}: the schedule is above the budget"
        assert order == "free" or keeps_input_order(positions), f"{what}: the schedule is not in the input order"
    assert budget_bytes >= least_bytes or found.status == "INFEASIBLE", f"{what}: one node needs {least_bytes}"
    if peak_bytes <= budget_bytes and (name != "exhaustive" or len(plain) <= _SMALL_NODES):
        assert cost == sum(node["cost"] for node in data["nodes"]), f"{what}: the input order fits"
    if len(plain) <= _SMALL_NODES:
        _check_proofs(data, budget_bytes, order, cost, found.status, found.cost_lower_bound, found.bound_order, what)
    return f"{name} {found.status}"


def _check_proofs(
    data: dict, budget_bytes: int, order: str, cost: int | None, status: str, bound: int, bound_order: str, what: str
) -> None:
    least = find_least_cost(data, budget_bytes, fixed=order == "fixed")
    if least == "unknown":
        return
    assert cost is None or (least is not None and cost >= least), f"{what}: cost {cost}, where {least} is the least"
    assert status != "INFEASIBLE" or least is None, f"{what}: a schedule of cost {least} exists"
    # Bounds in fixed order are about Checkmate's stages, in which the least can be more.
    if bound_order == "free" and least is not None:
        assert bound <= least, f"{what}: bound {bound}, where {least} is the least"
        assert status != "OPTIMAL" or cost == least, f"{what}: cost {cost}, where {least} is the least"
