"""The arrays of FastSA's sequence state, and the compilation of functions on it."""

from typing import NamedTuple

import numba
import numpy as np
from numba import types
from numba.extending import intrinsic

from checkmate_tf.solvers.compiling import keep_compiled

# Columns of State.nodes, int32 [num_nodes, 7]. Inputs are links[INPUTS : OUTPUTS], outputs links[OUTPUTS : LINKS_END].
INPUTS, OUTPUTS, LINKS_END, WORKSPACE, TAKES_CLASS, RECOMPUTABLE, COUNT = range(7)
# Columns of State.values, int32 [num_values, 7]; events are events[EVENTS : EVENTS + LENGTH] of room CAPACITY.
EVENTS, LENGTH, CAPACITY, SIZE, SIZE_CLASS, IS_OUTPUT, PRODUCER = range(7)
# Columns of State.slots, int32 [num_slots, 3]: its node or NOP, inputs that die there and fit, index in `occupied`.
NODE, DYING, PLACE = range(3)
NOP = -1
FETCH, USE, COMPUTE = 0, 1, 2  # kinds of events
# Columns of State.transfers, int64 [num_values, 3].
FETCH_COST, OFFLOAD_COST, FETCHES = range(3)
# Entries of State.totals, int64 [11]; RANDOM is the random state, a cost above MOST_COST is bound to be rejected,
# SINGLE counts nodes added and removed and fetches flipped, not what takes them back.
COST, NUM_POSITIONS, JOURNAL_LENGTH, FIXED_ORDER, SOFT, NUM_NODES, NUM_VALUES, NUM_SLOTS, RANDOM, MOST_COST, SINGLE = (
    range(11)
)
# Journal entries (action, slot, node or value), for undoing a compound mutation.
ADDED, REMOVED, FLIPPED = range(3)
JOURNAL_ROOM = 4096  # entries; a mutation that would need more is not made
CHAIN_ROOM = 48  # largest number of nodes in a recompute chain


class State(NamedTuple):
    """A graph and a sequence of its nodes; the column names above describe the arrays.

    Compiled functions take only `addresses`, which stands for all arrays. A tuple of arrays would be passed by value,
    with hundreds of bytes for each call, and make them three times slower.
    """

    nodes: np.ndarray
    values: np.ndarray
    links: np.ndarray
    costs: np.ndarray
    transfers: np.ndarray
    events: np.ndarray
    slots: np.ndarray
    occupied: np.ndarray
    deltas: np.ndarray
    weights: np.ndarray  # [2, 0] without the LogAddExp tree
    log2_size: np.ndarray  # float64 [num_values + 1]: sizes, and the tree's unit, in doublings of a weight
    totals: np.ndarray
    journal: np.ndarray
    scratch: np.ndarray  # int32 [2 * CHAIN_ROOM]: nodes of a recompute chain, then their slots
    addresses: np.ndarray  # uint64 [14]: of the arrays above


LIST = types.Array(types.int32, 1, "C")
TABLE = types.Array(types.int32, 2, "C")
STATE = types.Array(types.uint64, 1, "C")


def addresses_of(arrays: tuple[np.ndarray, ...]) -> np.ndarray:
    """Returns the argument of compiled functions that represents a state. The arrays must outlive it."""
    return np.array([array.ctypes.data for array in arrays], dtype=np.uint64)


def _pointer_to(item):
    @intrinsic
    def pointer(typing_context, address):
        def generate(context, builder, signature, arguments):
            return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

        return types.CPointer(item)(address), generate

    return pointer


_int32s = _pointer_to(types.int32)
_int64s = _pointer_to(types.int64)
_float64s = _pointer_to(types.float64)
_ANY = 1 << 40  # a length that nothing reads


@numba.njit
def node_table(state):
    return numba.carray(_int32s(state[0]), (_ANY, 7))


@numba.njit
def value_table(state):
    return numba.carray(_int32s(state[1]), (_ANY, 7))


@numba.njit
def link_list(state):
    return numba.carray(_int32s(state[2]), (_ANY,))


@numba.njit
def costs(state):
    return numba.carray(_int64s(state[3]), (_ANY,))


@numba.njit
def transfers(state):
    return numba.carray(_int64s(state[4]), (_ANY, 3))


@numba.njit
def event_list(state):
    return numba.carray(_int32s(state[5]), (_ANY,))


@numba.njit
def slot_table(state):
    return numba.carray(_int32s(state[6]), (_ANY, 3))


@numba.njit
def occupied(state):
    return numba.carray(_int32s(state[7]), (_ANY,))


@numba.njit
def deltas(state):
    return numba.carray(_int32s(state[8]), (2 * totals(state)[NUM_SLOTS],))


@numba.njit
def weights(state):
    return numba.carray(_float64s(state[9]), (2, 2 * totals(state)[NUM_SLOTS]))


@numba.njit
def log2_size(state):
    return numba.carray(_float64s(state[10]), (_ANY,))


@numba.njit
def totals(state):
    return numba.carray(_int64s(state[11]), (_ANY,))


@numba.njit
def journal(state):
    return numba.carray(_int32s(state[12]), (_ANY, 3))


@numba.njit
def scratch(state):
    return numba.carray(_int32s(state[13]), (2 * CHAIN_ROOM,))


def compiled(result, *arguments, entry: bool = False):
    """Compiles a function for these types when its module is imported, or loads it from the cache.

    Each function has one signature, because Numba on its own would compile one for every mix of integer widths. Numba's
    cache checks only a function's own file: after a change, delete solvers/__pycache__. Only an `entry` can be called
    from Python, because unpacking the state there costs more compile time than most functions.
    """
    return keep_compiled(result(*arguments), nogil=True, no_cpython_wrapper=not entry, no_cfunc_wrapper=True)
