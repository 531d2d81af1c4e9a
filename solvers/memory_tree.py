"""A tree over the slots of a sequence for adding to a range and finding the maximum (FastSA, 2.1.1 and 2.2.1).

`deltas`, int32 or int64 [2 * num_slots], is a binary tree in heap order that is kept normalized: the larger of two
siblings is 0, and their common part is moved up to the parent. The root therefore holds the maximum of all slots, the
path of zeros leads down to a slot that has it, and a change stops climbing as soon as it changes no maximum. One array
is enough, without lazy marks. num_slots is a power of two. Slots 0 and num_slots - 1 stay unused, because they bound
the open intervals of the update.

`weights`, float64 [2, 2 * num_slots], is the LogAddExp variant (C.2), which holds sums and pending factors. Slot t
weighs 2^(memory / unit), so adding to memory multiplies weights. Its root holds the sum, whose log2 is a smooth maximum
that depends on every peak.
"""

import numpy as np
from numba import float64, int64, types, void

from checkmate_tf.solvers.compiling import keep_compiled

# 2^-60 hides a slot without a node from the sum, because memory is in use only where a node runs (C.2).
HIDDEN = 2.0**-60


DELTAS = types.Array(types.int32, 1, "C")
LONG_DELTAS = types.Array(types.int64, 1, "C")
WEIGHTS = types.Array(types.float64, 2, "C")


@keep_compiled([int64(DELTAS, int64), int64(LONG_DELTAS, int64)], nogil=True)
def _lift(deltas, place):
    common = max(deltas[place], deltas[place ^ 1])
    if common != 0:
        deltas[place] -= common
        deltas[place ^ 1] -= common
        deltas[place >> 1] += common
    return common


@keep_compiled([void(DELTAS, int64, int64, int64), void(LONG_DELTAS, int64, int64, int64)], nogil=True)
def add_range(deltas, first, last, amount):
    """Adds `amount` to the slots from `first` to `last`, both included. Does nothing if first > last."""
    if first > last:
        return
    half = len(deltas) >> 1
    left = first - 1 + half
    right = last + 1 + half
    while left ^ right != 1:
        if left & 1 == 0:
            deltas[left ^ 1] += amount
        if right & 1 == 1:
            deltas[right ^ 1] += amount
        _lift(deltas, left)
        _lift(deltas, right)
        left >>= 1
        right >>= 1
    while left > 1 and _lift(deltas, left) != 0:
        left >>= 1


@keep_compiled([void(DELTAS, int64, int64), void(LONG_DELTAS, int64, int64)], nogil=True)
def add_slot(deltas, slot, amount):
    """Adds `amount` to one slot."""
    place = slot + (len(deltas) >> 1)
    deltas[place] += amount
    while place > 1 and _lift(deltas, place) != 0:
        place >>= 1


@keep_compiled(int64(DELTAS), nogil=True)
def peak_slot(deltas):
    """Returns the first slot that has the maximum."""
    half = len(deltas) >> 1
    place = 1
    while place < half:
        place = 2 * place if deltas[2 * place] == 0 else 2 * place + 1
    return place - half


@keep_compiled(void(WEIGHTS, int64, int64, float64), nogil=True)
def multiply_range(weights, first, last, factor):
    """Multiplies the weights of the slots from `first` to `last`, both included. Does nothing if first > last."""
    if first > last:
        return
    half = weights.shape[1] >> 1
    left = first + half
    right = last + half + 1
    while left < right:
        if left & 1 == 1:
            weights[0, left] *= factor
            weights[1, left] *= factor
            left += 1
        if right & 1 == 1:
            right -= 1
            weights[0, right] *= factor
            weights[1, right] *= factor
        left >>= 1
        right >>= 1
    left = (first + half) >> 1
    right = (last + half) >> 1
    while left > 0:
        weights[0, left] = (weights[0, 2 * left] + weights[0, 2 * left + 1]) * weights[1, left]
        if right != left:
            weights[0, right] = (weights[0, 2 * right] + weights[0, 2 * right + 1]) * weights[1, right]
        left >>= 1
        right >>= 1


def empty_deltas(num_slots: int) -> np.ndarray:
    """Returns the tree of a sequence without memory."""
    return np.zeros(2 * num_slots, dtype=np.int32)


def deltas_of(memory: np.ndarray) -> np.ndarray:
    """Returns the tree of int64 memory [num_positions] >= 0. Position s is in slot s + 1; the other slots hold 0."""
    num_slots = 1 << (len(memory) + 1).bit_length()
    deltas = np.zeros(2 * num_slots, dtype=np.int64)
    deltas[num_slots + 1 : num_slots + 1 + len(memory)] = memory
    width = num_slots
    while width > 1:
        pairs = deltas[width : 2 * width].reshape(-1, 2)
        largest = pairs.max(axis=1)
        pairs -= largest[:, None]
        width //= 2
        deltas[width : 2 * width] = largest
    return deltas


def empty_weights(num_slots: int) -> np.ndarray:
    """Returns the LogAddExp tree of a sequence of slots without nodes."""
    weights = np.ones((2, 2 * num_slots))
    width = num_slots
    while width >= 1:
        weights[0, width : 2 * width] = HIDDEN * (num_slots // width)
        width //= 2
    return weights
