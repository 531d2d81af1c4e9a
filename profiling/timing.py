"""How long a fragment takes on a device, as TensorFlow runs it: the operations fused as in the step."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from checkmate_tf.profiling.signature import Fragment, FragmentInput, graph_def_of

_SEED = 0


@dataclass(frozen=True, slots=True)
class TimingOptions:
    """When to stop repeating.

    A signature is repeated at least `min_repeats` times and until the standard error of the median is below
    `relative_spread` of it, but no longer than `max_time_s`. Fragments that take less than `min_call_s` are run in
    several copies a call, at most `max_copies`, so that the call itself does not drown them.
    """

    relative_spread: float = 0.02
    min_repeats: int = 5
    max_time_s: float = 0.4
    min_call_s: float = 2e-3
    max_copies: int = 32


DEFAULT_OPTIONS = TimingOptions()


@dataclass(frozen=True, slots=True)
class Timing:
    """`cost_ns` is the median over `repeats`; `relative_spread` is half the interquartile range over the median."""

    cost_ns: float
    relative_spread: float
    repeats: int


class CallOverhead:
    """The time of calling a function that does nothing, measured once a number of arguments."""

    def __init__(self, device: str):
        self._device = device
        self._seconds: dict[int, float] = {}

    def seconds(self, num_arguments: int) -> float:
        if num_arguments not in self._seconds:
            with tf.device(self._device):
                arguments = [tf.zeros(()) for _ in range(num_arguments)]
            function = tf.function(lambda *inputs: tf.constant(0.0), autograph=False)
            function = function.get_concrete_function(*arguments)
            times = [_seconds_of(lambda: function(*arguments)) for _ in range(60)]
            self._seconds[num_arguments] = float(np.median(times[10:]))
        return self._seconds[num_arguments]


def time_fragment(
    fragment: Fragment, device: str, *, overhead: CallOverhead, options: TimingOptions = DEFAULT_OPTIONS
) -> Timing:
    """Runs the fragment on random inputs and gives the time of one copy, without that of the call.

    Raises whatever TensorFlow raises when the fragment cannot run alone.
    """
    arguments = random_inputs(fragment, device)
    run = as_function(fragment, device, copies=1)
    call = overhead.seconds(len(arguments))
    _seconds_of(lambda: run(*arguments))
    estimate = min(_seconds_of(lambda: run(*arguments)) for _ in range(2)) - call
    copies = int(np.clip(np.ceil(options.min_call_s / max(estimate, 1e-6)), 1, options.max_copies))
    if copies > 1:
        run = as_function(fragment, device, copies=copies)
        _seconds_of(lambda: run(*arguments))
    times = _repeat(lambda: run(*arguments), options)
    costs = np.maximum(np.array(times) - call, 0.0) / copies * 1e9
    low, median, high = np.percentile(costs, [25, 50, 75])
    return Timing(float(median), float((high - low) / 2 / max(median, 1.0)), len(times))


def as_function(fragment: Fragment, device: str, *, copies: int) -> Callable[..., None]:
    """A compiled function of `random_inputs` that runs `copies` of the fragment, one after the other."""
    graph_def = graph_def_of(fragment, copies)

    def body(*arguments: tf.Tensor) -> None:
        given = iter(arguments)
        feeds = {
            f"x{index}": next(given) if described.constant is None else tf.constant(described.constant)
            for index, described in enumerate(fragment.inputs)
        }
        with tf.device(device):
            done = tf.graph_util.import_graph_def(graph_def, input_map=feeds, return_elements=["done"], name="")
        # A function runs its control outputs; what only a constant waits for, it would prune.
        tf.compat.v1.get_default_graph().control_outputs.extend(done)

    arguments = [_spec(described) for described in fragment.inputs if described.constant is None]
    return tf.function(body, autograph=False).get_concrete_function(*arguments)


def random_inputs(fragment: Fragment, device: str) -> list[tf.Tensor]:
    """A tensor, or a variable's handle, for each input of the fragment whose value the graph does not tell."""
    random = np.random.default_rng(_SEED)
    with tf.device(device):
        return [_random(described, random) for described in fragment.inputs if described.constant is None]


def _random(described: FragmentInput, random: np.random.Generator) -> tf.Tensor:
    dtype, shape = described.dtype, described.shape
    if dtype.is_bool:
        values = random.random(shape) < 0.5
    elif dtype.is_integer:
        values = random.integers(0, max(described.limit, 1), shape)
    elif dtype == tf.string:
        values = np.full(shape, "")
    else:
        # Away from zero, so that no logarithm, quotient or denormal makes it special.
        values = random.random(shape, dtype=np.float32) + np.float32(0.1)
    tensor = tf.cast(values, dtype) if dtype != tf.string else tf.constant(values)
    if described.is_resource:
        return tf.Variable(tensor)
    return tensor


def _spec(described: FragmentInput):
    return tf.TensorSpec(described.shape, described.dtype)


def _repeat(run: Callable[[], object], options: TimingOptions) -> list[float]:
    times: list[float] = []
    end = time.perf_counter() + options.max_time_s
    while len(times) < options.min_repeats or (time.perf_counter() < end and not _is_steady(times, options)):
        times.append(_seconds_of(run))
        if len(times) >= 3 and time.perf_counter() > end:
            break
    return times


def _is_steady(times: list[float], options: TimingOptions) -> bool:
    low, median, high = np.percentile(times, [25, 50, 75])
    return (high - low) / 1.35 * 1.25 / len(times) ** 0.5 < options.relative_spread * median


def _seconds_of(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    tf.test.experimental.sync_devices()
    return time.perf_counter() - start
