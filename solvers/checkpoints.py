"""Schedules from a choice of what is retained: optimal R for a given S, for the baselines and for rounding.

Checkmate, Algorithm 2 and appendix B.1: with S given, R is set to 1 only where a constraint asks for it.
"""

import numpy as np

from checkmate_tf.graph import Graph
from checkmate_tf.schedule import Schedule, from_stages


def cheapest_recompute(graph: Graph, retain: np.ndarray) -> np.ndarray:
    """The R of least cost for an S, bool [num_nodes, num_nodes].

    `retain` is S, bool [num_nodes, num_values] or with one more row for the end; what it says of stages up to a value's
    own is not read. Values of nodes that are not recomputable are taken as retained.
    """
    num_nodes = len(graph.nodes)
    stage = np.arange(num_nodes)
    producer = np.array(graph.producer, dtype=np.int64)
    fixed = np.array([not node.recomputable for node in graph.nodes])
    later = stage[:, None] > producer[None, :]
    held = (retain[:num_nodes] | fixed[producer]) & later
    recompute = np.eye(num_nodes, dtype=bool)
    # (1c): what is retained into a stage and was not into the one before is computed there.
    begins = held[1:] & ~held[:-1] & later[:-1]
    stages, values = np.nonzero(begins)
    recompute[stages, producer[values]] = True
    outputs = [value for value in graph.outputs if producer[value] < num_nodes - 1]
    for value in outputs:
        recompute[-1, producer[value]] |= not held[-1, value]
    # (1b), from the last node to the first: whatever a node reads is retained or computed in the same stage.
    for node in range(num_nodes - 1, -1, -1):
        for value in graph.nodes[node].inputs:
            recompute[:, producer[value]] |= recompute[:, node] & ~held[:, value]
    return recompute


def schedule_of(graph: Graph, retain: np.ndarray) -> Schedule:
    """The cheapest schedule for an S (see `cheapest_recompute`)."""
    return from_stages(graph, cheapest_recompute(graph, retain))
