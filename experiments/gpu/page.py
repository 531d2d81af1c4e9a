"""Steps that a GPU ran: the results of run_jax.py as rows, and the page that they make.

python -m experiments.gpu.page RESULTS_FOLDER
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from tabulate import tabulate

from experiments.page_sections import section
from experiments.running import RESULTS_FOLDER, Row, append_row, made_with, read_rows

RESULTS = RESULTS_FOLDER / "gpu.csv"
# Measured before steps were written otherwise for a GPU; nothing measures them again.
FIRST_RUNS = RESULTS_FOLDER / "gpu_first_runs.csv"
_OF_STEP = (
    "model", "batch_size", "budget", "costs", "overhead", "predicted_temporary_bytes", "temporary_bytes",
    "device_peak_bytes", "time_ns", "relative_spread",
)  # fmt: skip
COLUMNS = ("run", *_OF_STEP, "commit", "machine", "versions")
_HEAD = """# Steps on a GPU

Written by `python -m experiments.pages gpu.md`. [gpu/README.md](../gpu/README.md) describes the measurements.

XLA compiles whole training steps, exported as StableHLO, and JAX runs them. Memory is the temporary memory of XLA's
buffer assignment. Times are medians of twenty steps. Each run is on one machine, and each step in a process of its own.
A plan starts from the kernels of the compiled stock step. Its costs are a roofline of the device's rates, or the times
of these kernels. Unlike `rematerialize`, this experiment does not correct a plan after its compilation.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="the folder that run_jax.py wrote")
    add(json.loads((parser.parse_args().results / "results.json").read_text()), RESULTS)
    print(page())


def add(document: dict, path: Path) -> None:
    """Adds the steps of a run to the rows."""
    run = 1 + max((int(row["run"]) for row in read_rows(path)), default=0)
    exported = document["environment"]
    where = {
        "run": run,
        "commit": exported["commit"],
        "machine": f"{document['device']}, driver {document['driver']}",
        "versions": f"jax {document['jax']}; exported with {exported['versions']}",
    }
    for step in (result for result in document["results"] if "signature" not in result):
        append_row(path, COLUMNS, where | {name: step.get(name) for name in _OF_STEP}, digits=6)


def page() -> str:
    """The tables in markdown."""
    rows, first_rows = read_rows(RESULTS), read_rows(FIRST_RUNS)
    budgets, peers = budget_lines(rows), peer_lines(rows)
    return "\n".join([
        _HEAD,
        "## Within budgets, of the stock step's peak",
        "",
        tabulate(budgets, "keys", tablefmt="github", floatfmt=".3f"),
        "",
        "## Within the memory that `tf.recompute_grad` around each block takes",
        "",
        tabulate(peers, "keys", tablefmt="github", floatfmt=".3f"),
        "",
        made_with(rows),
        "",
        "## The first runs, of steps written as for a CPU",
        "",
        "These runs are kept in `gpu_first_runs.csv`. They decided which rules a GPU gets, and the present code "
        "cannot repeat them; their commit is the one before these rules. The first run planned with the kernels of "
        'XLA:CPU, and the second with those of the GPU. "Without a device" is the same step as JAX compiles it on a '
        "machine without a GPU.",
        "",
        tabulate(first_lines(first_rows), "keys", tablefmt="github", floatfmt=".3f"),
        "",
        made_with(first_rows),
        "",
        section(
            "Plans for an H100 on a machine without one",
            "gpu.table",
            "Each model is planned by `rematerialize` with `Options(device=\"h100\")`, for a share of the peak of its "
            "stock step. JAX compiles the steps, and nothing runs. The predicted peak is that of the training graph in "
            "the order of the schedule. The compiled peak is that of XLA's buffer assignment, and stays within the "
            "budget. Weights that a step overwrites count once. Compilations are those of one plan, and include the "
            "stock step; seconds are those of two cores that did other work, too. No schedule takes less than the "
            "least step. If the budget was refused, the least known is the peak of the best schedule that was found. "
            "Each refused budget has a second row, planned with offloading to host memory.",
        ),
        section(
            "Recomputation and offloading at low budgets, planned for an H100",
            "gpu.offloading",
            "Each row is a plan for a share of the stock step's peak: by recomputation, by offloading to host memory "
            "alone, or by both. JAX compiles the steps, and nothing runs. Overheads are predicted, with a roofline for "
            "operations and 64 GB/s for copies in either direction. GPT-2 has 12 blocks and 512 tokens a row, and "
            "computes its loss in chunks. If a budget was refused, the row is the plan of least memory.",
        ),
        section(
            "Fine-tuning of language models, planned for an H100",
            "gpu.fine_tuning",
            "The models have the sizes of Llama 3.2 1B and Gemma 3 1B, weights in bfloat16 and LoRA of rank 8. A batch "
            "is one row of tokens. Loss, feed-forward blocks and attention are computed in chunks of 512 tokens. JAX "
            "compiles the steps, and nothing runs.",
        ),
        section(
            "XLA's own rematerialization",
            "gpu.xla_pass",
            "XLA has a pass that recomputes values which do not fit in the device's memory. The stock step is compiled "
            "for an H100 with 100, 80, 65 and 50 % of its peak as memory. The table shows the least peak that this "
            "pass reached, and the memory with which it did. Below some memory, the pass takes more, not less. Our "
            "plan is for the same peak. Added kernels are the difference to the stock step's. A plan may have fewer, "
            "because it writes some operations differently. Products are convolutions and products of matrices. "
            "Moved bytes are those that kernels read and write. 'Rematerialized' counts the instructions that XLA "
            "marks so, and 'recomputed' the nodes that our schedule computes again.",
        ),
    ])  # fmt: skip


def budget_lines(rows: Sequence[Row]) -> list[dict[str, object]]:
    """A line a step that was given a share of the stock step's peak, and one a stock step."""
    return [
        {
            "run": row["run"],
            "model": row["model"],
            "budget": row["budget"],
            "costs": row["costs"],
            "predicted, MiB": _mib(row["predicted_temporary_bytes"]),
            "compiled, MiB": _mib(row["temporary_bytes"]),
            "device's peak, MiB": _mib(row["device_peak_bytes"]),
            **_times(rows, row),
            "predicted over stock": 1 + float(row["overhead"] or 0),
        }
        for row in rows
        if row["budget"].endswith("%") or (row["budget"] == "stock" and not row["model"].startswith("blocks_"))
    ]


def peer_lines(rows: Sequence[Row]) -> list[dict[str, object]]:
    """A line a step that was given a peer's memory."""
    lines = []
    for row in (row for row in rows if row["budget"] == "equal"):
        stock, peer = find(rows, row, "stock"), find(rows, row, "peer")
        stock_ns, peer_ns, our_ns = (float(each["time_ns"]) for each in (stock, peer, row))
        lines.append({
            "run": row["run"],
            "model": row["model"].removeprefix("blocks_"),
            "costs": row["costs"],
            "stock, MiB": _mib(stock["temporary_bytes"]),
            "peer, MiB": _mib(peer["temporary_bytes"]),
            "predicted, MiB": _mib(row["predicted_temporary_bytes"]),
            "ours, MiB": _mib(row["temporary_bytes"]),
            "peer over stock": peer_ns / stock_ns,
            "ours over stock": our_ns / stock_ns,
            "ours over peer": our_ns / peer_ns,
        })  # fmt: skip
    return lines


def first_lines(rows: Sequence[Row]) -> list[dict[str, object]]:
    """A line a step of the first runs."""
    return [
        {
            "run": row["run"],
            "model": row["model"],
            "budget": row["budget"],
            "kernels": row["kernels"],
            "tie": row["tie"],
            "predicted, MiB": _mib(row["predicted_temporary_bytes"]),
            "compiled, MiB": _mib(row["temporary_bytes"]),
            "without a device, MiB": _mib(row["without_device_bytes"]),
            **_times(rows, row),
        }
        for row in rows
    ]


def _times(rows: Sequence[Row], row: Row) -> dict[str, float]:
    """A step's time, and how many times that of the stock step it is."""
    time_ns, stock_ns = float(row["time_ns"]), float(find(rows, row, "stock")["time_ns"])
    return {"ms": time_ns / 1e6, "over stock": time_ns / stock_ns}


def find(rows: Sequence[Row], like: Row, budget: str) -> Row:
    """The row of another budget of the same model in the same run."""
    same = ("run", "model")
    return next(row for row in rows if row["budget"] == budget and all(row[name] == like[name] for name in same))


def _mib(size_bytes: str) -> int | str:
    return round(int(size_bytes) / 2**20) if size_bytes else ""


if __name__ == "__main__":
    main()
