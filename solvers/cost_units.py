"""Costs in whole units, for solvers that count in integers or take small differences for none."""

from math import gcd

from checkmate_tf.graph import Graph

_MAX_COST_UNITS = 2**40


def cost_step(graph: Graph) -> int:
    """Every schedule's extra cost is a multiple of it."""
    return gcd(*(node.cost for node in graph.nodes if node.recomputable)) or 1


def cost_unit(graph: Graph, num_terms: int) -> int:
    """A multiple of the step in which sums of so many costs, each rounded down to whole units, stay small."""
    step = cost_step(graph)
    dearest = max((node.cost for node in graph.nodes), default=0)
    return step * max(1, dearest * num_terms // step // _MAX_COST_UNITS)
