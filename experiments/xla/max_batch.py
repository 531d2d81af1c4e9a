"""The largest batches of a ResNet20 and a small transformer within 256 MiB, where XLA compiles the step.

    python -m experiments.xla.max_batch [--model NAME ...]

What XLA compiles a size to tells whether it fits; nothing runs. The stock step's largest batch is the one that
`max_batch_size` predicts. Rows that are in the results are not computed again.
"""

import argparse
from collections.abc import Sequence
from typing import Any

from experiments.running import RESULTS_FOLDER, Point, run_apart
from experiments.xla.rows import table_of

MODELS = ("resnet20", "transformer")
BUDGET = "256MiB"
RESULTS = RESULTS_FOLDER / "xla_max_batch.csv"
COLUMNS = (
    "model", "budget_bytes", "stock_size", "size", "compiled_bytes", "overhead", "beyond", "compilations", "seconds",
)  # fmt: skip
table = table_of(COLUMNS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="*", default=list(MODELS), choices=MODELS)
    options = parser.parse_args()
    print(table(run_apart("experiments.xla.max_batch", points(options.model), RESULTS, COLUMNS)))


def points(models: Sequence[str] = MODELS) -> list[Point]:
    return [{"model": name} for name in models]


def compute(point: Point) -> dict[str, Any]:
    import checkmate_tf
    from experiments import max_batch_table
    from experiments.planning_seconds import transformer

    model = max_batch_table.build("resnet20") if point["model"] == "resnet20" else transformer(4)[0]
    model.jit_compile = True
    found = checkmate_tf.max_batch_size(
        model, budget=BUDGET, max_overhead="one forward pass", options=checkmate_tf.Options(costs="roofline")
    )
    return {
        "budget_bytes": found.budget_bytes,
        "stock_size": found.stock_size,
        "size": found.size,
        "compiled_bytes": found.plan.measured_peak_bytes,
        "overhead": found.plan.overhead,
        "beyond": found.beyond,
        "compilations": sum(trial.kind == "run" for trial in found.trials),
        "seconds": found.took_s,
    }


if __name__ == "__main__":
    main()
