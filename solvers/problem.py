"""What a solver is asked: a graph, a budget and an order."""

from dataclasses import dataclass

from checkmate_tf.graph import Graph
from checkmate_tf.schedule import Order


@dataclass(frozen=True)
class Problem:
    """Find the schedule of least cost whose peak memory is at most `budget_bytes`.

    `order`: "fixed" keeps first computations in the graph's input order (Checkmate; MOCCASIN with
    stages); "free" lets a solver reorder (FastSA, TWRemat, MOCCASIN without stages).

    Most solvers search fixed order only in Checkmate's stages, section 4.2: between two first computations other nodes
    run in the input order, each at most once, and none after the last. Lower bounds in fixed order are about these. On
    training graphs a schedule outside of them seldom costs less; at budgets near the least it is often the only one, so
    that none fits in stages is no proof that none fits.
    """

    graph: Graph
    budget_bytes: int
    order: Order = "fixed"
