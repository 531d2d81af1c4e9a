"""The rows of the comparison with TensorFlow's and Keras's own recomputation, and the page that they make."""

from dataclasses import dataclass, fields
from pathlib import Path
from statistics import geometric_mean
from typing import Any, Literal, get_args

from tabulate import tabulate

from experiments import running

# What is put around each block, or that Grappler recomputes in the whole step. A stock model has the same blocks with
# nothing around them.
Way = Literal["stock", "tf.recompute_grad", "keras.remat", "Grappler"]
PEERS: tuple[Way, ...] = get_args(Way)[1:]
# Of the way that a row says: ours, with the peak of that peer as its budget.
OURS = "rematerialize at "
WAYS = ("stock", *PEERS, *(OURS + peer for peer in PEERS))
_COMMAND = "python -m experiments.peers.table run"


@dataclass(frozen=True)
class Row:
    """What was measured of a model trained one way; None where it was not, with the reason in `error`.

    Args:
        peak_bytes: what the model took, at most, from before it was built.
        gradient_error: of one step from equal weights, the largest difference to stock of any variable's gradient
            over the largest gradient of that variable.
        recomputed: nodes that are computed again.
    """

    model: str
    way: str
    peak_bytes: int | None = None
    budget_bytes: int | None = None
    predicted_overhead: float | None = None
    time_over_stock: float | None = None
    first_step_s: float | None = None
    stock_first_step_s: float | None = None
    planning_s: float | None = None
    recomputed: int | None = None
    gradient_error: float | None = None
    commit: str = ""
    machine: str = ""
    tensorflow: str = ""
    error: str = ""


COLUMNS = tuple(field.name for field in fields(Row))


def read_rows(path: Path) -> list[Row]:
    """The results so far."""
    return [Row(**{key: _value(key, text) for key, text in row.items()}) for row in running.read_rows(path)]


_TEXTS = {"model", "way", "commit", "machine", "tensorflow", "error"}
_INTEGERS = {"peak_bytes", "budget_bytes", "recomputed"}


def _value(key: str, text: str) -> Any:
    if key in _TEXTS:
        return text
    return None if text == "" else int(text) if key in _INTEGERS else float(text)


def as_page(rows: list[Row]) -> str:
    """The results as Markdown: models by way, and how the ways compare over all models."""
    names, ways = _models(rows), list(WAYS)
    rows = sorted(rows, key=lambda row: (names.index(row.model), ways.index(row.way)))
    stock_bytes = {row.model: row.peak_bytes for row in rows if row.way == "stock" and row.peak_bytes}
    headers = ["model", "way", "peak, MiB", "of stock", "budget, MiB", "step time over stock", "overhead, predicted"]
    headers += ["nodes recomputed", "first step, s", "stock's, s", "planning, s", "gradients differ by", "refused"]
    cells = [_cells(row, stock_bytes.get(row.model)) for row in rows]
    table = tabulate(cells, headers, tablefmt="pipe", disable_numparse=True, colalign=["left"] * 2 + ["right"] * 10)
    origins = sorted({f"{row.machine}, TensorFlow {row.tensorflow}, commit {row.commit}" for row in rows})
    return _PAGE.format(
        command=_COMMAND,
        show=_COMMAND.replace("run", "show"),
        origins="; ".join(origins),
        table=table,
        summary=tabulate(_summary(rows), _SUMMARY_HEADERS, tablefmt="pipe", disable_numparse=True),
    )


def _models(rows: list[Row]) -> list[str]:
    return list(dict.fromkeys(row.model for row in rows))


_SUMMARY_HEADERS = ["peer", "models", "peer's step time over stock", "rematerialize's", "faster at equal memory"]

_PAGE = """# rematerialize, tf.recompute_grad, keras.remat and Grappler at equal memory

Written by `{show}` from `peers.csv`, which `{command}` measures. {origins}. oneDNN is on, and batches have eight rows.

`tf.recompute_grad` and `keras.remat` wrap each block of a model. Grappler is TensorFlow's own graph optimizer: with
`memory_optimization` set to `RECOMPUTATION_HEURISTICS`, it recomputes each operation of a list of cheap ones whose
result a gradient reads. The budget of `rematerialize` is the measured peak of the peer. Memory is in MiB (2^20 bytes),
by TensorFlow's allocator: the highest over steps of `train_on_batch` and of `fit` on arrays, with weights, optimizer
state and batches. Step times are medians of ratios of paired steps. The time of "stock" is that of a second stock model
divided by the first, so its difference from 1 is noise. A first step includes tracing. Gradients are those of one step
from equal weights, compared with the stock step's, relative to a variable's largest gradient.

{table}

The figures are geometric means over the models for which both were measured; "faster" counts models.

{summary}
"""


def _cells(row: Row, stock_bytes: int | None) -> list[str]:
    share = None if row.peak_bytes is None or not stock_bytes else row.peak_bytes / stock_bytes
    return [
        row.model,
        row.way,
        _text(row.peak_bytes and row.peak_bytes / 2**20, ".1f"),
        _text(share, ".0%"),
        _text(row.budget_bytes and row.budget_bytes / 2**20, ".1f"),
        _text(row.time_over_stock, ".2f"),
        _text(row.predicted_overhead, ".1%"),
        _text(row.recomputed, "d"),
        _text(row.first_step_s, ".1f"),
        _text(row.stock_first_step_s, ".1f"),
        _text(row.planning_s, ".0f"),
        _text(row.gradient_error, ".0e"),
        row.error.replace("|", "/"),
    ]


def _text(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _summary(rows: list[Row]) -> list[list[str]]:
    times = {(row.model, row.way): row.time_over_stock for row in rows if row.time_over_stock is not None}
    table = []
    for peer in dict.fromkeys(row.way.removeprefix(OURS) for row in rows if row.way.startswith(OURS)):
        pairs = [
            (times[model, peer], times[model, OURS + peer])
            for model in _models(rows)
            if (model, peer) in times and (model, OURS + peer) in times
        ]
        if pairs:
            means = [f"{geometric_mean(column):.2f}" for column in zip(*pairs, strict=True)]
            faster = sum(ours < theirs for theirs, ours in pairs)
            table.append([peer, str(len(pairs)), *means, f"{faster} of {len(pairs)}"])
    return table


def page() -> str:
    """The page of the results that are kept."""
    return as_page(read_rows(running.RESULTS_FOLDER / "peers.csv"))
