"""Shows what each memory budget of a training step costs: as records, a table, a picture and a page."""

import html
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tabulate import tabulate

from checkmate_tf.budget import format_bytes
from checkmate_tf.errors import CheckmateError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLORS = ("#1f5fa8", "#5c9f74", "#a98bc0", "#b58900", "#7b8794")
_MEASURED, _KNEE = "#cf5b16", "#c0392b"
_WIDTH, _HEIGHT, _MARGIN = 900, 420, 60


@dataclass(frozen=True)
class ParetoPoint:
    """A Pareto point says what one budget costs; `pandas.DataFrame(curve.points)` makes a table of them.

    Args:
        status: of the solver: OPTIMAL, FEASIBLE, INFEASIBLE or NOT_FOUND.
        is_met: there is a schedule within the budget, by its measured peak where it ran.
        overhead: predicted, 0.1 for a tenth more than the stock step; None where there is no schedule.
        least_overhead: no schedule with as low a predicted peak has less of it, as the solver proved.
        step_s: of the fastest step that ran.
        measured_overhead: of that time, over the stock step's.
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

    @property
    def shown_overhead(self) -> float | None:
        """Gives the measured overhead, the predicted one where none was measured."""
        return self.overhead if self.measured_overhead is None else self.measured_overhead


@dataclass(frozen=True)
class Pareto:
    """A Pareto curve says what each budget of a model's training step costs; budgets include what is resident.

    Args:
        points: of the solver `auto` first, the highest budget first, then of other solvers.
        stock_step_s: None where no step was timed.
        least_budget_bytes: the least that is known to work.
        lower_bound_bytes: no schedule takes less by the simulator, as is proved.
        num_solves: budgets that were solved for.
        num_reused: budgets whose schedule is that of another budget.
        seconds: that all of it took.

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
    seconds: float

    @property
    def knee(self) -> ParetoPoint | None:
        """Suggests the budget below which saving more costs the most: the one furthest below a straight line.

        The line leads from the highest to the lowest budget that is met. None where fewer than three are, or none is
        below the line.
        """
        met = [point for point in self.points if point.is_met and point.solver == self.points[0].solver]
        if len(met) < 3:
            return None
        first, last = met[0], met[-1]

        def measure_depth(point: ParetoPoint) -> float:
            saved = (first.budget_bytes - point.budget_bytes) / (first.budget_bytes - last.budget_bytes)
            rise = (last.shown_overhead or 0) - (first.shown_overhead or 0)
            return saved * rise - ((point.shown_overhead or 0) - (first.shown_overhead or 0))

        deepest = max(met, key=measure_depth)
        return deepest if measure_depth(deepest) > 0 else None

    def __str__(self) -> str:
        table = tabulate(_make_rows(self), headers="keys", tablefmt="simple", disable_numparse=True)
        return "\n".join([self.name, table, *_make_sentences(self)])

    def plot(self) -> "Figure":
        """Draws overhead against budget with matplotlib: predicted, measured, at the least, knee, refused budgets."""
        try:
            from matplotlib.figure import Figure
        except ImportError as error:
            raise CheckmateError("pictures need matplotlib: pip install 'checkmate_tf[plot]'") from error
        figure = Figure(figsize=(9, 5.5), layout="constrained")
        axes = figure.subplots()
        for line in _list_lines(self):
            axes.plot(*zip(*line.at, strict=True), line.dash, marker=line.marker, color=line.color, label=line.name)
        _, most = _find_range(self)
        for point in self.points:
            if not point.is_met:
                axes.plot(point.budget_bytes / 2**20, most, "x", color=_KNEE, clip_on=False)
        if any(not point.is_met for point in self.points):
            axes.plot([], [], "x", color=_KNEE, label="refused: no schedule found within the budget")
        if self.knee is not None:
            at = self.knee.budget_bytes / 2**20, 100 * (self.knee.shown_overhead or 0)
            axes.plot(*at, "o", markersize=14, fillstyle="none", color=_KNEE, label="suggested knee")
        if self.least_budget_bytes is not None:
            label = f"least budget known to work: {format_bytes(self.least_budget_bytes)}"
            axes.axvline(self.least_budget_bytes / 2**20, color="0.6", linestyle=":", label=label)
        axes.set(xlabel="budget (MiB)", ylabel="overhead (%)")
        axes.set_title(self.name.replace("$", r"\$"))
        axes.grid(color="0.92")
        axes.legend(loc="upper right")
        return figure

    def to_html(self, path: str | Path) -> None:
        """Writes one page for a browser, which fetches nothing: the curve, and a table of all points."""
        rows = _make_rows(self)
        head = "".join(f"<th>{html.escape(name)}</th>" for name in rows[0]) if rows else ""
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(text)}</td>" for text in row.values()) + "</tr>" for row in rows
        )
        sentences = "".join(f"<p>{html.escape(one)}</p>" for one in _make_sentences(self))
        name = html.escape(self.name)
        page = _PAGE.format(name=name, sentences=sentences, picture=_draw_svg(self), head=head, body=body)
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(page, encoding="utf-8")


@dataclass(frozen=True)
class _Line:
    """A line of the picture: points as (MiB, percent), with a text for each."""

    name: str
    color: str
    dash: str
    marker: str
    at: tuple[tuple[float, float], ...]
    texts: tuple[str, ...] = ()


def _list_lines(curve: Pareto) -> list[_Line]:
    """Lists the lines of the picture: predicted of each solver, measured, and the lower bound."""
    lines = []
    solvers = list(dict.fromkeys(point.solver for point in curve.points))
    for number, solver in enumerate(solvers):
        points = [one for one in curve.points if one.solver == solver and one.is_met and one.overhead is not None]
        at = tuple((one.budget_bytes / 2**20, 100 * (one.overhead or 0)) for one in points)
        texts = tuple(f"{format_bytes(one.budget_bytes)}: {one.overhead:.1%} predicted" for one in points)
        lines.append(_Line(f"{solver}, predicted", _COLORS[number % len(_COLORS)], "-", "o", at, texts))
    first = [one for one in curve.points if one.solver == solvers[0]] if solvers else []
    ran = [one for one in first if one.measured_overhead is not None and one.is_met]
    at = tuple((one.budget_bytes / 2**20, 100 * (one.measured_overhead or 0)) for one in ran)
    texts = tuple(
        f"{format_bytes(one.budget_bytes)}: {one.measured_overhead:.1%} measured, {one.step_s:.3g} s a step, peak "
        f"{format_bytes(one.measured_peak_bytes or 0)}"
        for one in ran
    )
    lines.append(_Line("measured", _MEASURED, "--", "s", at, texts))
    at = tuple((one.budget_bytes / 2**20, 100 * one.least_overhead) for one in first if one.overhead is not None)
    lines.append(_Line("lower bound, predicted", "#98a3ae", ":", "", at))
    return [line for line in lines if line.at]


def _make_rows(curve: Pareto) -> list[dict[str, str]]:
    knee = curve.knee
    return [
        {
            "budget": format_bytes(point.budget_bytes),
            "of stock": f"{point.budget_bytes / curve.stock_peak_bytes:.0%}",
            "solver": point.solver,
            "outcome": ("the knee" if point is knee else "met") if point.is_met else _word_refusal(point),
            "overhead": _format(point.overhead, "{:.1%}".format),
            "at least": f"{point.least_overhead:.1%}",
            "peak": _format(point.predicted_peak_bytes, format_bytes),
            "measured overhead": _format(point.measured_overhead, "{:.1%}".format),
            "measured step": _format(point.step_s, "{:.3g} s".format),
            "measured peak": _format(point.measured_peak_bytes, format_bytes),
        }
        for point in curve.points
    ]


def _word_refusal(point: ParetoPoint) -> str:
    if point.overhead is not None:
        return "refused: ran above"
    return "refused: proved" if point.status == "INFEASIBLE" else "refused: none found"


def _make_sentences(curve: Pareto) -> list[str]:
    step = "" if curve.stock_step_s is None else f", in {curve.stock_step_s:.3g} s"
    lines = [f"The stock step takes {format_bytes(curve.stock_peak_bytes)}{step}, on {curve.device}."]
    if curve.least_budget_bytes is not None and curve.lower_bound_bytes is not None:
        lines.append(
            f"The least budget known to work is {format_bytes(curve.least_budget_bytes)}; no schedule asks for less "
            f"than {format_bytes(curve.lower_bound_bytes)}."
        )
    if curve.knee is not None:
        lines.append(
            f"{format_bytes(curve.knee.budget_bytes)} is the suggested budget: below it, each byte saved costs more "
            "time than above."
        )
    lines.append(
        f"{curve.num_solves} budgets were solved for, {curve.num_reused} of them have the schedule of another one; all "
        f"of it took {curve.seconds:.0f} s."
    )
    return lines


def _format(figure: Any, form: Any) -> str:
    return "-" if figure is None else form(figure)


def _find_range(curve: Pareto) -> tuple[tuple[float, float], float]:
    """Finds the budgets, in MiB, and the largest overhead, in percent, that the picture shows."""
    budgets = [point.budget_bytes / 2**20 for point in curve.points]
    tallest = max((y for line in _list_lines(curve) for _, y in line.at), default=0.0)
    return (min(budgets, default=0.0), max(budgets, default=1.0)), max(1.05 * tallest, 1.0)


def _draw_svg(curve: Pareto) -> str:
    """Draws the picture of the page; each point has its figures as a title, and can be reached with the keyboard."""
    (low, high), most = _find_range(curve)
    wide, tall = _WIDTH - 2 * _MARGIN, _HEIGHT - 2 * _MARGIN

    def place(x: float, y: float) -> tuple[float, float]:
        share = (x - low) / (high - low) if high > low else 0.5
        return round(_MARGIN + wide * share, 1), round(_HEIGHT - _MARGIN - tall * max(y, 0) / most, 1)

    parts = [f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="overhead against budget">']
    for number in range(6):
        x, y = low + (high - low) * number / 5, most * number / 5
        at_x, at_y = place(x, y)
        parts.append(f'<line class="grid" x1="{_MARGIN}" x2="{_WIDTH - _MARGIN}" y1="{at_y}" y2="{at_y}"/>')
        parts.append(f'<text x="{_MARGIN - 8}" y="{at_y + 4}" text-anchor="end">{y:.3g} %</text>')
        parts.append(f'<text x="{at_x}" y="{_HEIGHT - _MARGIN + 20}" text-anchor="middle">{x:,.0f}</text>')
    parts.append(f'<text x="{_WIDTH / 2}" y="{_HEIGHT - 12}" text-anchor="middle">budget (MiB)</text>')
    lines = _list_lines(curve)
    for number, line in enumerate(lines):
        dash = {"-": "none", "--": "7 4", ":": "2 4"}[line.dash]
        placed = [place(*at) for at in line.at]
        points = " ".join(f"{x},{y}" for x, y in placed)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{line.color}" stroke-dasharray="{dash}"/>')
        for (x, y), text in zip(placed, line.texts, strict=False):
            told = html.escape(text)
            parts.append(
                f'<circle cx="{x}" cy="{y}" r="5" fill="{line.color}" tabindex="0" role="img" aria-label="{told}">'
                f"<title>{told}</title></circle>"
            )
        parts.append(_draw_legend(number, line.name, line.color))
    knee = curve.knee
    if knee is not None:
        x, y = place(knee.budget_bytes / 2**20, 100 * (knee.shown_overhead or 0))
        parts.append(f'<circle cx="{x}" cy="{y}" r="10" fill="none" stroke="{_KNEE}" stroke-width="2"/>')
        parts.append(_draw_legend(len(lines), "suggested knee (ring)", _KNEE))
    refused = [point for point in curve.points if not point.is_met]
    for point in refused:
        x, y = place(point.budget_bytes / 2**20, most)
        told = html.escape(f"{format_bytes(point.budget_bytes)}: {_word_refusal(point)}")
        parts.append(
            f'<text x="{x}" y="{y}" fill="{_KNEE}" tabindex="0" text-anchor="middle">✕<title>{told}</title></text>'
        )
    if refused:
        parts.append(_draw_legend(len(lines) + 1, "refused (✕)", _KNEE))
    return "".join([*parts, "</svg>"])


def _draw_legend(number: int, name: str, color: str) -> str:
    y = _MARGIN + 18 * number
    x = _WIDTH - _MARGIN
    return f'<text x="{x}" y="{y}" text-anchor="end" style="fill:{color}">{html.escape(name)}</text>'


_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{name}: what memory budgets cost</title>
<style>
:root {{ color-scheme: light dark; --line: #dfe3e7; }}
@media (prefers-color-scheme: dark) {{ :root {{ --line: #32383f; }} }}
body {{ margin: 0 auto; padding: 20px 24px; max-width: 1100px; font: 14px/1.45 system-ui, sans-serif; }}
h1 {{ font-size: 22px; overflow-wrap: anywhere; }}
p {{ margin: 2px 0; }}
svg {{ width: 100%; height: auto; margin: 12px 0; font-size: 12px; }}
svg text {{ fill: currentColor; }}
svg .grid {{ stroke: var(--line); }}
.table {{ overflow-x: auto; }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; white-space: nowrap; }}
th, td {{ padding: 4px 10px; text-align: right; border-bottom: 1px solid var(--line); }}
</style></head>
<body><h1>{name}: what memory budgets cost</h1>
{sentences}
{picture}
<div class="table" tabindex="0"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>
</body></html>
"""
