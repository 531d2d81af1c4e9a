"""Rematerialization in Keras's `fit`: `rematerialize` installs a rewritten training step, `restore` removes it."""

from typing import Any

import keras

from checkmate_tf.distribution import replica_batch, scope_of
from checkmate_tf.keras_step import build_for, check_model
from checkmate_tf.plan import Options, Plan
from checkmate_tf.profiling.costs import CostModel
from checkmate_tf.rewrite import Rewrite
from checkmate_tf.schedule import Order
from checkmate_tf.solvers import Solver
from checkmate_tf.training_data import batch_for


def rematerialize(
    model: keras.Model,
    *,
    batch_size: int | None = None,
    data: Any = None,
    budget: int | float | str,
    solver: str | Solver = "auto",
    order: Order = "fixed",
    costs: str | CostModel = "measured",
    time_limit_s: float = 60.0,
    seed: int = 0,
    measure: bool = True,
    progress: bool = True,
) -> Plan:
    """Rewrites the training step of a compiled model so that it keeps within a memory budget.

    `model.fit` and `model.train_on_batch` then run the rewritten step. Batches of another shape are
    planned when they first come; where Keras leaves the batch size open (the last batch may be smaller)
    sizes not planned run the stock step, with a warning where that takes more than the budget. Call it
    again to plan further batch sizes, with their own budgets.

    Args:
        batch_size: rows of the batches to plan for; the other sizes come from the model's input shapes.
        data: what `fit` takes: arrays as (x, y, sample_weight), a dataset, a PyDataset; sizes come from
            its first batch. Needed where the model leaves sizes open.
        budget: bytes, "6GiB", "60%" of the stock step's peak, or "auto", the device's free memory less a
            margin. It covers parameters, optimizer state and batch, and is each replica's where
            `tf.distribute.MirroredStrategy` trains the model.
        order: "free" lets a solver reorder the step.
        costs: "flops" for analytic costs, "measured" for node times on this device.
        time_limit_s: for the solver, in all.
        measure: run the step on this device before it is installed, with the model's state put back
            after, and plan tighter until it measures within the budget.
        progress: bars on standard error, where that is a terminal, while nodes are measured and a solver runs.
            An interrupt leaves the model as it was.

    Raises UnsupportedModelError, BatchError, BudgetError or InfeasibleBudgetError; the model then trains
    as before.
    """
    options = Options(budget, solver, order, costs, time_limit_s, seed, measure, progress)
    check_model(model)
    with scope_of(model):
        build_for(model, None if data is None else batch_for(model, batch_size=batch_size, data=data).spec)
        batch = batch_for(model, batch_size=batch_size, data=data)
        build_for(model, batch.spec)
    rewrite = installed(model) or Rewrite.of(model)
    plan = rewrite.plan(replica_batch(model, batch), options)
    rewrite.install()
    return plan


def restore(model: keras.Model) -> None:
    """The step that the model had before `rematerialize`; nothing where it has not been rematerialized."""
    rewrite = installed(model)
    if rewrite is not None:
        rewrite.remove()


def installed(model: keras.Model) -> Rewrite | None:
    """The rewrite installed in the model, None where there is none."""
    return getattr(model.__dict__.get("train_step"), "rewrite", None)
