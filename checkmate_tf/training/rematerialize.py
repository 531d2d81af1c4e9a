"""Rematerializes Keras's `fit`: `rematerialize` installs a rewritten training step, `restore` removes it."""

from pathlib import Path
from typing import Any

import keras

from checkmate_tf.budget import format_bytes
from checkmate_tf.errors import BudgetError
from checkmate_tf.measurement.measured_steps import plan_alone
from checkmate_tf.planning.options import OnInfeasible, Options, Request
from checkmate_tf.planning.plan_file import load_planned
from checkmate_tf.reports.plan import Plan
from checkmate_tf.training.installed_step import InstalledStep, find_installed_step
from checkmate_tf.training.model_checks import check_is_model
from checkmate_tf.training.traced_model import prepare_batch


@plan_alone()
def rematerialize(
    model: keras.Model,
    *,
    batch_size: int | None = None,
    data: Any = None,
    budget: int | float | str = "auto",
    time_limit_s: float = 60.0,
    options: Options = Options(),
    measure: bool = True,
    progress: bool = True,
    on_infeasible: OnInfeasible = "run",
    plan: Plan | str | Path | None = None,
) -> Plan:
    """Rewrites the training step of a compiled model so that it keeps within a memory budget.

    `model.fit` and `model.train_on_batch` then run the rewritten step. Batches of another shape are planned when they
    first come, within the same number of bytes, and a warning says which sizes or dtypes were not planned; those of
    fewer rows whose stock step keeps to the budget run that. Batches of other dtypes that Keras converts to what was
    planned, such as floats of 64 bits, follow the same plan. Call it again to plan further batch sizes, with their own
    budgets.

    `model.compile` may be called again, as some trainers do before each training: where the new optimizer and loss
    make a step of the same graph, it is traced and follows the plan that it had. Otherwise it is planned again, and a
    warning says why.

    Args:
        batch_size: rows of the batches to plan for; the other sizes come from the model's input shapes.
        data: what `fit` takes: arrays as a tuple (x, y, sample_weight), a dataset, a PyDataset, text for a model with
            a preprocessor. `fit` itself is asked for the batches that it would train on; of different sizes the
            largest of the first 16 counts, and `Options(num_shapes=3)` plans for the next two, too. Needed where the
            model leaves sizes open. Where a model's own `fit` has another argument for its data, such as `dataset`,
            the data go there. A dictionary whose keys are
            arguments of `fit`, such as `{"simulator": simulator, "num_batches": 4}`, is taken as those; one
            whose keys are names of the model's inputs is x. For a model without named inputs a tuple `(x,)` with
            the dictionary in it says that it is x.
        budget: bytes, "6GiB", "60%" of the stock step's peak, or "auto", the device's free memory less a
            margin. It covers parameters, optimizer state and batch, and is each replica's where
            `tf.distribute.MirroredStrategy` trains the model.
        time_limit_s: for the solver, in all.
        options: the solver, the order in which it may compute, where costs come from, and the seed: see `Options`.
        measure: run the step on this device before it is installed, with the model's state put back
            after, and plan tighter until it measures within the budget.
        progress: bars on standard error, where that is a terminal, while nodes are measured and a solver runs.
            An interrupt leaves the model as it was.
        on_infeasible: what is done with batches of another shape that training meets and that no plan keeps within the
            budget: "run" the plan of least memory, after a warning, or "raise" InfeasibleBudgetError.
        plan: one that was made before, or the file that `Plan.save` wrote: it is installed with its own budget.
            Nothing is timed or solved, and one measurement confirms it, unless `measure` is False.

    Raises UnsupportedModelError, BatchError, BudgetError or InfeasibleBudgetError, and PlanError where `plan` is for
    another step or takes more than its budget here; the model then trains as before.

    >>> import numpy as np
    >>> layers = [keras.layers.Dense(64, activation="relu") for _ in range(8)]
    >>> model = keras.Sequential([keras.Input((64,)), *layers, keras.layers.Dense(1)])
    >>> model.compile("sgd", "mse", jit_compile=False)
    >>> quick = {"options": Options(costs="flops"), "measure": False, "progress": False}
    >>> plan = rematerialize(model, batch_size=512, budget="90%", **quick)
    >>> plan.predicted_peak_bytes <= plan.budget_bytes
    True
    >>> history = model.fit(np.ones((512, 64)), np.ones((512, 1)), batch_size=512, verbose=0)
    >>> restore(model)
    """
    given = plan.planned if isinstance(plan, Plan) else None if plan is None else load_planned(plan)
    if given is not None:
        if budget != "auto":
            raise BudgetError(f"a plan has a budget of its own, {format_bytes(given.budget_bytes)}: leave budget out")
        budget = given.budget_bytes
    request = Request(budget, time_limit_s, options, measure, progress, on_infeasible, given)
    batch = prepare_batch(model, batch_size=batch_size, data=data)
    step = find_installed_step(model) or InstalledStep(model, request)
    planned = step.plan(batch, request)
    step.install()
    return Plan(planned)


def restore(model: keras.Model) -> None:
    """Puts back the step that the model had before `rematerialize`, where it has been rematerialized.

    >>> model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64), keras.layers.Dense(1)])
    >>> model.compile("sgd", "mse", jit_compile=False)
    >>> plan = rematerialize(model, batch_size=512, budget="100%", measure=False, progress=False)
    >>> restore(model)
    >>> find_installed_step(model) is None
    True
    """
    check_is_model(model)
    step = find_installed_step(model)
    if step is not None:
        step.remove()
