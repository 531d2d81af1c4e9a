"""Traces the step that trains a model on batches of one spec, and searches for its plan."""

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial

import keras
import tensorflow as tf

from checkmate_tf.errors import UnsupportedModelError
from checkmate_tf.executors.graph.step import GraphStep
from checkmate_tf.executors.xla.step import XlaStep
from checkmate_tf.measurement.measured_steps import plan_alone
from checkmate_tf.planning.options import Request
from checkmate_tf.planning.planned_step import ReadyStep, Stock
from checkmate_tf.planning.search import find_plan
from checkmate_tf.planning.targets import Settings
from checkmate_tf.progress import PlanningBar, Stage, show_planning
from checkmate_tf.schedule import Schedule
from checkmate_tf.tracing.extraction import TrainingGraph
from checkmate_tf.training.batches import Batch, BatchSpec
from checkmate_tf.training.entry import Entry
from checkmate_tf.training.remat_scope import add_remat_scopes
from checkmate_tf.training.replicas import count_replicas
from checkmate_tf.training.step_part import choose_part
from checkmate_tf.training.traced_model import TracedModel


@dataclass(frozen=True)
class KnownStep:
    """A step that is ready to be planned, and schedules of other batch shapes that it may follow, too."""

    step: GraphStep | XlaStep
    schedules: tuple[Schedule, ...] = ()


@dataclass(frozen=True, eq=False)
class StepPlanner:
    """Plans the steps of one model, as it is compiled now.

    Args:
        compiled: the steps that XLA compiled, by batch spec and by whether metrics are rewritten with the step. Plans
            for other budgets use them, too.
    """

    model: keras.Model
    compiled: dict[tuple[str, bool], XlaStep] = field(default_factory=dict)

    def plan(self, batch: Batch, request: Request, *, others: Iterable[Entry] = ()) -> Entry:
        """Plans the step of a batch's spec; `others` are entries of other specs, whose plans it may follow, too.

        Raises InfeasibleBudgetError if no plan within the budget was found.
        """
        with plan_alone(), show_planning(shown=request.progress) as bar:
            return self.search(batch, self.know(batch, request, bar, others=others), request, bar)

    def search(
        self,
        batch: Batch,
        known: KnownStep,
        request: Request,
        bar: PlanningBar,
        *,
        stock: Stock | None = None,
        settings: Settings | None = None,
    ) -> Entry:
        """Searches for the plan of a known step; `stock` and `settings` as for `find_plan`."""
        if request.options.offload is not None and count_replicas(self.model) > 1:
            raise UnsupportedModelError("offload is for models that one device trains: leave it out, or the strategy")
        constrained = add_remat_scopes(self.model, request)
        with tf.init_scope():
            ready = find_plan(known.step, constrained, bar, known=known.schedules, stock=stock, settings=settings)
        return self.make_entry(batch.spec, ready, known.step.training_graph, request)

    def make_entry(
        self, spec: BatchSpec, ready: ReadyStep, training_graph: TrainingGraph | None, request: Request
    ) -> Entry:
        """Makes the entry of a spec from its planned step."""
        part = choose_part(self.model, with_metrics=_rewrites_metrics(request))
        return Entry.of_plan(self.model, part, spec, ready, training_graph)

    def know(self, batch: Batch, request: Request, bar: PlanningBar, *, others: Iterable[Entry] = ()) -> KnownStep:
        """Returns the step of a batch's spec, ready to be planned. It is traced unless XLA compiled it before."""
        key = (batch.spec.key, _rewrites_metrics(request))
        if key in self.compiled:
            return KnownStep(self.compiled[key])
        return self.make_step(self.trace(batch, request, bar), batch, request, others=others)

    def trace(self, batch: Batch, request: Request, bar: PlanningBar) -> TracedModel:
        """Traces the step of a batch's spec."""
        request.check_device(self.model.name, compiled=bool(self.model.jit_compile))
        bar.begin_stage(Stage.TRACE)
        return TracedModel.of(
            self.model,
            batch.spec,
            # A GPU's prefetched batches are in host memory.
            prefetched_bytes=batch.prefetched_bytes if request.options.device is None else 0,
            with_metrics=_rewrites_metrics(request),
        )

    def make_step(
        self, traced: TracedModel, batch: Batch, request: Request, *, others: Iterable[Entry] = (), reserve: bool = True
    ) -> KnownStep:
        """Makes the step of the model's executor; `reserve` as for `GraphStep`."""
        with tf.init_scope():
            if self.model.jit_compile:
                key = (traced.spec.key, traced.with_metrics)
                if key not in self.compiled:
                    self.compiled[key] = traced.make_xla_step(request.options.find_device())
                return KnownStep(self.compiled[key])
            make = partial(traced.make_graph_step, batch if request.measure else None, reserve=reserve)
            for entry in others:
                if entry.planned is not None and entry.training_graph is not None:
                    with contextlib.suppress(UnsupportedModelError):
                        return KnownStep(make(like=entry.training_graph), (entry.planned.schedule,))
            return KnownStep(make())

    def resize(self, traced: TracedModel) -> XlaStep | None:
        """Resizes a step that XLA compiled for another spec, without compiling it. Returns None if there is none."""
        if (traced.spec.key, traced.with_metrics) in self.compiled:
            return None
        for step in [step for (_, with_metrics), step in self.compiled.items() if with_metrics == traced.with_metrics]:
            with contextlib.suppress(UnsupportedModelError), tf.init_scope():
                return traced.resize(step)
        return None


def _rewrites_metrics(request: Request) -> bool:
    """Returns whether metrics are rewritten with the step. A loss in chunks requires it, as it keeps no logits."""
    return request.options.chunk_loss is not None
