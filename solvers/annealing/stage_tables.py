"""The tables of stage-space annealing. Their columns have names.

A table replaces an array for each field, because the time to compile grows with the number of arrays passed around.
"""

from typing import NamedTuple

import numpy as np

from checkmate_tf.solvers.annealing.settings import SETTINGS

# Columns of KernelGraph.nodes. Lists run from their FIRST_ column to that of the next row. REUSE is the first output
# of an in-place node, else -1; the first CANDIDATES items are the values worth dropping that earlier nodes compute.
FIRST_INPUT, FIRST_OUTPUT, NODE_COST, WORKSPACE, RECOMPUTABLE, REUSE, CANDIDATES = range(7)
# Columns of KernelGraph.values.
FIRST_USER, PRODUCER, SIZE, IS_OUTPUT = range(4)
# Columns of KernelState.events. FOLLOWING links the recomputations of a stage, the last to (t, t); LATER and EARLIER
# the events of a node. DYING counts the inputs whose storage an in-place node can take over. Row k of POOL holds an
# event: one in the set for k < NUM_EVENTS, else a free one; SLOT is its row. MARK is a node's, for `_choose_closure`.
NODE, STAGE, FOLLOWING, LATER, EARLIER, DYING, POOL, SLOT, MARK = range(9)
# Columns of KernelState.chunks. HIGH and LOW bound the entries of `excess`; COUNT is the number of events.
LAZY, HIGH, LOW, COUNT = range(4)
# Entries of KernelState.total. MOVES and WITHIN count moves, and those that left the budget kept, since the price of
# overflow was last adapted.
COST, OVERFLOW, NUM_EVENTS, JOURNAL, STACK, RNG, MOVES, WITHIN = range(8)
CHUNK_STAGES = SETTINGS.chunk_stages
MAX_CLOSURE = SETTINGS.max_closure_nodes
# Larger than any key of an event and any overflow.
NEVER = np.iinfo(np.int64).max
NO_LIMIT = 1e18


class KernelGraph(NamedTuple):
    """int64 tables: nodes [num_nodes + 1, 7], values [num_values + 1, 4], and the items of all lists."""

    nodes: np.ndarray
    values: np.ndarray
    items: np.ndarray


class KernelState(NamedTuple):
    """events int64 [num_nodes + room, 9]; `head`, the first event of each stage; `excess` of each event, bytes.

    `chunks` int64 [num_chunks, 4]; `journal` [any, 3] of (sign, stage, node) undoes a move; `price`, of the
    nodes and then of the graph's items, and `closure` are scratch.
    """

    events: np.ndarray
    head: np.ndarray
    excess: np.ndarray
    chunks: np.ndarray
    total: np.ndarray
    journal: np.ndarray
    price: np.ndarray
    closure: np.ndarray
