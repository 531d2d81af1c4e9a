"""All that is to be known of `fit` on a GPU, in the minutes that one is there, in the order of worth.

    python -m experiments.gpu.fit_on_gpu --output results.jsonl --minutes 9
    python -m experiments.gpu.fit_on_gpu --output results.jsonl --minutes 15 --small    # tried on a CPU, to the end

Each measurement is a process of its own that writes a line of JSON for each result as soon as it is there, so that
nothing is lost where one fails, runs out of memory, or is stopped. Measurements are begun while there is time left for
them, and all end by the given minute. `--parts b c` runs some of the parts, `--only NAME` a single measurement, and
`--list` prints them all. What `python -m experiments.gpu.fit_on_gpu --show results.jsonl` prints is in Markdown.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from tabulate import tabulate

from experiments.running import ROOT, environment, read_lines

_PARTS_MODULE = "experiments.gpu.fit_parts"
# A measurement is not begun with less time than this left.
_LEAST_S = 15


@dataclass(frozen=True)
class Measurement:
    """A measurement is a function of `fit_parts`, called in a process of its own.

    Args:
        part: "a" to "g", as README.md beside this file lists them.
        most_s: after so long it is stopped.
        point: the function's arguments on a GPU.
        small: those that differ with `--small`.
    """

    part: str
    name: str
    function: str
    most_s: int
    point: dict[str, Any] = field(default_factory=dict)
    small: dict[str, Any] = field(default_factory=dict)

    def choose_point(self, *, small: bool) -> dict[str, Any]:
        """Returns the function's arguments."""
        return {**self.point, **(self.small if small else {})}


_SMALL_NET = {"model": "small resnet", "batch_size": 8}
_SMALL_UNET = {"model": "small unet", "batch_size": 8}
_SMALL_GPT = {"model": "small gpt2", "batch_size": 4}
# XLA:CPU compiles any of the others for longer than a CPU's minutes allow.
_SMALL_XLA = {"model": "small dense", "batch_size": 256, "budgets": ["70%"]}  # Batches take most of its memory.
# Of each architecture the batch size on a GPU, and what stands for it with `--small`; in the order of worth.
_LARGE = (
    ("resnet50", 64, _SMALL_NET),
    ("gpt2", 8, _SMALL_GPT),
    ("unet", 32, _SMALL_UNET),
    ("resnet50", 256, _SMALL_NET),
)
_FOLDER = f"file:{tempfile.gettempdir()}"  # in which a CPU's values are, with `--small`
_PEERS = ("resnet", "unet", "decoder")
_EXECUTORS = ("xla", "graph")


def _list_measurements() -> tuple[Measurement, ...]:
    """In the order of worth: what decides about the rest comes first, then what Keras does by default on a GPU."""
    return (
        Measurement("a", "card", "see_card", 90),
        Measurement("a", "assumptions", "check_assumptions", 90),
        _train("b", "readme", "readme", small={"batch_size": 2}),
        _train("b", "demo unet", "demo unet", small=_SMALL_UNET),
        _train("b", "demo resnet", "demo resnet", small=_SMALL_NET),
        *(
            _train(
                "c", f"{model} {rows} {executor}", model, rows, executor=executor, all_budgets=True,
                small=_SMALL_XLA if executor == "xla" else small,
            )
            for model, rows, small in _LARGE
            for executor in _EXECUTORS
        ),
        *(
            _train("c", f"{model} {rows} host", model, rows, offload="host", small={**small, "offload": _FOLDER})
            for model, rows, small in _LARGE[:2]
        ),
        Measurement(  # most of its memory is weights, gradients and momentum
            "c", "wide host", "train_within_budgets", 120,
            {**_rows("wide", 64), "budgets": ["80%"], "offload": "host"},
            {"model": "small wide", "batch_size": 16, "offload": _FOLDER},
        ),
        *(
            Measurement(
                "c", f"peer {model} {executor}", "compare_with_peer", 150,
                {"model": model, "executor": executor, "rows": 64},
                {"model": "resnet", "executor": "graph", "rows": 2},
            )
            for model in _PEERS
            for executor in _EXECUTORS
        ),
        Measurement("d", "profile resnet50", "predict_and_measure", 150, _rows("resnet50", 32), _SMALL_NET),
        Measurement("d", "profile unet", "predict_and_measure", 150, _rows("unet", 16), _SMALL_UNET),
        Measurement("e", "limit", "train_within_limit", 150, _rows("resnet50", 64), _SMALL_NET),
        Measurement("e", "max batch", "find_max_batch", 150, {"model": "demo resnet"}, {**_SMALL_NET, "maximum": 64}),
        _train("f", "mixed precision", "resnet50", 64, policy="mixed_float16", small={**_SMALL_NET, "batch_size": 2}),
        Measurement("f", "one replica", "train_replicas", 90, {"model": "demo resnet", "replicas": 1}, _SMALL_NET),
        Measurement("f", "two replicas", "train_replicas", 90, {"model": "demo resnet", "replicas": 2}, _SMALL_NET),
        Measurement("g", "tests", "run_tests", 200, {}, {"tests": ["tests/training/test_functions.py"]}),
    )  # fmt: skip


def _train(
    part: str,
    name: str,
    model: str,
    batch_size: int | None = None,
    *,
    executor: str = "graph",
    policy: str = "float32",
    all_budgets: bool = False,
    offload: str | None = None,
    small: dict[str, Any],
) -> Measurement:
    budgets = ["60%", "40%", "80%"] if all_budgets else ["60%", "40%"]
    choices = {"executor": executor, "policy": policy, "offload": offload}
    point = {**_rows(model, batch_size), "budgets": budgets, **choices}
    return Measurement(part, name, "train_within_budgets", 180, point, {"budgets": ["60%"], **small})


def _rows(model: str, batch_size: int | None) -> dict[str, Any]:
    return {"model": model, "batch_size": batch_size}


MEASUREMENTS = _list_measurements()


class Results:
    """Results are lines of JSON in a file; each is on the disk before the next thing is measured."""

    def __init__(self, path: Path, **about: Any):
        self.path = path
        self.about = about

    def add(self, **result: Any) -> None:
        """Adds a line."""
        with self.path.open("a") as file:
            file.write(json.dumps({**self.about, **result}, default=str) + "\n")
            file.flush()
            os.fsync(file.fileno())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="lines of JSON are added to it")
    parser.add_argument("--minutes", type=float, default=9.0, help="all ends by then")
    parser.add_argument("--parts", nargs="+", default=list("abcdefg"), choices=list("abcdefg"))
    parser.add_argument("--only", nargs="+", help="names of measurements")
    parser.add_argument("--small", action="store_true", help="sizes for a CPU")
    parser.add_argument("--list", action="store_true", help="print the measurements and run none")
    parser.add_argument("--show", type=Path, help="print what was measured and run nothing")
    parser.add_argument("--in-process", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.show:
        print(show(read_lines(options.show)))
        return
    chosen = [
        each for each in MEASUREMENTS if (each.name in options.only if options.only else each.part in options.parts)
    ]
    if options.list:
        rows = [[each.part, each.name, each.most_s, json.dumps(each.point)] for each in chosen]
        print(tabulate(rows, ["part", "name", "at most, s", "point"]))
        return
    if options.output is None:
        parser.error("--output is missing")
    if options.in_process:
        (measurement,) = (each for each in MEASUREMENTS if each.name == options.in_process)
        measure_here(measurement, options.output, small=options.small)
        return
    run_all(chosen, options.output, end=time.monotonic() + 60 * options.minutes, small=options.small)


def run_all(chosen: Sequence[Measurement], output: Path, *, end: float, small: bool) -> None:
    """Runs measurements one after the other until `end`, by the monotonic clock."""
    output.parent.mkdir(parents=True, exist_ok=True)
    Results(output).add(part="", name="environment", small=small, **environment())
    done: list[tuple[str, dict[str, Any]]] = []
    for measurement in chosen:
        results = Results(output, part=measurement.part, name=measurement.name)
        if (measurement.function, measurement.choose_point(small=small)) in done:
            continue  # several are the same one when they are small
        done.append((measurement.function, measurement.choose_point(small=small)))
        left_s = end - time.monotonic()
        if left_s < _LEAST_S:
            results.add(outcome="left out", left_s=round(left_s))
            continue
        began = time.monotonic()
        outcome = run_apart(measurement, output, most_s=min(measurement.most_s, left_s), small=small)
        results.add(**outcome, seconds=round(time.monotonic() - began, 1))
        print(
            f"{measurement.part} {measurement.name}: {outcome['outcome']}, {time.monotonic() - began:.0f} s", flush=True
        )


def run_apart(measurement: Measurement, output: Path, *, most_s: float, small: bool) -> dict[str, Any]:
    """Runs a measurement in a process of its own, which is stopped, with all that it started, after `most_s`."""
    command = [sys.executable, "-m", "experiments.gpu.fit_on_gpu", "--in-process", measurement.name]
    command += ["--output", str(output.resolve()), *(["--small"] if small else [])]
    # oneDNN is for a CPU, whose allocator keeps statistics only then.
    variables = os.environ | {"TF_ENABLE_ONEDNN_OPTS": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=variables,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        _, said = process.communicate(timeout=most_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return {"outcome": "stopped", "most_s": round(most_s)}
    if process.returncode:
        lines = said.strip().splitlines() or [f"exit status {process.returncode}"]
        return {"outcome": "failed", "error": lines[-1][:300], "status": process.returncode}
    return {"outcome": "ended"}


def measure_here(measurement: Measurement, output: Path, *, small: bool) -> None:
    """Measures in this process."""
    point = measurement.choose_point(small=small)
    results = Results(output, part=measurement.part, name=measurement.name)
    parts = import_module(_PARTS_MODULE)
    effort = parts.SMALL_EFFORT if small else parts.EFFORT
    getattr(parts, measurement.function)(results.add, effort, **point)


def show(lines: Sequence[dict[str, Any]]) -> str:
    """Makes tables of Markdown of results: one a function, and one of what did not end well."""
    texts = []
    for part in dict.fromkeys(line["part"] for line in lines if line["part"]):
        rows = [_show_row(line) for line in lines if line["part"] == part and "outcome" not in line]
        if rows:
            texts += [f"## {part}", tabulate(rows, headers="keys", tablefmt="pipe", floatfmt=".3f"), ""]
    rest = [line for line in lines if line.get("outcome", "ended") != "ended" or "error" in line]
    texts += ["## Left out, stopped, failed", ""]
    texts += [f"- {line['part']}, {line['name']}: {line.get('error') or line.get('outcome')}" for line in rest]
    return "\n".join(texts)


def _show_row(line: dict[str, Any]) -> dict[str, Any]:
    return {
        key.removesuffix("_bytes") + (", MiB" if key.endswith("_bytes") else ""): _show_cell(key, value)
        for key, value in line.items()
        if key != "part"
    }


def _show_cell(key: str, value: Any) -> Any:
    if key.endswith("_bytes"):
        sizes = value if isinstance(value, list) else [value]
        return " ".join("" if size is None else f"{size / 2**20:.1f}" for size in sizes)
    return json.dumps(value) if isinstance(value, (list, dict)) else value


if __name__ == "__main__":
    main()
