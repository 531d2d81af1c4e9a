"""Writes a plan as one page for a browser, which loads nothing else: timeline, live values, schedule, tables, search.

`page.html` is the frame, `page.css` the style, and `page.js` draws the page and responds to input. They lie beside this
file.
"""

import json
import platform
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from string import Template
from typing import Any

from checkmate_tf.files import write_file
from checkmate_tf.reports.assets import escape_html, read_asset
from checkmate_tf.reports.budget_curve import Pareto, draw_section
from checkmate_tf.reports.records import list_recomputations
from checkmate_tf.reports.summary import list_sentences
from checkmate_tf.reports.view import KINDS, PlanView, Timeline

_PACKAGES = {"checkmate_tf": "checkmate_tf", "TensorFlow": "tensorflow", "Keras": "keras", "NumPy": "numpy"}


def save_page(view: PlanView, path: str | Path, *, pareto: Pareto | None = None) -> None:
    """Writes the page of a plan. With a curve, the page has a section on the costs of other budgets.

    >>> save_page(view, "plan.html")
    >>> "chain-3" in Path("plan.html").read_text(encoding="utf-8")
    True
    """
    write_file(path, make_page(view, pareto=pareto))


def make_page(view: PlanView, *, pareto: Pareto | None = None) -> str:
    """Returns the page of a plan, as HTML. All names in it are escaped.

    >>> make_page(view).startswith("<!DOCTYPE html>")
    True
    """
    # No text may end its script element, or start another.
    data = json.dumps(list_data(view), separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return Template(read_asset("page.html")).substitute(
        title=escape_html(f"{view.name}: plan of a training step"),
        name=escape_html(view.name),
        sentences="".join(f"<p>{escape_html(sentence)}</p>" for sentence in list_sentences(view)),
        environment="".join(
            f"<dt>{escape_html(name)}</dt><dd>{escape_html(text)}</dd>"
            for name, text in describe_environment(view).items()
        ),
        pareto="" if pareto is None else draw_section(pareto, view.budget_bytes),
        css=read_asset("page.css"),
        js=read_asset("page.js"),
        data=data,
    )


def list_data(view: PlanView) -> dict[str, Any]:
    """Lists the data that the page's script draws, in columns: by node, by value and by position.

    >>> list_data(view)["rematerialized"]["peak_bytes"]
    4000
    """
    graph = view.graph
    number = {node.name: index for index, node in enumerate(graph.nodes)}
    layers, types = _Index(), _Index()
    operations, sources = _Index(), _Index()
    nodes = {
        "name": [node.name for node in graph.nodes],
        "layer": [layers.find(view.get_label(index)) for index in range(len(graph.nodes))],
        "op": [operations.find(node.op_type) for node in graph.nodes],
        "source": [sources.find(origin.source) for origin in view.origins.nodes],
        "backward": [int(node.is_backward) for node in graph.nodes],
        "workspace": [int(node.workspace_bytes) for node in graph.nodes],
        "cost": [int(node.cost) for node in graph.nodes],
    }
    values = {
        "size": graph.sizes_bytes.tolist(),
        "node": list(graph.producer),
        "type": [types.find(str(described)) for described in view.origins.values],
    }
    recomputed = [
        {
            "node": number[one.name],
            "times": one.times,
            "cost": int(one.cost),
            "freed": one.freed_bytes,
            "for": [layers.find(layer) for layer in one.for_layers],
            "readers": [number[name] for name in one.readers],
        }
        for one in list_recomputations(view)
    ]
    return {
        "unit": graph.cost_unit,
        "budget": view.budget_bytes,
        "measured": view.measured,
        "how": view.how,
        "resident": list(view.resident_parts.items()),
        "resident_bytes": int(graph.resident_bytes),
        "baseline_cost": graph.baseline_cost,
        "solution": _describe_solution(view),
        "kinds": KINDS,
        "layers": layers.texts,
        "types": types.texts,
        "operations": operations.texts,
        "sources": sources.texts,
        "nodes": nodes,
        "values": values,
        "stock": _list_positions(view.stock),
        "rematerialized": _list_positions(view.rematerialized),
        "recomputed": recomputed,
    }


class _Index:
    """Numbers texts in the order in which they come, each once."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def find(self, text: str) -> int:
        """Returns the number of a text."""
        return self._numbers.setdefault(text, len(self._numbers))

    @property
    def texts(self) -> list[str]:
        """Lists all texts by their numbers."""
        return list(self._numbers)


def _list_positions(timeline: Timeline) -> dict[str, Any]:
    storage = timeline.storage
    return {
        "order": timeline.order.tolist(),
        "begin": timeline.begin.tolist(),
        "again": timeline.is_again.nonzero()[0].tolist(),
        "served": timeline.served[timeline.is_again].tolist(),
        "value": storage.value.tolist(),
        "start": storage.start.tolist(),
        "length": (storage.end - storage.start).tolist(),
        "kind": timeline.kind.tolist(),
        "peak_bytes": timeline.simulation.peak_bytes,
        "peak_position": timeline.simulation.peak_position,
        "backward_position": timeline.backward_position,
    }


def _describe_solution(view: PlanView) -> Mapping[str, Any] | None:
    solution = view.solution
    if solution is None:
        return None
    return {
        "solver": solution.solver,
        "seconds": solution.solve_time_s,
        "status": str(solution.status),
        "gap": solution.gap,
        "order": solution.bound_order,
    }


def describe_environment(view: PlanView) -> dict[str, str]:
    """Lists the versions with which the page is made, the device, and the source of the graph, each by its name.

    >>> describe_environment(view)["Python"].startswith("3.")
    True
    """
    found = {"device": view.device, "graph": _describe_graph(view), "unit of costs": view.graph.cost_unit}
    found |= {name: version for name, version in _find_versions(_PACKAGES.items())}
    found |= {"Python": platform.python_version(), "system": f"{platform.system()} {platform.machine()}"}
    return {name: text for name, text in found.items() if text}


def _describe_graph(view: PlanView) -> str:
    graph = view.graph
    source = f", from {graph.source}" if graph.source else ""
    return f"{len(graph.nodes):,} nodes, {len(graph.values):,} values, {len(view.schedule):,} positions{source}"


def _find_versions(packages: Iterable[tuple[str, str]]) -> Iterable[tuple[str, str]]:
    for name, package in packages:
        try:
            yield name, metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
