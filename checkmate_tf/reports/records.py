"""Lists facts about a plan as plain records: the values in memory at the peak, recomputations, and offloaded values.

`pandas.DataFrame(records)` makes a table of them.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from checkmate_tf.reports.view import KINDS, WORKSPACE, PlanView, Timeline

_SINGULAR = dict(
    zip(KINDS, ("activation", "activation computed again", "activation copied back", "gradient"), strict=True)
)


@dataclass(frozen=True, slots=True)
class PeakValue:
    """Something that is in memory at the peak of a step.

    Args:
        step: "stock" or "rematerialized", the step that has this peak.
        kind: "activation", "activation computed again", "activation copied back", "gradient", "workspace", or a part of
            the resident bytes.
        size_bytes: its own memory. The sizes of a step add up to the step's predicted peak.
        name: name of the tensor; of the running node, for its workspace.
        op: the operation that computes it.
        shape: None unless it is one tensor.

    Example:

    >>> first = plan.peak_values()[0]
    >>> first.step, first.kind, first.size_bytes
    ('stock', 'activation', 1000)
    """

    step: str
    kind: str
    size_bytes: int
    layer: str
    name: str
    op: str
    source: str
    shape: tuple[int, ...] | None
    dtype: str


@dataclass(frozen=True, slots=True)
class Recomputation:
    """A node that is computed again.

    Args:
        name: name of the node.
        times: number of computations after the first.
        cost: cost of those, in the `cost_unit` of the graph.
        freed_bytes: bytes of its values that are freed and computed again.
        for_layers: the layers with nodes whose first computation follows from it, in their order.
        readers: the names of the nodes that read the recomputed values, in their order.

    Example:

    >>> again = plan.recomputed[0]
    >>> again.name, again.times, again.freed_bytes
    ('f0', 1, 1000)
    """

    name: str
    layer: str
    op: str
    source: str
    times: int
    cost: int
    freed_bytes: int
    for_layers: tuple[str, ...]
    readers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OffloadedValue:
    """A value that is copied out of memory once in a step, and back.

    Args:
        name: name of the tensor.
        layer: the layer that computes it.
        size_bytes: its size, which is copied out once.
        times: number of times that it is copied back.

    Example:

    >>> value = OffloadedValue("dense/Relu:0", "dense", size_bytes=4096, times=2)
    >>> value.size_bytes * value.times
    8192
    """

    name: str
    layer: str
    size_bytes: int
    times: int


def list_offloaded(view: PlanView) -> tuple[OffloadedValue, ...]:
    """Lists the values that are copied out of memory and back, the largest first.

    >>> list_offloaded(view)
    ()
    """
    times = Counter(value for _, value in view.schedule.fetches)
    graph = view.graph
    found = (
        OffloadedValue(
            graph.values[value].name,
            view.get_origin(graph.producer[value]).layer,
            graph.values[value].size_bytes,
            number,
        )
        for value, number in times.items()
    )
    return tuple(sorted(found, key=lambda one: (-one.size_bytes, one.name)))


def list_peak_values(view: PlanView) -> tuple[PeakValue, ...]:
    """Lists the values in memory at the predicted peaks of the stock and the rematerialized step, the largest first.

    >>> [(value.kind, value.size_bytes) for value in list_peak_values(view) if value.step == "stock"]
    [('activation', 1000), ('activation', 1000), ('activation', 1000), ('activation', 1000), ('gradient', 1000)]
    """
    both = {"stock": view.stock, "rematerialized": view.rematerialized}
    return tuple(value for step, timeline in both.items() for value in _list_values(view, step, timeline))


def _list_values(view: PlanView, step: str, timeline: Timeline) -> list[PeakValue]:
    graph, storage, peak = view.graph, timeline.storage, timeline.simulation.peak_position
    found = [PeakValue(step, name, size, "", name, "", "", None, "") for name, size in view.resident_parts.items()]
    running = graph.nodes[timeline.order[peak]]
    if running.workspace_bytes:
        origin = view.get_origin(timeline.order[peak])
        found.append(
            PeakValue(
                step, WORKSPACE, running.workspace_bytes, origin.layer, running.name, running.op_type, origin.source,
                None, "",
            )
        )  # fmt: skip
    for copy in timeline.list_live(peak):
        number = int(storage.value[copy])
        value, producer, described = graph.values[number], graph.producer[number], view.origins.values[number]
        if not value.size_bytes:
            continue
        origin = view.get_origin(producer)
        found.append(
            PeakValue(
                step, _SINGULAR[KINDS[timeline.kind[copy]]], value.size_bytes, origin.layer, value.name,
                graph.nodes[producer].op_type, origin.source, described.shape, described.dtype,
            )
        )  # fmt: skip
    return sorted(found, key=lambda one: -one.size_bytes)


def list_recomputations(view: PlanView) -> tuple[Recomputation, ...]:
    """Lists the nodes that are computed again, the most expensive first.

    >>> [(one.name, one.times, one.freed_bytes, one.readers) for one in list_recomputations(view)]
    [('f0', 1, 1000, ('b1', 'b0'))]
    """
    positions: dict[int, list[int]] = {}
    for position, (node, again) in enumerate(
        zip(view.schedule.order, view.rematerialized.is_again.tolist(), strict=True)
    ):
        if again:
            positions.setdefault(node, []).append(position)
    found = [_describe(view, node, again) for node, again in positions.items()]
    return tuple(sorted(found, key=lambda one: -one.cost))


def _describe(view: PlanView, node: int, again: list[int]) -> Recomputation:
    timeline, graph = view.rematerialized, view.graph
    readers = [reader for position in again for reader in timeline.readers[position]]
    read = {value for reader in readers for value in graph.nodes[timeline.order[reader]].inputs}
    served = sorted({int(timeline.served[position]) for position in again} - {-1})
    origin = view.get_origin(node)
    return Recomputation(
        name=graph.nodes[node].name,
        layer=origin.layer,
        op=graph.nodes[node].op_type,
        source=origin.source,
        times=len(again),
        cost=len(again) * graph.nodes[node].cost,
        freed_bytes=sum(graph.values[value].size_bytes for value in graph.nodes[node].outputs if value in read),
        for_layers=tuple(dict.fromkeys(view.get_label(timeline.order[position]) for position in served)),
        readers=tuple(dict.fromkeys(graph.nodes[timeline.order[reader]].name for reader in sorted(readers))),
    )


def list_kinds(view: PlanView, timeline: Timeline) -> Iterator[tuple[str, int]]:
    """Lists the bytes of each kind at the peak: resident parts, values and workspace. They add up to the peak."""
    yield from view.resident_parts.items()
    for name, band in timeline.bands.items():
        yield name, int(band[timeline.simulation.peak_position])
