"""Finds the runs of a schedule in which nodes are computed again, or late."""

from collections.abc import Sequence
from itertools import groupby

from checkmate_tf.graph import Graph


def find_runs(graph: Graph, order: Sequence[int]) -> dict[int, int]:
    """Finds the end, exclusive, of the contiguous run of late positions that each of these belongs to.

    Late are repeats, and nodes that a schedule computes only after others that follow them in the stock step.
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
