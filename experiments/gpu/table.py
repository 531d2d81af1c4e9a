"""Planning under XLA for an H100 that is not there: what was predicted, and what the steps are compiled to.

    python -m experiments.gpu.table [--model NAME ...] [--share 0.8 ...]

The models are those of `experiments.xla.table`. `rematerialize` plans them with `Options(device="h100")` and nothing
else; JAX and its CUDA plugin must be installed. Costs are a roofline of the device's figures. A budget that is refused
is tried again with `Options(offload="host")`. Rows that are in the results are not computed again.
"""

import argparse
from typing import Any

import checkmate_tf
from checkmate_tf.executors.xla.compilers import has_jax
from experiments.running import RESULTS_FOLDER, Point, run_apart
from experiments.xla import table as on_cpu
from experiments.xla.rows import table_of

RESULTS = RESULTS_FOLDER / "gpu_plans.csv"
SHARES = (0.6, 0.4)
COLUMNS = (*on_cpu.COLUMNS, "offload", "offloaded_bytes")
table = table_of(COLUMNS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="*", default=list(on_cpu.MODELS), choices=on_cpu.MODELS)
    parser.add_argument("--share", nargs="*", type=float, default=list(SHARES), help="of the stock step's peak")
    options = parser.parse_args()
    if not has_jax():
        parser.error('JAX and its CUDA plugin are not installed: pip install "jax[cuda13]"')
    points: list[Point] = [point | {"offload": ""} for point in on_cpu.points(options.model, options.share)]
    rows = run_apart("experiments.gpu.table", points, RESULTS, COLUMNS)
    refused = {(row["model"], row["share"]) for row in rows if row["error"] and not row["offload"]}
    again = [point | {"offload": "host"} for point in points if (point["model"], str(point["share"])) in refused]
    print(table(run_apart("experiments.gpu.table", again, RESULTS, COLUMNS)))


def compute(point: Point) -> dict[str, Any]:
    """A row, as `experiments.xla.table` has it, and the bytes that a step offloads."""
    return on_cpu.compute(point, options=checkmate_tf.Options(device="h100", offload=point["offload"] or None))


if __name__ == "__main__":
    main()
