"""Converts costs to whole units, for solvers that count in integers or treat small differences as zero."""

from math import gcd

from checkmate_tf.graph import Graph

_MAX_COST_UNITS = 2**40


def cost_step(graph: Graph) -> int:
    """Returns the cost step of a graph: every schedule's extra cost is a multiple of it."""
    return gcd(*(node.cost for node in graph.nodes if node.recomputable)) or 1


def cost_unit(graph: Graph, num_terms: int) -> int:
    """Returns a multiple of the cost step in which the sum of `num_terms` costs stays small.

    Each cost is rounded down to whole units.
    """
    step = cost_step(graph)
    dearest = max((node.cost for node in graph.nodes), default=0)
    return step * max(1, dearest * num_terms // step // _MAX_COST_UNITS)
