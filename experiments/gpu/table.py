"""Planning under XLA for an H100 that is not there: what was predicted, and what the steps are compiled to.

    JAX_PYTHON=PYTHON python -m experiments.gpu.table [--model NAME ...] [--share 0.8 ...]

The models are those of `experiments.xla.table`. `rematerialize` plans them as it does where TensorFlow has a GPU, but
that steps are compiled by JAX, of the Python that `JAX_PYTHON` names, with its CUDA plugin: see compile_for_h100.py.
Costs are a roofline of the device's rates. Rows that are in the results are not computed again.
"""

import argparse
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import tensorflow as tf

from checkmate_tf.executors.xla import step as xla_step
from checkmate_tf.executors.xla.backends import GPU
from checkmate_tf.tf_private import HloProto
from experiments.gpu.export_stablehlo import Exporter, GpuCosts, Results
from experiments.running import RESULTS_FOLDER, Point, run_apart
from experiments.xla import table as on_cpu

RESULTS = RESULTS_FOLDER / "gpu_plans.csv"
table = on_cpu.table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="*", default=list(on_cpu.MODELS), choices=on_cpu.MODELS)
    parser.add_argument("--share", nargs="*", type=float, default=list(on_cpu.SHARES), help="of the stock step's peak")
    options = parser.parse_args()
    if "JAX_PYTHON" not in os.environ:
        parser.error("set JAX_PYTHON to a Python that has JAX and its CUDA plugin")
    points = on_cpu.points(options.model, options.share)
    print(table(run_apart("experiments.gpu.table", points, RESULTS, on_cpu.COLUMNS)))


def compute(point: Point) -> dict[str, Any]:
    """A row, as `experiments.xla.table` has it."""
    on_cpu.compile_step = compile_for_h100
    xla_step.find_backend = lambda device: GPU
    return on_cpu.compute(point, costs=GpuCosts())


def compile_for_h100(step: Any, specs: Sequence[tf.TensorSpec]) -> HloProto:
    """Takes the place of the function that compiles a step for this machine's device."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        exporter = Exporter(folder, time_limit_s=0)
        exporter.modules.append(exporter.write_whole("step", specs, step))
        exporter.write_manifest()
        script = Path(__file__).with_name("compile_for_h100.py")
        command = [os.environ["JAX_PYTHON"], script, folder, "--output", folder]
        subprocess.run(command, check=True, capture_output=True)
        module = Results.read(folder).read_module("step")
    assert module is not None
    return module


if __name__ == "__main__":
    main()
