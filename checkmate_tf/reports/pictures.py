"""Draws a plan with matplotlib: memory over time, and Checkmate's R matrix."""

import base64
import io
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from checkmate_tf.budget import format_bytes
from checkmate_tf.errors import CheckmateError, make_printable
from checkmate_tf.files import write_file
from checkmate_tf.reports.assets import escape_html
from checkmate_tf.reports.summary import shorten, summarize
from checkmate_tf.reports.view import KINDS, WORKSPACE, PlanView, Timeline

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLORS = dict(zip((*KINDS, WORKSPACE), ("#4a7fb5", "#e08a3c", "#3a9ea5", "#5c9f74", "#a98bc0"), strict=True))
_RESIDENT_COLORS = ("#7b8794", "#98a3ae", "#b1bac3", "#c7ced5", "#d9dee3", "#e6e9ec")
_MARK, _BUDGET, _MUTED = "#cf5b16", "#c0392b", "#59636e"
# A part of the resident bytes that is thinner than this share of the picture has no label.
_LEAST_NAMED = 0.002
# Up to this number, each node has its name on the axes of a schedule. Beyond it, this number of layers does.
_MOST_NAMED_NODES = 60
_MOST_NAMED_LAYERS = 16


def plot_memory(view: PlanView) -> "Figure":
    """Draws memory over time, stock above rematerialized: its parts, the budget, the peaks, the backward pass's start.

    >>> figure = plot_memory(view)
    >>> len(figure.axes)
    2
    """
    figure = new_figure(11, 6.5)
    _fill_memory(figure, view)
    figure.suptitle(f"{escape_label(view.name)}: memory over a training step", fontsize=12, fontweight="bold")
    return figure


def plot_schedule(view: PlanView) -> "Figure":
    """Draws Checkmate's R matrix: stages down, nodes across, a mark for each computation.

    >>> figure = plot_schedule(view)
    >>> figure.axes[0].get_ylabel()
    'stage'
    """
    figure = new_figure(8, 8)
    draw_schedule(figure.subplots(), view)
    figure.suptitle(f"{escape_label(view.name)}: recomputations", fontsize=12, fontweight="bold")
    return figure


def save_picture(view: PlanView, path: str | Path) -> None:
    """Writes a picture of the recomputations, with memory beside them, as PNG, PDF or SVG.

    >>> save_picture(view, "plan.png")
    """
    figure = new_figure(16, 7)
    ((left, right),) = figure.subfigures(1, 2, squeeze=False, width_ratios=(1, 1.35))
    draw_schedule(left.subplots(), view)
    _fill_memory(right, view)
    figure.suptitle(escape_label(view.name), fontweight="bold")
    save_figure(figure, path)


def make_notebook_view(view: PlanView) -> str:
    """Returns the view of a plan in a notebook, as HTML: its summary and, with matplotlib installed, its memory.

    >>> make_notebook_view(view).startswith("<pre>The training step of &#x27;chain-3&#x27;")
    True
    """
    text = f"<pre>{escape_html(summarize(view))}</pre>"
    try:
        figure = plot_memory(view)
    except CheckmateError:  # matplotlib is not installed.
        return text
    return text + _embed(figure)


def new_figure(width: float, height: float) -> "Figure":
    """Returns a figure without pyplot, which would need global state and a window system. Notebooks show it, too.

    Raises CheckmateError if matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise CheckmateError("pictures need matplotlib: pip install 'checkmate_tf[plot]'") from error

    class NotebookFigure(Figure):
        def _repr_html_(self) -> str:
            return _embed(self)

    return NotebookFigure(figsize=(width, height), layout="constrained")


def _embed(figure: "Figure") -> str:
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=80)
    encoded = base64.b64encode(picture.getvalue()).decode("ascii")
    return f'<img alt="{escape_html(figure.get_suptitle())}" src="data:image/png;base64,{encoded}">'


def save_figure(figure: "Figure", path: str | Path) -> None:
    """Writes a figure, as PNG if the name has no ending. Raises CheckmateError as `check_picture` does."""
    check_picture(path)
    picture = io.BytesIO()
    figure.savefig(picture, format=_find_kind(path), dpi=120)
    write_file(path, picture.getvalue())


def check_picture(path: str | Path) -> None:
    """Raises CheckmateError if the name is not one of a picture file, or if matplotlib is not installed."""
    kinds = new_figure(1, 1).canvas.get_supported_filetypes()
    if _find_kind(path) not in kinds:
        raise CheckmateError(
            f"cannot write the picture {path}: {_find_kind(path)} is none of {', '.join(sorted(kinds))}; use a name "
            "such as schedule.png"
        )


def _find_kind(path: str | Path) -> str:
    return Path(path).suffix.removeprefix(".").lower() or "png"


def escape_label(name: str, width: int = 80) -> str:
    """Shortens a name, and escapes it so that matplotlib reads no formula in it and can draw all its characters."""
    return shorten(make_printable(name), width).replace("$", r"\$")


# ---- Memory ----------------------------------------------------------------------------------------------------------


def _fill_memory(figure: "Figure", view: PlanView) -> None:
    upper, lower = figure.subplots(2, 1, sharex=True, sharey=True)
    draw_memory(upper, view, view.stock, "stock")
    draw_memory(lower, view, view.rematerialized, "rematerialized")
    upper.set_xlabel("")
    handles: dict[str, Any] = {}
    for axes in (lower, upper):
        found, labels = axes.get_legend_handles_labels()
        handles |= dict(zip(labels, found, strict=True))
    figure.legend(
        list(handles.values()), list(handles), loc="outside lower center", ncols=4, frameon=False, fontsize=8.5
    )


def draw_memory(axes: "Axes", view: PlanView, timeline: Timeline, title: str) -> None:
    """Draws the parts of memory over time, stacked, with the budget and the peak."""
    divisor, unit = _choose_time_unit(view)
    scale, size_unit = choose_size_unit(max(view.predicted))
    edges = timeline.begin / divisor
    floor = np.zeros(len(timeline.order))
    for name, band, color in _list_bands(view, timeline):
        ceiling = floor + band / scale
        is_named = band.max() > _LEAST_NAMED * view.predicted[0]
        axes.fill_between(
            edges, np.append(floor, floor[-1]), np.append(ceiling, ceiling[-1]),
            step="post", color=color, linewidth=0, label=name if is_named else None,
        )  # fmt: skip
        floor = ceiling
    if view.budget_bytes is not None:
        axes.axhline(view.budget_bytes / scale, color=_BUDGET, linestyle="--", linewidth=1.2, label="budget")
    if timeline.backward_position < len(timeline.order):
        axes.axvline(edges[timeline.backward_position], color=_MUTED, linestyle=":", linewidth=1)
        axes.annotate(
            "forward ", (edges[timeline.backward_position], 1), (-2, -3), xycoords=("data", "axes fraction"),
            textcoords="offset points", ha="right", va="top", fontsize=8, color=_MUTED,
        )  # fmt: skip
        axes.annotate(
            " backward", (edges[timeline.backward_position], 1), (2, -3), xycoords=("data", "axes fraction"),
            textcoords="offset points", ha="left", va="top", fontsize=8, color=_MUTED,
        )  # fmt: skip
    again = np.nonzero(timeline.is_again)[0]
    if len(again):
        axes.plot(
            edges[again], np.full(len(again), -0.035), "|", color=_MARK, markersize=6, clip_on=False,
            transform=axes.get_xaxis_transform(), label="computed again",
        )  # fmt: skip
    _mark_peak(axes, view, timeline, edges, scale)
    most = max(*view.predicted, view.budget_bytes or 1)
    axes.set_ylim(0, 1.25 * most / scale)
    axes.set_xlim(0, max(view.stock.begin[-1], view.rematerialized.begin[-1], 1) / divisor)
    axes.set_xlabel(f"time ({unit})" if view.graph.cost_unit == "ns" else f"cost ({unit})")
    axes.set_ylabel(f"memory ({size_unit})")
    axes.set_title(title, loc="left", fontsize=10)
    axes.tick_params(axis="x", pad=9)
    axes.spines[["top", "right"]].set_visible(False)


def _list_bands(view: PlanView, timeline: Timeline) -> Iterator[tuple[str, np.ndarray, str]]:
    for (name, num_bytes), color in zip(view.resident_parts.items(), _RESIDENT_COLORS, strict=False):
        yield name, np.full(len(timeline.order), num_bytes), color
    for name, band in timeline.bands.items():
        yield name, band, _COLORS[name]


def _mark_peak(axes: "Axes", view: PlanView, timeline: Timeline, edges: np.ndarray, scale: int) -> None:
    position = timeline.simulation.peak_position
    middle = (edges[position] + edges[position + 1]) / 2
    place = escape_label(view.get_label(timeline.order[position]), 40)
    label = f"peak {format_bytes(timeline.simulation.peak_bytes)}, at {place}"
    share = middle / max(edges[-1], 1e-12)
    axes.annotate(
        label, (middle, timeline.simulation.peak_bytes / scale), (0, 9), textcoords="offset points", fontsize=8.5,
        ha="left" if share < 0.25 else "right" if share > 0.75 else "center", va="bottom",
        arrowprops={"arrowstyle": "-|>", "color": "black", "shrinkA": 0, "shrinkB": 0},
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 1, "alpha": 0.8},
    )  # fmt: skip


def _choose_time_unit(view: PlanView) -> tuple[float, str]:
    if view.graph.cost_unit != "ns":
        return 1.0, view.graph.cost_unit
    longest = max(view.stock.begin[-1], view.rematerialized.begin[-1])
    units = ((10**9, "s"), (10**6, "ms"), (10**3, "µs"))
    return next(((float(ns), unit) for ns, unit in units if ns <= longest), (1.0, "ns"))


def choose_size_unit(most_bytes: int) -> tuple[int, str]:
    """Returns the unit of an axis that suits its largest value: the unit's bytes and its name.

    >>> choose_size_unit(3 * 2**20)
    (1048576, 'MiB')
    """
    units = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
    return next(((size, unit) for size, unit in units if most_bytes >= 2 * size), (1, "bytes"))


# ---- The schedule ----------------------------------------------------------------------------------------------------


def draw_schedule(axes: "Axes", view: PlanView) -> None:
    """Draws Checkmate's R matrix: stages down, nodes across, with a mark for each computation.

    A stage ends with a first computation, in the schedule's own order, and nodes are numbered in that order. Every
    schedule therefore has the diagonal, and marks to the left of it are recomputations.
    """
    rank: dict[int, int] = {}
    stages, ranks = [], []
    for node in view.schedule.order:
        # A recomputation belongs to the stage of the first computation that follows it.
        stages.append(len(rank))
        ranks.append(rank.setdefault(node, len(rank)))
    again = view.rematerialized.is_again
    across, down = np.array(ranks), np.array(stages)
    num_nodes = len(rank)
    backward = [rank[node] for node in rank if view.graph.nodes[node].is_backward]
    if backward:
        split = min(backward) - 0.5
        axes.axhspan(split, num_nodes - 0.5, xmax=(split + 0.5) / num_nodes, color="#eef1f4", zorder=0)
        axes.axhline(split, color="#c3cad2", linewidth=0.8, zorder=1)
        axes.axvline(split, color="#c3cad2", linewidth=0.8, zorder=1)
    size = 0.8 * 380 / num_nodes
    for is_mine, color, least, label in (
        (~again, "#98a3ae", 1.5 if num_nodes < 500 else 0.8, "computed first"),
        (again, _MARK, 3.5 if num_nodes < 500 else 1.8, "computed again"),
    ):
        axes.plot(across[is_mine], down[is_mine], "s", markersize=max(least, size), markeredgewidth=0, color=color)
        axes.plot([], [], "s", markersize=5, color=color, label=label)
    limit = num_nodes - 0.5
    axes.set(xlim=(-0.5, limit), ylim=(limit, -0.5), xlabel="node, by first computation", ylabel="stage")
    axes.set_aspect("equal")
    _name_nodes(axes, view, list(rank))
    axes.legend(loc="upper right", fontsize=8.5, frameon=False)


def _name_nodes(axes: "Axes", view: PlanView, order: list[int]) -> None:
    """Labels the nodes or, if there are many, the layers of nodes at even distances."""
    many = len(order) > _MOST_NAMED_NODES
    chosen = np.linspace(0, len(order) - 1, _MOST_NAMED_LAYERS if many else len(order)).astype(int).tolist()
    labels = [escape_label(view.get_label(order[place]), 24) for place in chosen]
    axes.set_xticks(chosen, labels, rotation=90, fontsize=8 if len(chosen) <= 30 else 6)
    axes.tick_params(axis="y", labelsize=8)
