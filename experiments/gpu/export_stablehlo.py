"""Training steps, and the nodes of them, as StableHLO: for a GPU machine that has JAX but no TensorFlow.

    python -m experiments.gpu.export_stablehlo --output FOLDER [--models resnet50 unet] [--budgets 80% 60% 40%]

Writes FOLDER/manifest.json and a module, as MLIR text, for each stock step, for each rewritten step with each form of
its ties, and for each distinct node. Needs TensorFlow and no GPU. What to do with the folder, and what each number
decides, is told in README.md beside this file.
"""

import argparse
import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import tensorflow as tf
from tqdm import tqdm

from checkmate_tf.budget import parse_budget
from checkmate_tf.emission.function import EmittedFunction
from checkmate_tf.planning.plan import Options, ResidentBytes
from checkmate_tf.profiling.costs import CostModel, NodeCosts, estimate_roofline_costs
from checkmate_tf.profiling.profiler import cut_node_fragments
from checkmate_tf.profiling.roofline import Roofline
from checkmate_tf.profiling.signature import Fragment
from checkmate_tf.profiling.timing import build_fragment_body
from checkmate_tf.progress import show_planning
from checkmate_tf.simulator import simulate_stock
from checkmate_tf.solvers import solve
from checkmate_tf.tracing.extraction import TrainingGraph, extract
from checkmate_tf.training.batches import guess_spec
from checkmate_tf.training.model_step import ModelStep, trace_model_step
from checkmate_tf.training.step_parts import build_for, complete_step, make_gradient_part
from checkmate_tf.xla.step import XlaStep
from checkmate_tf.xla.ties import Tie
from experiments.profiling.models import MODELS

FORMAT = "checkmate-stablehlo/2"
TIES: tuple[Tie, ...] = get_args(Tie)
# Rates of a data center's GPU, for schedules to be made before its own nodes are timed.
GPU = Roofline(flops_per_ns=60_000, bytes_per_ns=2_000, dispatch_ns=2_000)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=["resnet50", "unet"])
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--budgets", nargs="*", default=["80%", "60%", "40%"], help="of the stock step's peak")
    parser.add_argument("--ties", nargs="+", choices=TIES, default=list(TIES))
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds of the solver for each budget")
    parser.add_argument("--steps-only", action="store_true", help="leave out the nodes")
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    models = {name: MODELS[name]() for name in args.models}
    modules = []
    for name, model in models.items():
        modules += export_steps(
            model, name, args.batch_size, args.budgets, args.ties, time_limit_s=args.time_limit, folder=args.output
        )
    if not args.steps_only:
        known: set[str] = set()
        for name, model in models.items():
            modules += export_nodes(trace_model_step(model, args.batch_size), args.output, name, known)
    write_manifest(args.output, args.batch_size, modules)
    print(f"{len(modules)} modules in {args.output}")


def write_manifest(folder: Path, batch_size: int, modules: Sequence[dict[str, Any]]) -> None:
    """Writes what `run_jax.py` reads."""
    manifest = {"format": FORMAT, "batch_size": batch_size, "tensorflow": tf.__version__, "modules": list(modules)}
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1))


class GpuCosts(CostModel):
    """Nodes cost what a GPU's rates say."""

    def find_node_costs(self, training_graph: TrainingGraph) -> NodeCosts:
        return NodeCosts("ns", tuple(estimate_roofline_costs(training_graph, GPU)))


def export_steps(
    model: keras.Model,
    name: str,
    batch_size: int,
    budgets: Sequence[str],
    ties: Sequence[Tie],
    *,
    time_limit_s: float,
    folder: Path,
) -> list[dict[str, Any]]:
    """The stock step, and a rewritten step for each budget and tie: whole ones, as `rematerialize` plans them."""
    spec = guess_spec(model, batch_size)
    build_for(model, spec)
    part = make_gradient_part(model)
    assert part is not None
    step = XlaStep.of(
        extract(part.trace(spec), name=name), partial(complete_step, part, spec), spec.flat, resident=ResidentBytes()
    )
    with show_planning(shown=False) as bar:
        step = step.add_costs(Options("100%", costs=GpuCosts()), bar)
    stock_bytes = simulate_stock(step.graph).peak_bytes
    about = {"model": name, "budget": "stock", "tie": None, "overhead": 0.0}
    entries = [_write_step(folder, step, step.stock, stock_bytes, about)]
    for budget in budgets:
        solution = solve(step.graph, parse_budget(budget, peak_bytes=stock_bytes), time_limit_s=time_limit_s)
        if solution.best is None:
            print(f"{name}: no schedule within {budget}: {solution.status}")
            continue
        simulation = solution.best.simulation
        for tie in ties:
            emitted = replace(step, tie=tie).emit(solution.best.schedule, "chain")
            about = {"model": name, "budget": budget, "tie": tie, "overhead": simulation.overhead}
            entries.append(_write_step(folder, step, emitted, simulation.peak_bytes, about))
    return entries


def _write_step(
    folder: Path, step: XlaStep, function: EmittedFunction, predicted_peak_bytes: int, about: dict[str, Any]
) -> dict[str, Any]:
    whole = tf.function(step.whole_step(function), autograph=False).get_concrete_function(*step.specs)
    arguments = [_argument(spec.shape, spec.dtype) for spec in step.specs]
    arguments += [_variable_argument(tensor) for tensor in whole.captured_inputs]
    name = "_".join(["step", about["model"], about["budget"].rstrip("%"), about["tie"] or ""]).rstrip("_")
    predicted = {"predicted_temporary_bytes": predicted_peak_bytes - step.graph.resident_bytes}
    return {**_write(folder, name, whole, step.specs, arguments), **about, **predicted}


def export_nodes(step: ModelStep, folder: Path, name: str, known: set[str]) -> list[dict[str, Any]]:
    """Every distinct node that XLA can compile alone, but those whose signatures are known."""
    cuts = [cut for cut in cut_node_fragments(step.training_graph) if isinstance(cut, Fragment)]
    distinct = {cut.signature: cut for cut in cuts if not any(given.is_resource for given in cut.inputs)}
    fragments = {signature: cut for signature, cut in distinct.items() if signature not in known}
    known.update(fragments)
    entries = []
    for signature, fragment in tqdm(fragments.items(), "exporting nodes", disable=None):
        given = [described for described in fragment.inputs if described.constant is None]
        specs = [tf.TensorSpec(described.shape, described.dtype) for described in given]
        arguments = [_argument(described.shape, described.dtype, described.limit) for described in given]
        body = build_fragment_body(fragment, None)
        try:
            entry = _write(folder, f"node_{signature}", body, specs, arguments)
        except (ValueError, tf.errors.OpError) as error:
            print(f"left out {fragment.op_types}: {str(error).splitlines()[0]}")
            continue
        entries.append({**entry, "model": name, "signature": signature, "op_types": fragment.op_types})
    return entries


def _write(
    folder: Path,
    name: str,
    body: Callable[..., Any],
    specs: Sequence[tf.TensorSpec],
    arguments: list[dict[str, Any]],
) -> dict[str, Any]:
    function = tf.function(lambda *inputs: body(*inputs), autograph=False, jit_compile=True)
    text = function.experimental_get_compiler_ir(*specs)(stage="stablehlo")
    (folder / f"{name}.mlir").write_text(plain_stablehlo(text))
    return {"name": name, "file": f"{name}.mlir", "arguments": arguments}


def plain_stablehlo(text: str) -> str:
    """The module without what only XLA's own dialect knows: JAX reads StableHLO alone."""
    text = re.sub(r"^(module @\S+) attributes \{.*\} \{", r"\1 {", text, flags=re.MULTILINE)
    text = re.sub(r"mhlo\.copy (%\S+) : (tensor<[^>]*>)", r"stablehlo.reshape \1 : (\2) -> \2", text)
    return re.sub(r" \{mhlo\.frontend_attributes = \{[^{}]*\}\}", "", text)


def _argument(shape: Sequence[int], dtype: tf.DType, limit: int = 2) -> dict[str, Any]:
    return {"shape": [int(size) for size in shape], "dtype": dtype.name, "limit": limit}


def _variable_argument(tensor: tf.Tensor) -> dict[str, Any]:
    """XLA takes the contents of a captured variable as an argument."""
    if tensor.dtype != tf.resource:
        return _argument(tensor.shape, tensor.dtype)
    held = tensor._handle_data.shape_and_type[0]
    return _argument([dimension.size for dimension in held.shape.dim], tf.as_dtype(held.dtype))


if __name__ == "__main__":
    main()
