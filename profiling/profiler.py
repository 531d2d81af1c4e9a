"""Measures every distinct node of a training graph once, and keeps the measurements."""

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import tensorflow as tf
from tqdm import tqdm

from checkmate_tf.errors import ProfileError
from checkmate_tf.profiling.cache import DeviceKey, Measurement, ProfileCache
from checkmate_tf.profiling.device import find_default_device, make_device_key
from checkmate_tf.profiling.signature import Fragment, cut_fragments
from checkmate_tf.profiling.timing import (
    DEFAULT_OPTIONS,
    CallOverhead,
    RandomInputs,
    TimingOptions,
    build_fragment_function,
    time_fragment,
)
from checkmate_tf.profiling.workspace import measure_workspace_bytes
from checkmate_tf.tracing.extraction import TrainingGraph


@dataclass(frozen=True)
class Profile:
    """The measurements of a training graph's nodes.

    Args:
        measurements: of each node, None for one that cannot run alone, [num_nodes].
        reasons: why a node could not be measured, by node.
        num_signatures: number of distinct signatures.
        num_measured: number of those measured in this run; the others were in the cache.
        took_s: total time.
    """

    key: DeviceKey
    measurements: tuple[Measurement | None, ...]
    reasons: dict[int, str]
    num_signatures: int
    num_measured: int
    took_s: float


def profile_graph(
    training_graph: TrainingGraph,
    *,
    cache_path: Path | str | None = None,
    device: str | None = None,
    options: TimingOptions = DEFAULT_OPTIONS,
    progress: bool = True,
    on_node: Callable[[int, int], None] | None = None,
) -> Profile:
    """Takes the measurements in the cache, and measures the other nodes, on `device` or the one that training uses.

    An interrupt (KeyboardInterrupt) passes through. Measurements made until then are in the cache.

    Args:
        cache_path: by default, the file in the user's cache directory.
        progress: whether to show a bar with the time left on standard error, if that is a terminal.
        on_node: called with the number of nodes timed and their total.
    """
    fragments = cut_node_fragments(training_graph)
    return profile_fragments(
        fragments, cache_path=cache_path, device=device, options=options, progress=progress, on_node=on_node
    )


def profile_fragments(
    fragments: Sequence[Fragment | ProfileError],
    *,
    cache_path: Path | str | None = None,
    device: str | None = None,
    options: TimingOptions = DEFAULT_OPTIONS,
    progress: bool = True,
    on_node: Callable[[int, int], None] | None = None,
    compiled: bool = False,
) -> Profile:
    """Does the work of `profile_graph` for fragments, each of which is a node, or several that XLA computes as one.

    With `compiled`, XLA compiles each as a module of its own, and its measurement has a signature of its own.
    """
    start = time.perf_counter()
    device = device or find_default_device()
    key = make_device_key(device)
    if compiled:
        key = replace(key, driver=f"{key.driver}, XLA")
        options = replace(options, max_copies=1)
    reasons = {node: str(cut) for node, cut in enumerate(fragments) if isinstance(cut, ProfileError)}
    distinct = {cut.signature: cut for cut in fragments if isinstance(cut, Fragment)}
    with ProfileCache(cache_path) as cache:
        known = cache.load(key)
        found = {signature: known[signature] for signature in distinct if signature in known}
        missing = [fragment for signature, fragment in distinct.items() if signature not in found]
        failed: dict[str, str] = {}
        num_measured = 0
        overhead, inputs = CallOverhead(device, compiled=compiled), RandomInputs(device)
        measure = partial(
            measure_fragment, device=device, overhead=overhead, inputs=inputs, options=options, compiled=compiled
        )
        disable = None if progress and missing else True
        for number, fragment in enumerate(tqdm(missing, "profiling", unit="node", file=sys.stderr, disable=disable)):
            if on_node is not None:
                on_node(number, len(missing))
            try:
                measurement, is_new = cache.get_or_measure(key, fragment.signature, partial(measure, fragment))
            except (tf.errors.OpError, ValueError) as error:
                failed[fragment.signature] = str(error).splitlines()[0]
                continue
            found[fragment.signature] = measurement
            num_measured += is_new
    signatures = [cut.signature if isinstance(cut, Fragment) else "" for cut in fragments]
    reasons |= {node: failed[signature] for node, signature in enumerate(signatures) if signature in failed}
    return Profile(
        key=key,
        measurements=tuple(found.get(signature) for signature in signatures),
        reasons=reasons,
        num_signatures=len(distinct),
        num_measured=num_measured,
        took_s=time.perf_counter() - start,
    )


def cut_node_fragments(
    training_graph: TrainingGraph, nodes: Sequence[frozenset[int]] | None = None
) -> list[Fragment | ProfileError]:
    """Cuts each node's operations out of the step, or says why that is impossible, [num_nodes].

    If sets of `nodes` are given, the nodes of each set are cut out together, [num_sets].
    """
    sets = [frozenset((node,)) for node in range(len(training_graph.graph.nodes))] if nodes is None else nodes
    groups = [_add_views(training_graph, each) for each in sets]
    return cut_fragments(training_graph.function.graph, groups, training_graph.observed)


def _add_views(training_graph: TrainingGraph, nodes: frozenset[int]) -> list[tf.Operation]:
    """Lists the operations of nodes and the views between them, which belong to no node."""
    ops, grouping = training_graph.ops, training_graph.grouping
    found = {member for node in nodes for member in grouping.groups[node].members}
    waiting = list(found)
    while waiting:
        for source, output in ops.inputs[waiting.pop()]:
            root = grouping.root((source, output))
            if source not in found and root is not None and grouping.group_of[root[0]] in nodes:
                found.add(source)
                waiting.append(source)
    return [ops.ops[index] for index in sorted(found)]


def measure_fragment(
    fragment: Fragment,
    device: str,
    *,
    overhead: CallOverhead | None = None,
    inputs: RandomInputs | None = None,
    options: TimingOptions = DEFAULT_OPTIONS,
    compiled: bool = False,
) -> Measurement:
    """Runs a fragment on a device and measures cost and workspace. A fragment compiled by XLA has none."""
    arguments = (inputs or RandomInputs(device)).make_arguments(fragment)
    single = build_fragment_function(fragment, device, compiled=compiled)
    single(*arguments)
    workspace = 0 if compiled else measure_workspace_bytes(single, arguments, device)
    timing = time_fragment(
        fragment,
        device,
        arguments=arguments,
        single=single,
        overhead=overhead or CallOverhead(device),
        options=options,
    )
    return Measurement(
        signature=fragment.signature,
        op_types=fragment.op_types,
        cost_ns=timing.cost_ns,
        relative_spread=timing.relative_spread,
        repeats=timing.repeats,
        workspace_bytes=workspace,
        measured_at_s=time.time(),
    )
