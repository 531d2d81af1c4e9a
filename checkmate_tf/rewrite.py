"""A rewritten Keras training step: its plans by batch shape, and which one a batch runs."""

import threading
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from checkmate_tf.budget import format_bytes
from checkmate_tf.distribution import check_distribution, current_replica, num_replicas, traced_on_replica
from checkmate_tf.emission import EmittedFunction, emit
from checkmate_tf.keras_step import StepPart, build_for, check_model, step_part, training_variables
from checkmate_tf.measuring import free_bytes, measured_bytes
from checkmate_tf.plan import (
    CHUNK_MARGIN,
    ORDER_SPREAD,
    Options,
    Plan,
    Planned,
    ResidentBytes,
    make_plan,
    training_graph_of,
)
from checkmate_tf.profiling.device import default_device
from checkmate_tf.training_data import Batch, BatchSpec, flat_tensors, synthetic_batch, tensor_bytes
from checkmate_tf.xla_plan import make_xla_plan, xla_costs


@dataclass(frozen=True, eq=False)
class CompiledState:
    """What a plan was made for; the objects themselves, so that no identity is ever reused."""

    optimizer: Any
    loss: Any
    trainable: tuple[Any, ...]
    dtypes: tuple[str, ...]
    jit_compile: bool

    @staticmethod
    def of(model: keras.Model) -> "CompiledState":
        policies = tuple(layer.dtype_policy.name for layer in model._flatten_layers())
        trainable = tuple(model.trainable_weights)
        return CompiledState(model.optimizer, model._compile_loss, trainable, policies, bool(model.jit_compile))

    def changes(self, now: "CompiledState") -> list[str]:
        """What differs now, in words."""
        same_weights = len(self.trainable) == len(now.trainable) and all(
            mine is theirs for mine, theirs in zip(self.trainable, now.trainable, strict=True)
        )
        differs = {
            "the optimizer": self.optimizer is not now.optimizer,
            "the loss": self.loss is not now.loss,
            "the trainable weights": not same_weights,
            "a dtype policy": self.dtypes != now.dtypes,
            "jit_compile": self.jit_compile != now.jit_compile,
        }
        return [what for what, changed in differs.items() if changed]


@dataclass(frozen=True)
class Entry:
    """The plan for one static batch spec; what carries it out on each replica is emitted when that is first traced."""

    spec: BatchSpec
    planned: Planned
    options: Options
    state: CompiledState
    for_xla: bool
    on_replica: dict[int, EmittedFunction]


@dataclass(eq=False)
class Rewrite:
    """The rewritten step of one model. `replaced` is the `train_step` that the instance had before, or None."""

    model: keras.Model
    replaced: Callable[[Any], Any] | None
    entries: dict[str, Entry] = field(default_factory=dict)
    lock: Any = field(default_factory=threading.RLock)

    @staticmethod
    def of(model: keras.Model) -> "Rewrite":
        return Rewrite(model, model.__dict__.get("train_step"))

    @property
    def part(self) -> StepPart:
        return step_part(self.model, self.replaced)

    def plan(self, batch: Batch, options: Options) -> Plan:
        """Plans for the batch's spec; the entry is kept only where planning succeeds."""
        with self.lock:
            planned = _plan(self.model, self.part, batch, options)
            self.entries[batch.spec.key] = Entry(
                batch.spec,
                planned,
                options,
                CompiledState.of(self.model),
                self.model.jit_compile,
                {current_replica(): planned.emitted},
            )
        if self.model.run_eagerly:
            _warn(f"model {self.model.name!r} is compiled with run_eagerly=True and trains with its stock step")
        return planned.plan

    def install(self) -> None:
        """Makes `fit` and `train_on_batch` run the rewritten step."""

        def train_step(batch: Any) -> Any:
            return self.step(batch)

        train_step.rewrite = self  # type: ignore[attr-defined]
        self.model.train_step = train_step
        self.model.train_function = None

    def remove(self) -> None:
        """Puts the step back that the model had before."""
        if self.replaced is None:
            del self.model.train_step
        else:
            self.model.train_step = self.replaced
        self.model.train_function = None

    def step(self, batch: Any) -> Any:
        """One training step on a batch, as Keras calls it while tracing; the step's logs."""
        part = self.part
        if tf.executing_eagerly():
            _warn(f"model {self.model.name!r} runs eagerly, with its stock training step: no memory budget holds")
            return part.original(batch)
        check_model(self.model)
        spec = BatchSpec.of(batch)
        if spec.is_static:
            return part.finish(batch, _call(self._on_this_replica(self._entry(spec)), batch))
        candidates = self._candidates(spec)
        if not candidates:
            _warn(
                f"batches of model {self.model.name!r} have open sizes, {spec.key}, that fit no planned batch: "
                "the stock step runs, and no memory budget holds; pass rematerialize(model, data=...)"
            )
            return part.original(batch)
        return part.finish(batch, self._switch(part, batch, self._fitting(candidates)))

    def _entry(self, spec: BatchSpec) -> Entry:
        """The plan for a static spec; planned now where it is new or the model has changed since."""
        with self.lock:
            entry = self.entries.get(spec.key)
            changes = entry.state.changes(CompiledState.of(self.model)) if entry else []
            if entry and not changes:
                return entry
            if changes:
                _warn(f"{' and '.join(changes)} of model {self.model.name!r} changed: its step is planned again")
            options = entry.options if entry else list(self.entries.values())[-1].options
            with tf.init_scope():
                build_for(self.model, spec)
                batch = synthetic_batch(spec)
            self.plan(batch, options)
            return self.entries[spec.key]

    def _fitting(self, specs: list[BatchSpec]) -> list[Entry]:
        return [self._on_this_replica(self._entry(spec)) for spec in specs]

    def _on_this_replica(self, entry: Entry) -> Entry:
        """The entry with its step emitted for the replica that is traced now: on that replica's variables."""
        replica = current_replica()
        with self.lock:
            if replica in entry.on_replica:
                return entry
            concrete, plan = self.part.trace(entry.spec), entry.planned.plan
            with tf.init_scope():
                graph = training_graph_of(concrete, name=plan.name, resident_bytes=plan.resident.total, costs="flops")
                entry.on_replica[replica] = emit(graph, plan.schedule, ordering=entry.planned.ordering)
        return entry

    def _candidates(self, spec: BatchSpec) -> list[BatchSpec]:
        """Static specs that a batch of a spec with open sizes may turn out to have, from the planned ones."""
        fitting: dict[str, BatchSpec] = {}
        for entry in self.entries.values():
            merged = spec.merged(entry.spec)
            if merged is None and entry.spec.batch_size is not None:
                merged = spec.with_batch_size(entry.spec.batch_size)
            if merged is not None and merged.is_static:
                fitting[merged.key] = merged
        return list(fitting.values())

    def _switch(self, part: StepPart, batch: Any, entries: list[Entry]) -> Any:
        """The rewritten step where the batch has a planned shape, the stock step where it has none."""
        structure = entries[0].planned.emitted.function.structured_outputs

        def stock() -> list[tf.Tensor]:
            _warn_above_budget(self.model, batch, entries)
            return flat_tensors(part.compute(batch))

        branch = stock
        for entry in entries:
            branch = _cond(entry, batch, branch)
        return _packed(structure, branch())


def _cond(entry: Entry, batch: Any, otherwise: Callable[[], list[tf.Tensor]]) -> Callable[[], list[tf.Tensor]]:
    def rewritten() -> list[tf.Tensor]:
        return flat_tensors(_call(entry, batch))

    return lambda: tf.cond(_has_shape(batch, entry.spec), rewritten, otherwise)


def _has_shape(batch: Any, spec: BatchSpec) -> tf.Tensor:
    fits = [
        tf.reduce_all(tf.equal(tf.shape(tensor), part.shape))
        for tensor, part in zip(flat_tensors(batch), spec.flat, strict=True)
        if not tensor.shape.is_fully_defined()
    ]
    return tf.reduce_all(tf.stack(fits))


def _call(entry: Entry, batch: Any) -> Any:
    tensors = [
        tensor if tensor.shape.is_fully_defined() else _pinned(tensor, part.shape, for_xla=entry.for_xla)
        for tensor, part in zip(flat_tensors(batch), entry.spec.flat, strict=True)
    ]
    return entry.on_replica[current_replica()].function(*tensors)


def _pinned(tensor: tf.Tensor, shape: tf.TensorShape, *, for_xla: bool) -> tf.Tensor:
    """The tensor, of a shape known from elsewhere; a whole slice, which copies nothing.

    EnsureShape, Reshape or set_shape would not do: grappler's shape inference (constant folding,
    TensorFlow 2.21) carries the sizes that they state over to the other branch of a tf.cond.
    XLA compiles both branches before it drops the one not taken, so there the slice must be in range for any
    size; the padding is compiled away where the size fits.
    """
    if for_xla:
        tensor = tf.pad(tensor, [[0, size] for size in shape])
    return tf.slice(tensor, [0] * shape.rank, shape)


def _warn_above_budget(model: keras.Model, batch: Any, entries: list[Entry]) -> None:
    """Warns when the stock step for this batch runs and takes more than the budget, as far as sizes tell.

    XLA compiles no call of Python: there the warning comes once, before any batch.
    """
    largest = max(entries, key=lambda entry: entry.spec.batch_size or 0)
    plan, planned_size = largest.planned.plan, largest.spec.batch_size
    if planned_size is None:
        return
    per_row = max(plan.stock_peak_bytes - plan.graph.resident_bytes, 1) / planned_size
    most_rows = int((plan.budget_bytes - plan.graph.resident_bytes) / per_row)
    if model.jit_compile:
        _warn(
            f"model {model.name!r} runs its stock step on batches of sizes not planned; those of more than {most_rows} "
            f"rows take more than the budget of {format_bytes(plan.budget_bytes)}; plan them too with "
            "rematerialize(model, batch_size=..., ...)"
        )
        return

    def warn(size: Any) -> Any:
        rows = int(size)
        needed = int(plan.graph.resident_bytes + rows * per_row)
        _warn(
            f"a batch of {rows} rows ran the stock step of model {model.name!r} and took about {format_bytes(needed)}, "
            f"above the budget of {format_bytes(plan.budget_bytes)}; plan it too with "
            f"rematerialize(model, batch_size={rows}, ...)"
        )
        return size

    size = tf.shape(next(tensor for tensor in flat_tensors(batch) if tensor.shape.rank))[0]
    tf.cond(size > most_rows, lambda: tf.numpy_function(warn, [size], tf.int32), lambda: size)


def _plan(model: keras.Model, part: StepPart, batch: Batch, options: Options) -> Planned:
    check_distribution(model, is_whole=part.is_whole)
    # Not in the init scope, which stops gradient tapes.
    concrete = traced_on_replica(model, lambda: part.trace(batch.spec))
    resident = resident_of(model, batch.spec, concrete)

    def free() -> int:
        return resident.total + free_bytes(default_device())

    with tf.init_scope():
        costs = xla_costs(options.costs) if model.jit_compile else options.costs
        graph = training_graph_of(
            concrete, name=model.name, resident_bytes=resident.total, costs=costs, progress=options.progress
        )
        # What follows the gradients joins the replicas: on one of them nothing but the gradients can run.
        alone = num_replicas(model) == 1
        step_with = partial(whole_step, part, batch.spec) if alone else lambda function: function
        if model.jit_compile:
            return make_xla_plan(graph, step_with, batch.spec.flat, options, resident=resident, free_bytes=free)
        return make_plan(
            graph.graph,
            options,
            emit=lambda schedule, ordering: emit(graph, schedule, ordering=ordering),
            resident=resident,
            update_peak_bytes=_update_peak(model, part, batch, concrete, resident, options),
            measure=_measurer(step_with, batch, resident) if options.measure else None,
            free_bytes=free,
            margin=CHUNK_MARGIN,
            spread=ORDER_SPREAD,
        )


def whole_step(part: StepPart, spec: BatchSpec, function: Callable[..., Any]) -> Callable[..., Any]:
    """The step of a flat batch with `function` in the place of what is rewritten."""

    def step(*tensors: tf.Tensor) -> Any:
        return part.finish(spec.pack(tensors), function(*tensors))

    return step


def resident_of(model: keras.Model, spec: BatchSpec, concrete: Any) -> ResidentBytes:
    """What is held throughout, variables that only a step of the user's own knows included: a second optimizer's."""
    weights = {id(variable): variable for variable in model.variables}
    optimizer = {id(variable): variable for variable in model.optimizer.variables if id(variable) not in weights}
    others = [v for v in training_variables(model) if id(v) not in weights and id(v) not in optimizer]
    known = {id(variable.value) for variable in training_variables(model)}
    if num_replicas(model) == 1:
        others += [variable for variable in concrete.graph.variables if id(variable) not in known]
    return ResidentBytes(
        sum(map(tensor_bytes, weights.values())),
        sum(map(tensor_bytes, optimizer.values())),
        sum(map(tensor_bytes, others)),
        spec.size_bytes,
    )


def _measurer(step_with: Callable[..., Any], batch: Batch, resident: ResidentBytes) -> Callable[[Any], int]:
    """Measures the peak of a whole step with an emitted function."""
    return lambda emitted: resident.total + measured_bytes(step_with(emitted.function), batch.tensors)


def _update_peak(
    model: keras.Model, part: StepPart, batch: Batch, concrete: Any, resident: ResidentBytes, options: Options
) -> int:
    """The peak of what follows the gradients, measured with others in their place; their own bytes where it is not."""
    if part.is_whole:
        return 0
    outputs = sum(tensor_bytes(output) for output in concrete.outputs)
    if num_replicas(model) > 1:
        return resident.total + 2 * outputs  # the replica's own gradients, and their sum over all replicas
    if not options.measure or not all(output.shape.is_fully_defined() for output in concrete.outputs):
        return resident.total + outputs

    def finish(*tensors: tf.Tensor) -> Any:
        return part.finish(batch.spec.pack(batch.tensors), _packed(concrete.structured_outputs, tensors))

    return resident.total + outputs + measured_bytes(finish, [_stand_in(output) for output in concrete.outputs])


def _stand_in(output: tf.Tensor) -> tf.Tensor:
    """Zeros; the value itself where the graph tells it, such as the dense shape of an embedding's gradient."""
    value = tf.get_static_value(output)
    return tf.zeros(output.shape, output.dtype) if value is None else tf.constant(value, output.dtype)


def _packed(structure: Any, tensors: Iterable[tf.Tensor]) -> Any:
    """The structure with its tensors replaced; None stays None."""
    leaves = iter(tensors)
    flat = [None if leaf is None else next(leaves) for leaf in tf.nest.flatten(structure, expand_composites=True)]
    return tf.nest.pack_sequence_as(structure, flat, expand_composites=True)


def _warn(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=3)
