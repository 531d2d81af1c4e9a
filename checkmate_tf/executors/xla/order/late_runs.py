"""Finds the runs of a schedule in which nodes are computed again, or later than in the stock step."""

from collections.abc import Sequence
from itertools import groupby

from checkmate_tf.graph import Graph


def find_runs(graph: Graph, order: Sequence[int]) -> dict[int, int]:
    """Maps each late position to the exclusive end of its contiguous run of late positions.

    A position is late if it repeats a node, or computes it after others that follow it in the stock step.
    """
    seen: set[int] = set()
    newest = -1
    lateness = []
    for node in order:
        lateness.append(node in seen or (node < newest and graph.nodes[node].recomputable))
        seen.add(node)
        newest = max(newest, node)
    ends: dict[int, int] = {}
    start = 0
    for is_run, members in groupby(lateness):
        end = start + sum(1 for _ in members)
        if is_run:
            ends |= dict.fromkeys(range(start, end), end)
        start = end
    return ends
