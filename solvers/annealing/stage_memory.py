"""Keeps the events of stage-space annealing and the memory above the budget at each of them.

The state is a set of events (t, v), "node v is recomputed in stage t, before node t", and the n first computations (t,
t), which are the events 0 .. n-1. Events run in the order of their stages, and within a stage in the order of their
nodes. All functions are compiled.

The memory above the budget is exactly that of `simulate`. It is kept in chunks of CHUNK_STAGES stages: the memory of an
event is its own entry of `excess` plus the entry LAZY of its chunk. When a retention interval begins or ends, the
memory of a range of events changes by one amount. A chunk changes at once if it lies within the range and all its
events are above the budget, or all below, according to its bounds HIGH and LOW. In the other chunks, the first
computations change first, because they are contiguous, and then the recomputations.
"""

from collections.abc import Callable

from numba import boolean, float64, int64, types, void

from checkmate_tf.solvers.annealing.stage_tables import (
    CHUNK_STAGES,
    COUNT,
    FOLLOWING,
    HIGH,
    LAZY,
    LOW,
    NEVER,
    NO_LIMIT,
    NODE,
    OVERFLOW,
    STAGE,
    KernelGraph,
    KernelState,
)
from checkmate_tf.solvers.compiling import keep_compiled

INTS, TABLE, FLOATS = int64[::1], int64[:, ::1], float64[::1]
GRAPH = types.NamedTuple((TABLE, TABLE, INTS), KernelGraph)
STATE = types.NamedTuple((TABLE, INTS, INTS, TABLE, INTS, TABLE, FLOATS, INTS), KernelState)


def compiled(signature: types.Type) -> Callable[[Callable], Callable]:
    """Compiles a function that only compiled functions call, for one signature, and keeps it on disk.

    These functions allocate nothing, so they count no references (`_nrt`); counting them took most of the time. Numba
    checks only the file of a function: after an edit of a file that others call into, delete `__pycache__`.
    """
    return keep_compiled(signature, error_model="numpy", _nrt=False, no_cpython_wrapper=True, no_cfunc_wrapper=True)


def entry(signature: types.Type) -> Callable[[Callable], Callable]:
    """Compiles a function that Python calls, as `compiled` does for the others."""
    return keep_compiled(signature, error_model="numpy", _nrt=False, no_cfunc_wrapper=True)


@compiled(int64(STATE, int64))
def key_of(state, event):
    """Returns the key of an event. Events run in the order of their keys."""
    return state.events[event, STAGE] * state.head.shape[0] + state.events[event, NODE]


@compiled(int64(STATE, int64))
def excess_of(state, event):
    """Returns the bytes above the budget at an event."""
    return state.excess[event] + state.chunks[state.events[event, STAGE] // CHUNK_STAGES, LAZY]


@compiled(void(STATE, int64, int64, int64))
def set_excess(state, event, chunk, excess):
    """Sets the entry of an event."""
    state.excess[event] = excess
    state.chunks[chunk, HIGH] = max(state.chunks[chunk, HIGH], excess)
    state.chunks[chunk, LOW] = min(state.chunks[chunk, LOW], excess)


@compiled(void(STATE, int64, int64))
def bump(state, event, delta):
    """Adds `delta` at one event."""
    before = excess_of(state, event)
    set_excess(state, event, state.events[event, STAGE] // CHUNK_STAGES, state.excess[event] + delta)
    state.total[OVERFLOW] += max(before + delta, 0) - max(before, 0)


@compiled(int64(STATE, int64, int64, int64, boolean))
def _change_in_stage(state, event, node, delta, write):
    """Does the part of `change_range` within one stage: the events from `event` on and before that of `node`."""
    stage = state.events[event, STAGE]
    chunk = stage // CHUNK_STAGES
    lazy, change = state.chunks[chunk, LAZY], 0
    while state.events[event, NODE] < node:
        own = state.excess[event]
        change += max(own + lazy + delta, 0) - max(own + lazy, 0)
        if write:
            set_excess(state, event, chunk, own + delta)
        if event == stage:
            break
        event = state.events[event, FOLLOWING]
    return change


@compiled(int64(STATE, int64, int64, int64, boolean))
def _change_stages(state, begin, end, delta, write):
    """Does the part of `change_range` for all events of some stages of one chunk, and tightens the chunk's bounds."""
    chunk = begin // CHUNK_STAGES
    lazy = state.chunks[chunk, LAZY]
    high, low = state.chunks[chunk, HIGH], state.chunks[chunk, LOW]
    if not write and max(high + lazy, high + lazy + delta) <= 0:
        return 0
    num_stages = min(CHUNK_STAGES, state.head.shape[0] - chunk * CHUNK_STAGES)
    if end - begin == num_stages:
        high, low = -NEVER, NEVER
    change, written = 0, delta if write else 0
    own = state.excess[begin:end]  # of first computations, contiguous
    for place in range(own.shape[0]):
        before = own[place]
        change += max(before + lazy + delta, 0) - max(before + lazy, 0)
        own[place] = before + written
        high, low = max(high, before + written), min(low, before + written)
    if state.chunks[chunk, COUNT] > num_stages:
        for stage in range(begin, end):
            event = state.head[stage]
            while event != stage:
                before = state.excess[event]
                change += max(before + lazy + delta, 0) - max(before + lazy, 0)
                state.excess[event] = before + written
                high, low = max(high, before + written), min(low, before + written)
                event = state.events[event, FOLLOWING]
    state.chunks[chunk, HIGH], state.chunks[chunk, LOW] = high, low
    return change


@compiled(int64(STATE, int64, int64, boolean))
def change_chunk(state, chunk, delta, write):
    """Does the part of `change_range` for all events of a chunk."""
    lazy = state.chunks[chunk, LAZY]
    high, low = state.chunks[chunk, HIGH] + lazy, state.chunks[chunk, LOW] + lazy
    change = 0
    if min(low, low + delta) >= 0:
        change = delta * state.chunks[chunk, COUNT]
    elif max(high, high + delta) > 0:
        begin = chunk * CHUNK_STAGES
        change = _change_stages(state, begin, min(begin + CHUNK_STAGES, state.head.shape[0]), delta, False)
    if write:
        state.chunks[chunk, LAZY] = lazy + delta
    return change


@compiled(int64(STATE, int64, int64, int64, int64, float64, boolean))
def change_range(state, first, stage, node, delta, limit, write):
    """Returns the overflow that `delta` bytes more add, at the events after `first` and before (stage, node).

    With `write`, the change is applied. Without it, the overflow is only counted, until it exceeds `limit`.
    """
    begin, change = state.events[first, STAGE], 0
    goes_on = begin < stage
    if first != begin:
        before = NEVER if goes_on else node
        change = _change_in_stage(state, state.events[first, FOLLOWING], before, delta, write)
    begin += 1
    while begin < stage and change <= limit:
        end = min((begin // CHUNK_STAGES + 1) * CHUNK_STAGES, stage)
        if end - begin == CHUNK_STAGES:
            change += change_chunk(state, begin // CHUNK_STAGES, delta, write)
        else:
            change += _change_stages(state, begin, end, delta, write)
        begin = end
    if goes_on and change <= limit:
        change += _change_in_stage(state, state.head[stage], node, delta, write)
    if write:
        state.total[OVERFLOW] += change
    return change


@compiled(void(STATE, int64, int64, int64))
def add_between(state, first, last, delta):
    """Adds `delta` to the events after `first`, up to and including `last`."""
    if first != last:
        change_range(state, first, state.events[last, STAGE], state.events[last, NODE], delta, NO_LIMIT, True)
        bump(state, last, delta)
