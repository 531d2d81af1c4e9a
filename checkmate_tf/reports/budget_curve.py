"""Shows the cost of each memory budget of a training step, as records, a table, a picture and a page."""

import math
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

from tabulate import tabulate

from checkmate_tf.budget import format_bytes
from checkmate_tf.errors import make_printable
from checkmate_tf.files import write_file
from checkmate_tf.reports.assets import escape_html, read_asset
from checkmate_tf.reports.pictures import choose_size_unit, escape_label, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The names of colors in page.css, which has a second set for dark mode.
_COLORS = {
    "accent": "#1f5fa8", "gradients": "#5c9f74", "workspace": "#a98bc0", "again": "#e08a3c", "resident-0": "#7b8794",
    "mark": "#cf5b16", "resident-1": "#98a3ae", "budget": "#c0392b", "text": "#1b1f24",
}  # fmt: skip
_SOLVERS = ("accent", "gradients", "workspace", "again", "resident-0")
_MEASURED, _BOUND, _BUDGET, _KNEE = "mark", "resident-1", "budget", "text"
_UNKNOWN = "-"
# matplotlib's name of each line style, with that of SVG and that of a page's legend.
_DASHES = {"-": ("none", "line"), "--": ("7 4", "line dashed"), ":": ("2 4", "line dotted")}
_WIDTH, _HEIGHT = 640, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 24, 16, 54


@dataclass(frozen=True)
class ParetoPoint:
    """The cost of one budget. `pandas.DataFrame(curve.points)` makes a table of all points.

    Args:
        status: the solver's status: OPTIMAL, FEASIBLE, INFEASIBLE or NOT_FOUND.
        is_met: whether a schedule is within the budget, by its measured peak if it ran.
        overhead: predicted overhead, such as 0.1 for a tenth more than the stock step; None without a schedule.
        least_overhead: lower bound on the overhead of every schedule with at most this predicted peak, as the solver
            proved.
        step_s: time of the fastest step that ran.
        measured_overhead: overhead of that time over the stock step, which was timed beside it.

    Example:

    >>> point = ParetoPoint(80, "auto", "FEASIBLE", True, predicted_peak_bytes=78, overhead=0.04, least_overhead=0.03)
    >>> point.is_met, point.measured_peak_bytes
    (True, None)
    """

    budget_bytes: int
    solver: str
    status: str
    is_met: bool
    predicted_peak_bytes: int | None
    overhead: float | None
    least_overhead: float
    measured_peak_bytes: int | None = None
    step_s: float | None = None
    measured_overhead: float | None = None


@dataclass(frozen=True)
class Pareto:
    """The cost of each memory budget of a model's training step. Budgets include resident bytes.

    Args:
        points: those of the solver `auto` first, the highest budget first, and then those of other solvers.
        stock_step_s: time of the stock step in the first measurement; None if no step was timed.
        least_budget_bytes: the least budget known to work.
        lower_bound_bytes: lower bound on the simulated peak of every schedule, as it is proved.
        num_solves: number of budgets for which a solver ran.
        num_reused: number of budgets whose schedule is that of another budget.
        took_s: total time.

    Example:

    >>> overheads = {100: 0.0, 80: 0.01, 60: 0.02, 40: 0.5}
    >>> points = [ParetoPoint(size, "auto", "OPTIMAL", True, size, more, 0.0) for size, more in overheads.items()]
    >>> curve = Pareto("net", "CPU:0", tuple(points), 100, None, 40, 40, 4, 0, 1.0)
    >>> curve.knee.budget_bytes
    60
    >>> curve.plot().savefig("curve.png")
    >>> curve.to_html("curve.html")
    """

    name: str
    device: str
    points: tuple[ParetoPoint, ...]
    stock_peak_bytes: int
    stock_step_s: float | None
    least_budget_bytes: int | None
    lower_bound_bytes: int | None
    num_solves: int
    num_reused: int
    took_s: float

    @property
    def knee(self) -> ParetoPoint | None:
        """The suggested budget, below which saving more costs the most: the one furthest below a straight line.

        The line leads from the highest to the lowest budget that is met. Overheads are the predicted ones, which do not
        vary from run to run. None if fewer than three budgets are met, or if none is below the line.
        """
        met = [point for point in self.points if point.is_met and point.solver == self.points[0].solver]
        if len(met) < 3:
            return None
        first, last = met[0], met[-1]

        def measure_depth(point: ParetoPoint) -> float:
            saved = (first.budget_bytes - point.budget_bytes) / (first.budget_bytes - last.budget_bytes)
            rise = (last.overhead or 0) - (first.overhead or 0)
            return saved * rise - ((point.overhead or 0) - (first.overhead or 0))

        deepest = max(met, key=measure_depth)
        return deepest if measure_depth(deepest) > 0 else None

    def __str__(self) -> str:
        table = tabulate(_make_rows(self), headers="keys", tablefmt="simple", disable_numparse=True)
        return make_printable("\n".join([self.name, table, *_make_sentences(self)]))

    def plot(self) -> "Figure":
        """Draws overhead against budget with matplotlib: predicted, measured, bounds, the knee, and refused budgets."""
        figure = new_figure(9, 5.5)
        axes = figure.subplots()
        scale, unit = choose_size_unit(max((point.budget_bytes for point in self.points), default=1))
        for line in _list_lines(self):
            sizes, overheads = zip(*line.at, strict=True)
            shown = [size / scale for size in sizes]
            axes.plot(shown, overheads, line.dash, marker=line.marker, color=_COLORS[line.color], label=line.name)
        refused = [point.budget_bytes / scale for point in _list_refused(self)]
        if refused:
            top = [_find_range(self)[1]] * len(refused)
            axes.plot(refused, top, "x", color=_COLORS[_BUDGET], label="refused: nothing keeps to the budget")
        if self.knee is not None:
            at = self.knee.budget_bytes / scale, 100 * (self.knee.overhead or 0)
            axes.plot(*at, "o", markersize=14, fillstyle="none", color=_COLORS[_KNEE], label="suggested knee")
        if self.least_budget_bytes is not None:
            label = f"least budget known to work: {format_bytes(self.least_budget_bytes)}"
            axes.axvline(self.least_budget_bytes / scale, color="0.6", linestyle=":", label=label)
        axes.set(xlabel=f"budget ({unit})", ylabel="overhead (%)")
        axes.grid(color="0.92")
        figure.suptitle(escape_label(self.name))
        figure.legend(loc="outside lower center", ncols=2)
        return figure

    def to_html(self, path: str | Path) -> None:
        """Writes one page for a browser, which loads nothing else: the curve, and a table of all points."""
        page = Template(read_asset("pareto.html")).substitute(
            name=escape_html(self.name),
            css=read_asset("page.css"),
            sentences="".join(f"<p>{escape_html(one)}</p>" for one in _make_sentences(self)),
            picture=_draw_picture(self, None),
            table=_draw_table(self),
        )
        write_file(path, page)


def draw_section(curve: Pareto, budget_bytes: int | None) -> str:
    """Draws the curve as a section of a plan's page, as HTML, with the plan's budget marked. Names are escaped."""
    sentences = "".join(f"<p>{escape_html(one)}</p>" for one in _make_sentences(curve))
    return Template(_SECTION).substitute(sentences=sentences, picture=_draw_picture(curve, budget_bytes))


_SECTION = """<section aria-labelledby="pareto-title" id="pareto">
  <div class="head"><h2 id="pareto-title">What each budget costs</h2></div>
  <div class="sentences">$sentences</div>
  $picture
</section>
"""


@dataclass(frozen=True)
class _Line:
    """A line of the picture: points as (bytes, percent), with a text for each."""

    name: str
    color: str
    dash: str
    marker: str
    at: tuple[tuple[float, float], ...]
    texts: tuple[str, ...] = ()


def _list_lines(curve: Pareto) -> list[_Line]:
    """Lists the lines of the picture: those predicted for each solver, the measured one, and the lower bound."""
    lines = []
    solvers = list(dict.fromkeys(point.solver for point in curve.points))
    for number, solver in enumerate(solvers):
        points = [one for one in curve.points if one.solver == solver and one.is_met and one.overhead is not None]
        at = tuple((one.budget_bytes, 100 * (one.overhead or 0)) for one in points)
        texts = tuple(f"{format_bytes(one.budget_bytes)}: {one.overhead:.1%} predicted" for one in points)
        lines.append(_Line(f"{solver}, predicted", _SOLVERS[number % len(_SOLVERS)], "-", "o", at, texts))
    first = [one for one in curve.points if one.solver == solvers[0]] if solvers else []
    ran = [one for one in first if one.measured_overhead is not None and one.is_met]
    at = tuple((one.budget_bytes, 100 * (one.measured_overhead or 0)) for one in ran)
    texts = tuple(
        f"{format_bytes(one.budget_bytes)}: {one.measured_overhead:.1%} measured, {one.step_s:.3g} s a step, peak "
        f"{format_bytes(one.measured_peak_bytes or 0)}"
        for one in ran
    )
    lines.append(_Line("measured", _MEASURED, "--", "s", at, texts))
    at = tuple((one.budget_bytes, 100 * one.least_overhead) for one in first if one.overhead is not None)
    lines.append(_Line("lower bound, predicted", _BOUND, ":", "", at))
    return [line for line in lines if line.at]


def _make_rows(curve: Pareto) -> list[dict[str, str]]:
    """Makes the rows of the table, with the columns in which at least one figure is known."""
    knee = curve.knee
    rows = [
        {
            "budget": format_bytes(point.budget_bytes),
            "of stock": f"{point.budget_bytes / curve.stock_peak_bytes:.0%}",
            "solver": point.solver,
            "outcome": ("the knee" if point is knee else "met") if point.is_met else _word_refusal(point),
            "overhead": _format(point.overhead, "{:.1%}".format),
            "overhead bound": f"{point.least_overhead:.1%}",
            "peak": _format(point.predicted_peak_bytes, format_bytes),
            "measured overhead": _format(point.measured_overhead, "{:.1%}".format),
            "measured step": _format(point.step_s, "{:.3g} s".format),
            "measured peak": _format(point.measured_peak_bytes, format_bytes),
        }
        for point in curve.points
    ]
    known = {name for row in rows for name, text in row.items() if text != _UNKNOWN}
    return [{name: text for name, text in row.items() if name in known} for row in rows]


def _list_refused(curve: Pareto) -> list[ParetoPoint]:
    """Lists the budgets for which the first solver found nothing."""
    return [point for point in curve.points if not point.is_met and point.solver == curve.points[0].solver]


def _word_refusal(point: ParetoPoint) -> str:
    if point.overhead is not None:
        return "refused: ran above"
    return "refused: proved" if point.status == "INFEASIBLE" else "refused: none found"


def _make_sentences(curve: Pareto) -> list[str]:
    step = "" if curve.stock_step_s is None else f", in {curve.stock_step_s:.3g} s"
    lines = [f"The stock step takes {format_bytes(curve.stock_peak_bytes)}{step}, on {curve.device}."]
    if curve.least_budget_bytes is not None and curve.lower_bound_bytes is not None:
        lines.append(
            f"The least budget known to work is {format_bytes(curve.least_budget_bytes)}; no schedule requests less "
            f"than {format_bytes(curve.lower_bound_bytes)}."
        )
    if curve.knee is not None:
        lines.append(
            f"{format_bytes(curve.knee.budget_bytes)} is the suggested budget: below it, each byte saved costs more "
            "time than above."
        )
    lines.append(
        f"The solver ran for {curve.num_solves} budgets, of which {curve.num_reused} use the schedule of another one. "
        f"Everything took {curve.took_s:.0f} s."
    )
    return lines


def _format(figure: Any, form: Any) -> str:
    return _UNKNOWN if figure is None else form(figure)


def _find_range(curve: Pareto) -> tuple[float, float]:
    """Returns the least and the largest overhead that a picture shows, in percent.

    The least is below 0 if a step ran faster than the stock step.
    """
    overheads = [overhead for line in _list_lines(curve) for _, overhead in line.at]
    return min(1.05 * min(overheads, default=0.0), 0.0), max(1.05 * max(overheads, default=0.0), 1.0)


# ---- The page --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Frame:
    """Places budgets and overheads in the picture of a page, between their least and largest values."""

    low: float
    high: float
    least: float
    most: float

    def place_budget(self, budget_bytes: float) -> float:
        share = (budget_bytes - self.low) / (self.high - self.low) if self.high > self.low else 0.5
        return round(_LEFT + (_WIDTH - _LEFT - _RIGHT) * share, 1)

    def place_overhead(self, percent: float) -> float:
        share = (percent - self.least) / (self.most - self.least)
        return round(_HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * share, 1)


def _draw_picture(curve: Pareto, budget_bytes: int | None) -> str:
    """Draws overhead against budget as SVG, with a legend below and, if given, a plan's budget marked.

    Each point has its figures as a title, and can be reached with the keyboard.
    """
    given = [] if budget_bytes is None else [budget_bytes]
    budgets = [point.budget_bytes for point in curve.points] + given
    low, high = min(budgets, default=0), max(budgets, default=1)
    frame = _Frame(low - 0.02 * (high - low), high + 0.02 * (high - low), *_find_range(curve))
    label = escape_html(f"overhead against budget, {curve.name}")
    parts = [f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="group" aria-label="{label}">', _draw_axes(frame)]
    legend = []
    if budget_bytes is not None:
        x = frame.place_budget(budget_bytes)
        parts.append(f'<line class="budget" x1="{x}" x2="{x}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}"/>')
        legend.append(_draw_key(f"budget of this plan: {format_bytes(budget_bytes)}", _BUDGET, "line dashed"))
    for line in _list_lines(curve):
        placed = [(frame.place_budget(size), frame.place_overhead(overhead)) for size, overhead in line.at]
        points = " ".join(f"{x},{y}" for x, y in placed)
        dash, look = _DASHES[line.dash]
        style = f'style="stroke: var(--{line.color})" stroke-dasharray="{dash}"'
        parts.append(f'<polyline points="{points}" {style}/>')
        parts += [_draw_point(line, x, y, text) for (x, y), text in zip(placed, line.texts, strict=False)]
        legend.append(_draw_key(line.name, line.color, look))
    if curve.knee is not None:
        x, y = frame.place_budget(curve.knee.budget_bytes), frame.place_overhead(100 * (curve.knee.overhead or 0))
        parts.append(f'<circle class="knee" cx="{x}" cy="{y}" r="8"/>')
        legend.append(_draw_key("suggested knee", _KNEE, "ring"))
    for point in _list_refused(curve):
        told = escape_html(f"{format_bytes(point.budget_bytes)}: {_word_refusal(point)}")
        at = f'x="{frame.place_budget(point.budget_bytes)}" y="{frame.place_overhead(frame.least) - 6}"'
        parts.append(
            f'<text class="refused" {at} text-anchor="middle" tabindex="0" role="img" aria-label="{told}">✕'
            f"<title>{told}</title></text>"
        )
    if _list_refused(curve):
        legend.append('<li><i class="sign">✕</i>refused</li>')
    return f'<div class="curve">{"".join(parts)}</svg></div><ul class="legend">{"".join(legend)}</ul>'


def _draw_axes(frame: _Frame) -> str:
    scale, unit = choose_size_unit(int(frame.high))
    parts = []
    for percent, text in list_ticks(frame.least, frame.most, 6):
        y = frame.place_overhead(percent)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y}" y2="{y}"/>')
        parts.append(f'<text class="tick" x="{_LEFT - 8}" y="{y}" dy="0.35em" text-anchor="end">{text}%</text>')
    for size, text in list_ticks(frame.low / scale, frame.high / scale, 6):
        x = frame.place_budget(size * scale)
        parts.append(f'<text class="tick" x="{x}" y="{_HEIGHT - 32}" text-anchor="middle">{text}</text>')
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(f'<text class="tick" x="{middle}" y="{_HEIGHT - 8}" text-anchor="middle">budget ({unit})</text>')
    return "".join(parts)


def list_ticks(low: float, high: float, count: int) -> list[tuple[float, str]]:
    """Lists round numbers from `low` to `high`, about `count` of them, each with its text; one if they are equal."""
    if high <= low:
        return [(low, f"{low:,.4g}")]
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= 0.9 * rough)
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    numbers = range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
    return [(number * step, f"{number * step:,.{decimals}f}") for number in numbers]


def _draw_point(line: _Line, x: float, y: float, text: str) -> str:
    told = escape_html(text)
    size = 4 if line.marker == "o" else 2.5
    return (
        f'<circle class="point" cx="{x}" cy="{y}" r="{size}" style="fill: var(--{line.color})" tabindex="0" role="img" '
        f'aria-label="{told}"><title>{told}</title></circle>'
    )


def _draw_key(name: str, color: str, look: str) -> str:
    return f'<li><i class="{look}" style="border-color: var(--{color})"></i>{escape_html(name)}</li>'


def _draw_table(curve: Pareto) -> str:
    rows = _make_rows(curve)
    head = "".join(f"<th>{name}</th>" for name in rows[0]) if rows else ""
    body = ("<tr>" + "".join(f"<td>{escape_html(text)}</td>" for text in row.values()) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"
