"""Times a fragment on a device, with the operations fused as TensorFlow fuses them in the step."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from resource import RUSAGE_SELF, getrusage

import numpy as np
import tensorflow as tf

from checkmate_tf.profiling.signature import Fragment, FragmentInput, build_graph_def
from checkmate_tf.tf_private import call_flat, make_variable_handle

_SEED = (0, 0)
_FEW_FAULTS = 16  # pages, 64 KiB
_HELD_OUTPUTS = 3


@dataclass(frozen=True, slots=True)
class TimingOptions:
    """The conditions for the end of the repeats.

    A fragment is repeated at least `min_repeats` times, and until the standard error of the median is below
    `relative_spread` of it, but no longer than `max_time_s`. Each call runs several copies of a fragment that takes
    less than `min_call_s`, at most `max_copies`, so that the time of the call itself matters little.
    """

    relative_spread: float = 0.03
    min_repeats: int = 2
    max_time_s: float = 0.12
    min_call_s: float = 2e-3
    max_copies: int = 32


DEFAULT_OPTIONS = TimingOptions()


@dataclass(frozen=True, slots=True)
class Timing:
    """A time: `cost_ns` is the median over `repeats`, `relative_spread` half the interquartile range divided by it."""

    cost_ns: float
    relative_spread: float
    repeats: int


@dataclass(frozen=True, slots=True)
class _Run:
    """A run of `seconds`. `is_clean` means that it brought no new page into the process."""

    run_s: float
    is_clean: bool


class CallOverhead:
    """The time of calling a function that does nothing, measured once for each number of arguments.

    `compiled` is for functions that XLA compiles.
    """

    def __init__(self, device: str, *, compiled: bool = False):
        self._device = device
        self._compiled = compiled
        self._call_s: dict[int, float] = {}

    def measure_call_s(self, num_arguments: int) -> float:
        """Returns the time of a call with so many arguments, which is measured once."""
        if num_arguments not in self._call_s:
            with tf.device(self._device):
                arguments = [tf.zeros(()) for _ in range(num_arguments)]
            function = tf.function(lambda *inputs: tf.constant(0.0), autograph=False, jit_compile=self._compiled)
            function = function.get_concrete_function(*arguments)
            times = [_measure_s(lambda: call_flat(function, arguments), self._device) for _ in range(60)]
            self._call_s[num_arguments] = float(np.median(times[10:]))
        return self._call_s[num_arguments]


def time_fragment(
    fragment: Fragment,
    device: str,
    *,
    arguments: Sequence[tf.Tensor],
    single: tf.types.experimental.ConcreteFunction,
    overhead: CallOverhead,
    options: TimingOptions = DEFAULT_OPTIONS,
) -> Timing:
    """Times one run of the fragment on `arguments`, without the time of the call.

    `single` is `build_fragment_function(fragment, device)`, which has run before.
    """
    call_s = overhead.measure_call_s(len(arguments))
    warm_up(lambda: call_flat(single, arguments), options.max_time_s, device=device)
    runs = [_time_run(lambda: call_flat(single, arguments), device) for _ in range(2)]
    single_s = max(min(run.run_s for run in runs) - call_s, 1e-6)
    copies = int(np.clip(np.ceil(options.min_call_s / single_s), 1, options.max_copies))
    function = single
    if copies > 1:
        function, runs = build_fragment_function(fragment, device, copies=copies), []
        warm_up(lambda: call_flat(function, arguments), options.max_time_s, device=device)
    times = _repeat(lambda: call_flat(function, arguments), runs, options, device)
    costs = np.maximum(np.array(times) - call_s, 0.0) / copies * 1e9
    low, median, high = np.percentile(costs, [25, 50, 75])
    return Timing(float(median), float((high - low) / 2 / max(median, 1.0)), len(times))


def build_fragment_function(
    fragment: Fragment, device: str, *, copies: int = 1, compiled: bool = False
) -> tf.types.experimental.ConcreteFunction:
    """Builds a function of `RandomInputs` that runs `copies` of a fragment in sequence, optimized as in the step.

    One copy returns the outputs of its tails, and several return nothing. With `compiled`, XLA compiles the function.
    XLA leaves out whatever is not returned, and therefore all of several copies.
    """
    arguments = [_make_spec(described) for described in fragment.inputs if described.constant is None]
    body = build_fragment_body(fragment, None if compiled else device, copies=copies)
    return tf.function(body, autograph=False, jit_compile=compiled).get_concrete_function(*arguments)


def build_fragment_body(fragment: Fragment, device: str | None, *, copies: int = 1) -> Callable[..., list[tf.Tensor]]:
    """Builds the function that `build_fragment_function` traces, on `device` or wherever TensorFlow places it."""
    graph_def = build_graph_def(fragment, copies)
    outputs = [f"c0n{tail}:{output}" for tail, output in fragment.outputs] if copies == 1 else []

    def body(*arguments: tf.Tensor) -> list[tf.Tensor]:
        given = iter(arguments)
        feeds = {
            f"x{index}": next(given) if described.constant is None else tf.constant(described.constant)
            for index, described in enumerate(fragment.inputs)
        }
        with tf.device(device):
            imported = tf.graph_util.import_graph_def(
                graph_def, input_map=feeds, return_elements=["done", *outputs], name=""
            )
        # A function runs its control outputs. It would prune operations for which only a returned constant waits.
        tf.compat.v1.get_default_graph().control_outputs.append(imported[0])
        return imported[1:]

    return body


class RandomInputs:
    """Tensors for the inputs of fragments. The newest `max_bytes` are kept for fragments with equal inputs.

    Two inputs of one fragment never share a tensor, because reading one buffer twice is faster than reading two.
    """

    def __init__(self, device: str, *, max_bytes: int = 1 << 30):
        self._device = device
        self._max_bytes = max_bytes
        self._kept: dict[tuple[object, ...], tf.Tensor] = {}
        self._kept_bytes = 0

    def make_arguments(self, fragment: Fragment) -> list[tf.Tensor]:
        """Makes a tensor, or the handle of a variable, for each input of the fragment that is not a known constant."""
        counts: Counter[tuple[object, ...]] = Counter()
        tensors = []
        for described in fragment.inputs:
            if described.constant is None:
                kind = (described.dtype, described.shape, described.limit)
                tensors.append(self._get_tensor(described, (*kind, counts[kind])))
                counts[kind] += 1
        return tensors

    def _get_tensor(self, described: FragmentInput, key: tuple[object, ...]) -> tf.Tensor:
        with tf.device(self._device):
            if described.is_resource:
                return _make_random(described)
            tensor = self._kept.pop(key, None)
            if tensor is None:
                tensor = _make_random(described)
                self._kept_bytes += _count_bytes(tensor)
        self._kept[key] = tensor
        while self._kept_bytes > self._max_bytes:
            self._kept_bytes -= _count_bytes(self._kept.pop(next(iter(self._kept))))
        return tensor


def _count_bytes(tensor: tf.Tensor) -> int:
    return prod(tensor.shape) * tensor.dtype.size


def _make_random(described: FragmentInput) -> tf.Tensor:
    dtype, shape = described.dtype, described.shape
    if dtype == tf.string:
        tensor = tf.fill(shape, "")
    elif dtype.is_bool:
        tensor = tf.random.stateless_uniform(shape, _SEED) < 0.5
    elif dtype.is_integer:
        limit = max(described.limit, 1)
        tensor = tf.cast(tf.random.stateless_uniform(shape, _SEED, 0, limit, tf.int32), dtype)
    else:
        # With values between 0 and 1, no logarithm, quotient, denormal or branch of erfc takes a special path.
        tensor = tf.cast(tf.random.stateless_uniform(shape, _SEED, 0.1, 0.9), dtype)
    if not described.is_resource:
        return tensor
    handle = make_variable_handle(tensor)
    tf.raw_ops.AssignVariableOp(resource=handle, value=tensor)
    return handle


def _make_spec(described: FragmentInput) -> tf.TensorSpec:
    return tf.TensorSpec([], tf.resource) if described.is_resource else tf.TensorSpec(described.shape, described.dtype)


def warm_up(run: Callable[[], object], max_time_s: float, *, device: str) -> None:
    """Runs until two runs bring no new page into the process, as in a step that has run before; at least once.

    On a CPU, the C library returns a kernel's scratch memory to the system after each run, until the process holds
    more; keeping outputs makes it hold more. On a virtual machine, the page faults can take longer than the kernel. A
    GPU's memory has no such pages, and may have no room for outputs that nothing reads.
    """
    num_held = _HELD_OUTPUTS if device.upper().lstrip("/").startswith("CPU") else 0
    held: list[object] = []
    num_runs, num_clean, end = 0, 0, time.perf_counter() + max_time_s / 2
    while num_clean < 2 and (not num_runs or time.perf_counter() < end):
        before = _count_faults()
        held.append(run())
        tf.test.experimental.sync_devices()
        is_clean = _count_faults() - before <= _FEW_FAULTS
        num_runs, num_clean = num_runs + 1, num_clean + 1 if is_clean else 0
        del held[: max(0, len(held) - num_held)]


def _repeat(run: Callable[[], object], runs: list[_Run], options: TimingOptions, device: str) -> list[float]:
    """Repeats a call until its time is steady or the time is up, and returns the times. `runs` were made before.

    Runs that bring new pages into the process count only if there are no others. The C library may return scratch
    memory at any time, but a step that has run before brings no new pages.
    """
    end = time.perf_counter() + options.max_time_s
    times = [made.run_s for made in runs if made.is_clean]
    while len(runs) < options.min_repeats or (not _is_steady(times, options) and time.perf_counter() < end):
        runs.append(_time_run(run, device))
        times = [made.run_s for made in runs if made.is_clean]
    return times or [made.run_s for made in runs]


def _is_steady(times: list[float], options: TimingOptions) -> bool:
    """Returns whether times are steady.

    The standard error of a median is 1.25 sigma / sqrt(n), with sigma the interquartile range / 1.35.
    """
    if len(times) < 3:
        return False
    low, median, high = np.percentile(times, [25, 50, 75])
    return 1.25 * (high - low) / 1.35 / len(times) ** 0.5 < options.relative_spread * median


def _time_run(run: Callable[[], object], device: str) -> _Run:
    before = _count_faults()
    run_s = _measure_s(run, device)
    return _Run(run_s, _count_faults() - before <= _FEW_FAULTS)


def _count_faults() -> int:
    return getrusage(RUSAGE_SELF).ru_minflt


def _measure_s(run: Callable[[], object], device: str) -> float:
    """Returns the time of a run; on a CPU, no more than the time for which its threads together ran.

    They run for the whole time of a run, except while they wait for other processes.
    """
    start, start_cpu = time.perf_counter(), time.process_time()
    run()
    tf.test.experimental.sync_devices()
    run_s, cpu_s = time.perf_counter() - start, time.process_time() - start_cpu
    return min(run_s, cpu_s) if device.upper().lstrip("/").startswith("CPU") else run_s
