"""How many entries of FastSA's tree of memory a single mutation changes: compiled, for `run.py`."""

import numba

from checkmate_tf.solvers.fastsa.sequence_arrays import JOURNAL_LENGTH, deltas, totals
from checkmate_tf.solvers.fastsa.sequence_moves import add_random, remove_random


@numba.njit
def changed_entries(state, counts):
    """Makes as many mutations as there are counts, in turn a node added and one removed, and counts for each.

    A mutation that is not valid changes nothing.
    """
    for number in range(len(counts)):
        before = deltas(state).copy()
        totals(state)[JOURNAL_LENGTH] = 0
        if number & 1:
            remove_random(state)
        else:
            add_random(state)
        counts[number] = (before != deltas(state)).sum()
