"""What a user has under XLA without this project, on the models of the table: memory by buffer assignment, and time.

    python -m experiments.xla.compare memory|time|show [--model NAME ...]

`keras.remat` is put around each convolution with its normalization (attention and feed-forward in the transformer),
`tf.recompute_grad` around each block, `keras.RematScope` around the whole model. XLA's own rematerialization
(HloRematerialization) is a pass of its compilers for accelerators: XLA:CPU has no flag that turns it on.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any, get_args

from tabulate import tabulate

from checkmate_tf.keras_step import build_for, step_part
from checkmate_tf.training_data import batch_for
from checkmate_tf.xla_memory import compiled, xla_memory
from experiments.running import environment
from experiments.xla.models import MODELS, Remat, build
from experiments.xla.table import RESULTS, whole_step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("phase", choices=("memory", "time", "show"))
    parser.add_argument("--model", nargs="*", default=list(MODELS), choices=MODELS)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    for name in options.model if options.phase != "show" else ():
        if len(options.model) > 1:
            subprocess.run(
                [sys.executable, "-m", "experiments.xla.compare", *sys.argv[1:], "--model", name], check=True
            )
        else:
            (compare_memory if options.phase == "memory" else compare_time)(name, options)
    paths = sorted(options.output.glob("compare_*.json"))
    print(table([json.loads(path.read_text()) for path in paths], options.output))


def compare_memory(name: str, options: argparse.Namespace) -> None:
    result = {"model": name, **environment(), "ways": []}
    for remat in get_args(Remat):
        result["ways"].append({"way": remat, **_memory(name, remat)})
        _path(name, options).write_text(json.dumps(result, indent=1))


def _memory(name: str, remat: Remat) -> dict[str, Any]:
    try:
        model, data = build(name, remat)
        batch = batch_for(model, batch_size=None, data=data)
        build_for(model, batch.spec)
        part = step_part(model)
        memory = xla_memory(compiled(whole_step(part, batch)(part.trace(batch.spec)), batch.spec.flat))
    except Exception as error:  # what Keras or TensorFlow refuse is a result too
        return {"error": f"{type(error).__name__}: {str(error).strip().splitlines()[0][:160]}"}
    return {"temporary_bytes": memory.temporary_bytes, "peak_bytes": memory.peak_bytes}


def compare_time(name: str, options: argparse.Namespace) -> None:
    result = json.loads(_path(name, options).read_text())
    stock, data = build(name)
    for entry in result["ways"]:
        if "error" in entry:
            continue
        model, _ = build(name, entry["way"])
        for either in (stock, model):
            either.train_on_batch(*data)
        pairs = [(_seconds(stock, data), _seconds(model, data)) for _ in range(options.repeats)]
        entry["time_ratio"] = median(after / before for before, after in pairs)
        _path(name, options).write_text(json.dumps(result, indent=1))


def _seconds(model: Any, data: Any) -> float:
    started = time.perf_counter()
    model.train_on_batch(*data)
    return time.perf_counter() - started


def _path(name: str, options: argparse.Namespace) -> Path:
    return options.output / f"compare_{name}.json"


def table(results: list[dict[str, Any]], folder: Path) -> str:
    rows = []
    for result in results:
        stock = result["ways"][0]["temporary_bytes"]
        for entry in result["ways"]:
            if "error" in entry:
                rows.append([result["model"], entry["way"], None, None, None, entry["error"]])
                continue
            share = entry["temporary_bytes"] / stock
            rows.append(_row(result, entry, entry["way"], share))
        path = folder / f"table_{result['model']}.json"
        planned = json.loads(path.read_text()) if path.exists() else {"budgets": []}
        for entry in planned["budgets"]:
            if "error" not in entry:
                share = entry["temporary_bytes"] / planned["temporary_bytes"]
                rows.append(_row(result, entry, f"this project, {entry['share']:.0%}", share))
    headers = ["model", "way", "temporary MiB", "of stock", "step time over stock", "refused by TensorFlow"]
    return tabulate(rows, headers, floatfmt=".2f")


def _row(result: dict[str, Any], entry: dict[str, Any], way: str, share: float) -> list[Any]:
    return [result["model"], way, entry["temporary_bytes"] / 2**20, f"{share:.0%}", entry.get("time_ratio")]


if __name__ == "__main__":
    main()
