"""Defines the problem that a solver solves: a graph, a budget and an order."""

from dataclasses import dataclass

from checkmate_tf.graph import Graph
from checkmate_tf.schedule import Order


@dataclass(frozen=True)
class Problem:
    """A problem asks for the cheapest schedule whose peak memory is at most `budget_bytes`.

    `order`: "fixed" keeps first computations in the graph's input order (Checkmate; MOCCASIN with
    stages); "free" lets a solver reorder (FastSA, TWRemat, MOCCASIN without stages).

    In fixed order, most solvers search only schedules in Checkmate's stages (section 4.2): between two first
    computations, other nodes run in the input order, each at most once, and none runs after the last first computation.
    Lower bounds in fixed order hold for these schedules. On training graphs, a schedule outside of the stages seldom
    costs less. At budgets near the least possible one, it is often the only schedule. Therefore, a proof that no
    schedule in stages fits does not prove that none fits.
    """

    graph: Graph
    budget_bytes: int
    order: Order = "fixed"
