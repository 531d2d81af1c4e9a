"""Training steps, and the nodes of one, as StableHLO: for a GPU machine that has JAX but no TensorFlow.

    python -m experiments.gpu.export_stablehlo --model resnet50 --batch-size 32 --budgets 60% --output FOLDER

Writes FOLDER/manifest.json and a module, as MLIR text, for the stock step, for each rewritten step and for each
distinct node. Needs TensorFlow and no GPU. Then take FOLDER and run_jax.py to the other machine;
import_profile.py takes the node times that come back into the profile cache.
"""

import argparse
import json
import os
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import tensorflow as tf
from tqdm import tqdm

from checkmate_tf.budget import parse_budget
from checkmate_tf.emission.function import EmittedFunction
from checkmate_tf.planning.plan import ResidentBytes
from checkmate_tf.profiling.profiler import cut_node_fragments
from checkmate_tf.profiling.signature import Fragment
from checkmate_tf.profiling.timing import build_fragment_body
from checkmate_tf.simulator import simulate_stock
from checkmate_tf.solvers import solve
from checkmate_tf.tracing.extraction import extract
from checkmate_tf.training.batches import guess_spec
from checkmate_tf.training.model_step import ModelStep, trace_model_step
from checkmate_tf.training.step_parts import build_for, complete_step, make_gradient_part
from checkmate_tf.xla.step import XlaStep
from checkmate_tf.xla.ties import choose_tie
from experiments.profiling.models import MODELS

FORMAT = "checkmate-stablehlo/1"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="resnet50")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--budgets", nargs="*", default=["80%"], help="of the stock step's peak")
    parser.add_argument("--solver", default="stage_annealing")
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds for each budget")
    parser.add_argument("--device", choices=("CPU", "GPU"), default="GPU", help="where JAX will run the steps")
    parser.add_argument("--steps-only", action="store_true", help="leave out the nodes")
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    model = MODELS[args.model]()
    modules = export_steps(model, args)
    if not args.steps_only:
        modules += export_nodes(trace_model_step(model, args.batch_size), args.output)
    manifest = {
        "format": FORMAT,
        "model": args.model,
        "batch_size": args.batch_size,
        "tensorflow": tf.__version__,
        "modules": modules,
    }
    (args.output / "manifest.json").write_text(json.dumps(manifest, indent=1))
    print(f"{len(modules)} modules in {args.output}")


def export_steps(model: keras.Model, args: argparse.Namespace) -> list[dict[str, Any]]:
    """The stock step and one rewritten step a budget: whole ones, as `rematerialize` plans them for XLA."""
    spec = guess_spec(model, args.batch_size)
    build_for(model, spec)
    part = make_gradient_part(model)
    assert part is not None
    step = XlaStep.of(
        extract(part.trace(spec), name=args.model),
        partial(complete_step, part, spec),
        spec.flat,
        resident=ResidentBytes(),
        tie=choose_tie(args.device),
    )
    stock_bytes = simulate_stock(step.graph).peak_bytes
    entries = [_write_step(args.output, "step_stock", step, step.stock, stock_bytes)]
    for budget in args.budgets:
        solution = solve(
            step.graph,
            parse_budget(budget, peak_bytes=stock_bytes),
            solver=args.solver,
            time_limit_s=args.time_limit,
        )
        if solution.schedule is None or solution.simulation is None:
            print(f"no schedule within {budget}: {solution.status}")
            continue
        emitted = step.emit(solution.schedule, "chain")
        name = f"step_{budget.rstrip('%')}"
        entries.append(_write_step(args.output, name, step, emitted, solution.simulation.peak_bytes))
    return entries


def _write_step(
    folder: Path, name: str, step: XlaStep, function: EmittedFunction, predicted_peak_bytes: int
) -> dict[str, Any]:
    whole = tf.function(step.whole_step(function), autograph=False).get_concrete_function(*step.specs)
    arguments = [_argument(spec.shape, spec.dtype) for spec in step.specs]
    arguments += [_variable_argument(tensor) for tensor in whole.captured_inputs]
    return _write(folder, name, whole, step.specs, arguments, predicted_peak_bytes=predicted_peak_bytes)


def export_nodes(step: ModelStep, folder: Path) -> list[dict[str, Any]]:
    """Every distinct node that XLA can compile alone."""
    cuts = [cut for cut in cut_node_fragments(step.training_graph) if isinstance(cut, Fragment)]
    fragments = {cut.signature: cut for cut in cuts if not any(given.is_resource for given in cut.inputs)}
    entries = []
    for signature, fragment in tqdm(fragments.items(), "exporting nodes", disable=None):
        given = [described for described in fragment.inputs if described.constant is None]
        specs = [tf.TensorSpec(described.shape, described.dtype) for described in given]
        arguments = [_argument(described.shape, described.dtype, described.limit) for described in given]
        body = build_fragment_body(fragment, None)
        try:
            entry = _write(folder, f"node_{signature}", body, specs, arguments, signature=signature)
        except (ValueError, tf.errors.OpError) as error:
            print(f"left out {fragment.op_types}: {str(error).splitlines()[0]}")
            continue
        entries.append({**entry, "op_types": fragment.op_types})
    return entries


def _write(
    folder: Path,
    name: str,
    body: Callable[..., Any],
    specs: Sequence[tf.TensorSpec],
    arguments: list[dict[str, Any]],
    *,
    signature: str | None = None,
    predicted_peak_bytes: int | None = None,
) -> dict[str, Any]:
    function = tf.function(lambda *inputs: body(*inputs), autograph=False, jit_compile=True)
    text = function.experimental_get_compiler_ir(*specs)(stage="stablehlo")
    (folder / f"{name}.mlir").write_text(plain_stablehlo(text))
    return {
        "name": name,
        "file": f"{name}.mlir",
        "signature": signature,
        "arguments": arguments,
        "predicted_peak_bytes": predicted_peak_bytes,
    }


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
