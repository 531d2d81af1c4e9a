"""Writes a plan as a trace in Chrome's JSON format, which Perfetto (ui.perfetto.dev) and chrome://tracing show.

The format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU ("Trace Event Format").
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from checkmate_tf.files import write_file
from checkmate_tf.reports.view import PlanView, Timeline


def save_trace(view: PlanView, path: str | Path) -> None:
    """Writes the trace of a plan.

    >>> save_trace(view, "plan.json")
    >>> len(json.loads(Path("plan.json").read_text(encoding="utf-8"))["traceEvents"]) > 0
    True
    """
    write_file(path, json.dumps(make_trace(view), separators=(",", ":"), allow_nan=False))


def make_trace(view: PlanView) -> dict[str, Any]:
    """Returns the trace of a plan. The stock and the rematerialized step are processes, with a track and counters each.

    A node lasts its cost, in microseconds. If costs are not times, a unit is shown as a microsecond. Recomputations are
    in the category "computed again".

    >>> events = make_trace(view)["traceEvents"]
    >>> [event["name"] for event in events if event.get("cat") == "computed again"]
    ['f0 again']
    """
    events = [
        *_list_events(view, view.stock, 1, "stock step"),
        *_list_events(view, view.rematerialized, 2, "rematerialized step"),
    ]
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"name": view.name, "cost_unit": view.graph.cost_unit, "budget_bytes": view.budget_bytes},
    }


def _list_events(view: PlanView, timeline: Timeline, process: int, name: str) -> Iterator[dict[str, Any]]:
    yield {"ph": "M", "pid": process, "name": "process_name", "args": {"name": f"{view.name}: {name}"}}
    yield {"ph": "M", "pid": process, "name": "process_sort_index", "args": {"sort_index": process}}
    yield {"ph": "M", "pid": process, "tid": 1, "name": "thread_name", "args": {"name": "nodes"}}
    times_us = (timeline.begin / 1000 if view.graph.cost_unit == "ns" else timeline.begin).tolist()
    resident = view.resident_parts
    for position, memory_bytes in enumerate(timeline.simulation.memory_bytes.tolist()):
        held = {kind: int(band[position]) for kind, band in timeline.bands.items()}
        yield _describe_position(view, timeline, position, process, times_us)
        yield from _count(process, times_us[position], memory_bytes, {**resident, **held})
    yield from _list_transfers(view, timeline, process)
    nothing = dict.fromkeys(timeline.bands, 0)
    yield from _count(process, times_us[-1], view.graph.resident_bytes, {**resident, **nothing})


def _list_transfers(view: PlanView, timeline: Timeline, process: int) -> Iterator[dict[str, Any]]:
    """Lists the copies out of memory and back, each direction on a track of its own."""
    transfers = timeline.timing.transfers
    for track, name in ((2, "copies out"), (3, "copies back")) if transfers else ():
        yield {"ph": "M", "pid": process, "tid": track, "name": "thread_name", "args": {"name": name}}
    for one in transfers:
        begin_us, end_us = (time / 1000 if view.graph.cost_unit == "ns" else time for time in (one.begin, one.end))
        value = view.graph.values[one.value]
        yield {
            "ph": "X",
            "pid": process,
            "tid": 3 if one.is_fetch else 2,
            "name": view.get_label(view.graph.producer[one.value]),
            "cat": "offload",
            "ts": begin_us,
            "dur": end_us - begin_us,
            "args": {"value": value.name, "size (bytes)": value.size_bytes},
        }


def _count(process: int, time_us: float, memory_bytes: int, parts: dict[str, int]) -> Iterator[dict[str, Any]]:
    """Lists the events of the counters. Perfetto shows each entry of `args` as a counter of its own."""
    counter = {"ph": "C", "pid": process, "ts": time_us}
    yield {**counter, "name": "memory (bytes)", "args": {"in use": memory_bytes}}
    yield {**counter, "name": "memory by kind (bytes)", "args": parts}


def _describe_position(
    view: PlanView, timeline: Timeline, position: int, process: int, times_us: list[float]
) -> dict[str, Any]:
    number = int(timeline.order[position])
    node, again, served = view.graph.nodes[number], bool(timeline.is_again[position]), int(timeline.served[position])
    label = view.get_label(number)
    details = {
        "operation": node.op_type,
        "node": node.name,
        "source": view.get_origin(number).source,
        "computed for": view.get_label(timeline.order[served]) if served >= 0 else "",
        "position": position + 1,
        "memory (bytes)": int(timeline.simulation.memory_bytes[position]),
    }
    event = {
        "ph": "X",
        "pid": process,
        "tid": 1,
        "name": f"{label} again" if again else label,
        "cat": "computed again" if again else "backward" if node.is_backward else "forward",
        "ts": times_us[position],
        "dur": times_us[position + 1] - times_us[position],
        "args": {key: value for key, value in details.items() if value != ""},
    }
    return {**event, "cname": "bad"} if again else event
