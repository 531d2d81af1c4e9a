"""Every solver still finds the very schedules that it found before.

A change that only moves code around leaves all of them as they are; one that is meant to change what a solver finds
records them anew:

    python -m tests.solvers.test_digests

Limits are by moves, mutations and neighbourhoods, never by time, so that neither the machine's load nor its processor
matters. The versions of the solvers' libraries do: with others the test skips.
"""

import hashlib
import json
from importlib.metadata import version
from pathlib import Path

import pytest

from checkmate_tf.graph import Graph
from checkmate_tf.schedule import Order
from checkmate_tf.solvers import SOLVER_NAMES, Solution, Solver, get_solver, solve
from checkmate_tf.solvers.annealing.solver import StageAnnealing
from checkmate_tf.solvers.checkmate.lp import CheckmateLp
from checkmate_tf.solvers.checkmate.milp import CheckmateMilp
from checkmate_tf.solvers.fastsa.solver import Annealing, Fastsa
from checkmate_tf.solvers.moccasin.solver import Moccasin
from checkmate_tf.solvers.portfolio.auto import Auto
from experiments.layer_graphs import committed_graph
from experiments.layered_graphs import layered_graph
from tests.graphs import training_chain

RECORDED = Path(__file__).with_name("digests.json")
LIBRARIES = ("highspy", "ortools", "numba", "numpy")
TIME_LIMIT_S = 600.0
SEED = 7
ORDERS: tuple[Order, ...] = ("fixed", "free")

# name -> (graph, budget)
GRAPHS: dict[str, tuple[Graph, int | str]] = {
    "chain_8": (training_chain(8, size=1000), 6000),
    "vgg16": (committed_graph("vgg16"), "80%"),
    "unet": (committed_graph("unet"), "70%"),
    "mobilenet": (committed_graph("mobilenet"), "60%"),
    "layered_60": (layered_graph(60, seed=1), "85%"),
}
# Where a solver would take minutes on the others.
ONLY = {"exhaustive": ("chain_8",), "moccasin": ("chain_8", "vgg16", "unet", "layered_60")}
# Those that need limits of their own, or a back end that needs no licence.
CHOSEN: dict[str, Solver] = {
    "auto": Auto(deterministic=True),
    "checkmate_milp": CheckmateMilp(backend="highs"),
    "checkmate_lp": CheckmateLp(backend="simplex"),
    "stage_annealing": StageAnnealing(moves_per_node=200),
    "fastsa": Fastsa(Annealing(iterations=100_000)),
    "moccasin": Moccasin(start=StageAnnealing(moves_per_node=50), max_fruitless=3),
}


def cases() -> list[tuple[str, str, Order]]:
    return [(solver, graph, order) for solver in SOLVER_NAMES for graph in ONLY.get(solver, GRAPHS) for order in ORDERS]


def environment() -> dict[str, str]:
    return {name: version(name) for name in LIBRARIES}


def digest(solution: Solution) -> str:
    """Of the schedule, its status and its bound."""
    schedule = None if solution.schedule is None else solution.schedule.order
    found = json.dumps([schedule, solution.status, solution.cost_lower_bound, solution.bound_order])
    return hashlib.sha256(found.encode()).hexdigest()[:16]


def solved(solver: str, graph: str, order: Order) -> str:
    chosen = CHOSEN.get(solver) or get_solver(solver)
    return digest(solve(*GRAPHS[graph], solver=chosen, order=order, time_limit_s=TIME_LIMIT_S, seed=SEED))


@pytest.mark.parametrize(("solver", "graph", "order"), cases())
def test_a_solver_finds_what_it_found(solver: str, graph: str, order: Order) -> None:
    recorded = json.loads(RECORDED.read_text(encoding="utf-8"))
    if recorded["environment"] != environment():
        pytest.skip(f"recorded with {recorded['environment']}; record anew here before and after a change")
    expected = recorded["digests"].get(f"{solver} {graph} {order}")
    if expected is None:
        pytest.skip("not recorded yet")
    assert solved(solver, graph, order) == expected


def record() -> None:
    digests = {" ".join(case): solved(*case) for case in cases()}
    RECORDED.write_text(json.dumps({"environment": environment(), "digests": digests}, indent=1) + "\n")


if __name__ == "__main__":
    record()
