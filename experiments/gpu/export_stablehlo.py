"""Training steps, and the nodes of them, as StableHLO: for a GPU machine that has JAX but no TensorFlow.

    python -m experiments.gpu.export_stablehlo --output FOLDER
    python -m experiments.gpu.export_stablehlo --output FOLDER --results RESULTS_FOLDER

Writes FOLDER/manifest.json and a module, as MLIR text, for each stock step and each step with `tf.recompute_grad`
around its blocks. Given what `run_jax.py` made of these, it writes them again, with a rewritten step for each budget
and one within what the blocks took, planned of the kernels that XLA compiled the stock steps to; and a module for each
distinct node of these steps. Once such nodes are timed, it plans with what they took. Needs TensorFlow and no GPU. What
to do with the folder is told in README.md beside this file.
"""

import argparse
import gzip
import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf
from tqdm import tqdm

from checkmate_tf.budget import parse_budget
from checkmate_tf.errors import ProfileError
from checkmate_tf.executors.emission.function import EmittedFunction
from checkmate_tf.executors.step import ResidentBytes
from checkmate_tf.executors.xla.backends import GPU
from checkmate_tf.executors.xla.costs import cut_nodes
from checkmate_tf.executors.xla.step import XlaStep
from checkmate_tf.profiling.costs import CostModel, NodeCosts, estimate_roofline_costs
from checkmate_tf.profiling.roofline import Roofline
from checkmate_tf.profiling.signature import Fragment
from checkmate_tf.profiling.timing import build_fragment_body
from checkmate_tf.simulator import simulate_stock
from checkmate_tf.solvers import solve
from checkmate_tf.tf_private import HloProto
from checkmate_tf.tracing.extraction import TrainingGraph, extract
from checkmate_tf.training.batches import guess_spec
from checkmate_tf.training.model_variables import build_for
from checkmate_tf.training.step_part import StepPart, complete_step, make_gradient_part
from experiments.peers.models import build
from experiments.profiling.models import MODELS
from experiments.running import environment_cells
from experiments.xla.equal_memory import MODELS as PEER_MODELS

FORMAT = "checkmate-stablehlo/3"
_OF_JAX = re.compile(r"jit\([^)]*\)/call_exported/|inputs\[\d+\]")  # what JAX adds to names
_PACKED = re.compile(r'(%\S+) = stablehlo\.constant dense<"0x([0-9A-Fa-f]+)"> : tensor<([\dx]+)xi1>')
# Rates of a data center's GPU, for schedules to be made before its own nodes are timed.
RATES = Roofline(flops_per_ns=60_000, bytes_per_ns=2_000, dispatch_ns=2_000)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", choices=MODELS, default=["resnet50", "unet"])
    parser.add_argument("--peers", nargs="*", choices=PEER_MODELS, default=list(PEER_MODELS), help="with blocks")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--peer-batch-size", type=int, default=64)
    parser.add_argument("--budgets", nargs="*", default=["80%", "60%", "40%"], help="of the stock step's peak")
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds of the solver for each budget")
    parser.add_argument("--steps-only", action="store_true", help="leave out the nodes")
    parser.add_argument("--results", type=Path, help="the folder that run_jax.py wrote")
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    results = Results.read(args.results) if args.results else Results()
    exporter = Exporter(args.output, args.time_limit, results, with_nodes=not args.steps_only)
    for name in args.models:
        keras.utils.clear_session()  # else names of layers, by which a device's kernels are known, tell of other models
        exporter.export_budgets(MODELS[name](), name, args.batch_size, args.budgets)
    for name in args.peers:
        keras.utils.clear_session()
        stock, peer = (build(name, way)[0] for way in ("stock", "tf.recompute_grad"))
        exporter.export_beside_peer(stock, peer, f"blocks_{name}", args.peer_batch_size)
    exporter.write_manifest()
    print(f"{len(exporter.modules)} modules in {args.output}")


@dataclass(frozen=True)
class Results:
    """These results are what a device brought back of an earlier export; nothing at first.

    Args:
        steps: by name, as `run_jax.py` writes them.
        cost_ns: of nodes, by signature.
    """

    folder: Path | None = None
    steps: dict[str, dict[str, Any]] = field(default_factory=dict)
    cost_ns: dict[str, float] = field(default_factory=dict)

    @staticmethod
    def read(folder: Path) -> "Results":
        found = json.loads((folder / "results.json").read_text())["results"]
        return Results(
            folder,
            {entry["name"]: entry for entry in found if "signature" not in entry},
            {entry["signature"]: entry["cost_ns"] for entry in found if "signature" in entry},
        )

    @property
    def costs(self) -> str:
        """What costs are made of, once steps are known."""
        return "measured" if self.cost_ns else "roofline"

    def read_module(self, name: str) -> HloProto | None:
        """Reads what a step was compiled to; None where it was not."""
        path = self.folder / f"{name}.pb.gz" if self.folder else None
        if path is None or not path.exists():
            return None
        module = HloProto.FromString(gzip.decompress(path.read_bytes()))
        for computation in module.hlo_module.computations:
            for instruction in computation.instructions:
                instruction.metadata.op_name = _OF_JAX.sub("", instruction.metadata.op_name)
        if not module.buffer_assignment.buffer_allocations:  # a GPU's tells sums alone
            buffers = module.buffer_assignment.buffer_allocations
            buffers.add(size=self.steps[name]["temporary_bytes"])
            buffers.add(size=self.steps[name]["output_bytes"], maybe_live_out=True)
            buffers.add(size=self.steps[name]["argument_bytes"], is_entry_computation_parameter=True)
        return module


class GpuCosts(CostModel):
    """Nodes cost what a GPU's rates say."""

    def find_node_costs(self, training_graph: TrainingGraph) -> NodeCosts:
        return NodeCosts("ns", tuple(estimate_roofline_costs(training_graph, RATES, compiled=True)))


@dataclass
class Exporter:
    """An exporter writes modules to a folder, equal nodes once."""

    folder: Path
    time_limit_s: float
    results: Results = field(default_factory=Results)
    with_nodes: bool = True
    modules: list[dict[str, Any]] = field(default_factory=list)
    known: set[str] = field(default_factory=set)  # signatures of nodes

    def write_manifest(self) -> None:
        """Writes what `run_jax.py` reads: steps before nodes."""
        modules = sorted(self.modules, key=lambda module: "signature" in module)
        manifest = {"format": FORMAT, "environment": environment_cells(), "modules": modules}
        (self.folder / "manifest.json").write_text(json.dumps(manifest, indent=1))

    def export_budgets(self, model: keras.Model, name: str, batch_size: int, budgets: Sequence[str]) -> None:
        """Exports the stock step, and a rewritten one for each budget: whole ones, as `rematerialize` plans."""
        step = self.export_stock(model, name, batch_size)
        for budget in budgets if step else ():
            self.export_plan(step, name, batch_size, budget, parse_budget(budget, peak_bytes=step.stock_peak_bytes))

    def export_beside_peer(self, stock: keras.Model, peer: keras.Model, name: str, batch_size: int) -> None:
        """Exports the stock step, the peer's, and ours within what the peer's took, where that is known."""
        step = self.export_stock(stock, name, batch_size)
        spec, part = guess_spec(peer, batch_size), make_part(peer, batch_size)
        about = {"model": name, "batch_size": batch_size, "budget": "peer"}
        self.write_step(spec.flat, complete_step(part, spec, EmittedFunction(part.trace(spec))), about)
        took = self.results.steps.get(f"step_{name}_peer")
        if step and took:
            self.export_plan(step, name, batch_size, "equal", step.graph.resident_bytes + took["temporary_bytes"])

    def export_stock(self, model: keras.Model, name: str, batch_size: int) -> XlaStep | None:
        """Exports the stock step; makes what plans are made of, where it is known what the device compiles it to."""
        spec, part = guess_spec(model, batch_size), make_part(model, batch_size)
        traced, whole = extract(part.trace(spec), name=name), partial(complete_step, part, spec)
        about = {"model": name, "batch_size": batch_size, "budget": "stock", "overhead": 0.0}
        module = self.results.read_module(f"step_{name}_stock")
        if module is None:
            self.write_step(spec.flat, whole(EmittedFunction(traced.function)), about)
            return None
        step = XlaStep.of_module(module, GPU, traced, whole, spec.flat, resident=ResidentBytes())
        step = step.add_costs(GpuCosts())
        cuts = cut_nodes(step.xla_graph)
        cost_ns = [self.results.cost_ns.get(cut.signature) if isinstance(cut, Fragment) else None for cut in cuts]
        nodes = tuple(
            node if cost is None else replace(node, cost=round(cost))
            for node, cost in zip(step.graph.nodes, cost_ns, strict=True)
        )
        step = replace(step, xla_graph=replace(step.xla_graph, graph=replace(step.graph, nodes=nodes)))
        about |= {"predicted_temporary_bytes": simulate_stock(step.graph).peak_bytes - step.graph.resident_bytes}
        self.write_step(step.specs, step.whole_step(step.stock), about)
        if self.with_nodes:
            self.export_nodes(cuts, name)
        return step

    def export_plan(self, step: XlaStep, name: str, batch_size: int, budget: str, budget_bytes: int) -> None:
        solution = solve(step.graph, budget_bytes, time_limit_s=self.time_limit_s)
        if solution.best is None:
            print(f"{name}: no schedule within {budget}: {solution.status}")
            return
        simulation = solution.best.simulation
        predicted_bytes = simulation.peak_bytes - step.graph.resident_bytes
        about = {"model": name, "batch_size": batch_size, "budget": budget, "costs": self.results.costs}
        about |= {"overhead": simulation.overhead, "predicted_temporary_bytes": predicted_bytes}
        self.write_step(step.specs, step.whole_step(step.emit(step.arrange(solution.best.schedule), "chain")), about)

    def write_step(self, specs: Sequence[tf.TensorSpec], step: Callable[..., Any], about: dict[str, Any]) -> None:
        name = "_".join(["step", about["model"], about["budget"].rstrip("%")])
        self.modules.append({**self.write_whole(name, specs, step), **about})

    def write_whole(self, name: str, specs: Sequence[tf.TensorSpec], step: Callable[..., Any]) -> dict[str, Any]:
        """Writes a step whose arguments are its batch and the variables that it uses."""
        whole = tf.function(step, autograph=False).get_concrete_function(*specs)
        arguments = [_argument(spec.shape, spec.dtype) for spec in specs]
        arguments += [_variable_argument(tensor) for tensor in whole.captured_inputs]
        return self.write(name, whole, specs, arguments)

    def export_nodes(self, cuts: Sequence[Fragment | ProfileError], name: str) -> None:
        """Exports every distinct node, with what XLA computes within it, that can be compiled alone."""
        found = [cut for cut in cuts if isinstance(cut, Fragment)]
        distinct = {cut.signature: cut for cut in found if not any(given.is_resource for given in cut.inputs)}
        fragments = {signature: cut for signature, cut in distinct.items() if signature not in self.known}
        self.known.update(fragments)
        for signature, fragment in tqdm(fragments.items(), "exporting nodes", disable=None):
            given = [described for described in fragment.inputs if described.constant is None]
            specs = [tf.TensorSpec(described.shape, described.dtype) for described in given]
            arguments = [_argument(described.shape, described.dtype, described.limit) for described in given]
            try:
                entry = self.write(f"node_{signature}", build_fragment_body(fragment, None), specs, arguments)
            except (ValueError, tf.errors.OpError) as error:
                print(f"left out {fragment.op_types}: {str(error).splitlines()[0]}")
                continue
            self.modules.append({**entry, "model": name, "signature": signature, "op_types": fragment.op_types})

    def write(
        self, name: str, body: Callable[..., Any], specs: Sequence[tf.TensorSpec], arguments: list[dict[str, Any]]
    ) -> dict[str, Any]:
        function = tf.function(lambda *inputs: body(*inputs), autograph=False, jit_compile=True)
        text = function.experimental_get_compiler_ir(*specs)(stage="stablehlo")
        (self.folder / f"{name}.mlir").write_text(plain_stablehlo(text))
        return {"name": name, "file": f"{name}.mlir", "arguments": arguments}


def make_part(model: keras.Model, batch_size: int) -> StepPart:
    build_for(model, guess_spec(model, batch_size))
    part = make_gradient_part(model)
    assert part is not None
    return part


def plain_stablehlo(text: str) -> str:
    """The module without what only XLA's own dialect knows: JAX reads StableHLO alone.

    Constants of booleans are written as bytes: whether a byte holds one of them or eight depends on the version.
    """
    text = _PACKED.sub(_unpack, text)
    text = re.sub(r"^(module @\S+) attributes \{.*\} \{", r"\1 {", text, flags=re.MULTILINE)
    text = re.sub(r"mhlo\.copy (%\S+) : (tensor<[^>]*>)", r"stablehlo.reshape \1 : (\2) -> \2", text)
    return re.sub(r" \{mhlo\.frontend_attributes = \{[^{}]*\}\}", "", text)


def _unpack(constant: re.Match[str]) -> str:
    """Writes a constant whose bytes hold eight booleans each as one of bytes that is converted."""
    name, packed, shape = constant.groups()
    size = prod(map(int, shape.split("x")))
    bits = np.unpackbits(np.frombuffer(bytes.fromhex(packed), np.uint8), bitorder="little")[:size]
    given = f'{name}_bytes = stablehlo.constant dense<"0x{bits.tobytes().hex()}"> : tensor<{shape}xi8>'
    return f"{given}\n    {name} = stablehlo.convert {name}_bytes : (tensor<{shape}xi8>) -> tensor<{shape}xi1>"


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
