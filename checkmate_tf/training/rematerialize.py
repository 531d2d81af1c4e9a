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
    """Rewrites the training step of a compiled model so that it stays within a memory budget.

    `model.fit` and `model.train_on_batch` then run the rewritten step. A batch with a new shape is planned when it
    first appears, within the same number of bytes, and a warning names the new sizes or dtypes. A batch with fewer rows
    runs the stock step if that stays within the budget. A batch whose dtypes Keras converts to the planned ones, such
    as 64-bit floats, follows the same plan. Call `rematerialize` again to plan further batch sizes with their own
    budgets.

    You may call `model.compile` again, as some trainers do before each training. If the new optimizer and loss lead to
    the same graph, the step follows its existing plan. Otherwise it is planned again, and a warning says why.

    Args:
        model: the compiled model.
        batch_size: rows of the batches to plan for. The other sizes come from the model's input shapes.
        data: the data for `fit`: arrays as a tuple (x, y, sample_weight), a dataset, a PyDataset, or text for a model
            with a preprocessor. Required if the model leaves sizes open. Planning calls `fit` to get its batches. If
            their sizes differ, it uses the largest of the first 16; `Options(num_shapes=3)` plans the next two, too. If
            a model's own `fit` has another argument for its data, such as `dataset`, the data go there. A dictionary
            whose keys are arguments of `fit`, such as `{"simulator": simulator, "num_batches": 4}`, is passed as those
            arguments. A dictionary whose keys are names of the model's inputs is x. For a model without named inputs,
            pass a dictionary as a tuple `(x,)`.
        budget: bytes, "6GiB", "60%" of the stock step's peak, or "auto", the device's free memory minus a margin. It
            covers parameters, optimizer state and batch. Under `tf.distribute.MirroredStrategy`, it applies to each
            replica.
        time_limit_s: seconds for all runs of the solver together.
        options: the solver, the order of computation, the source of costs, and the seed; see `Options`. A plan for a
            device that is not here, such as `Options(device="h100")`, is not installed: save it for that machine.
        measure: whether to run the step on this device before it is installed, and to lower the target until the
            measured peak is within the budget. The model's state is restored afterwards.
        progress: whether to show progress bars on standard error, if that is a terminal. An interrupt leaves the model
            unchanged.
        on_infeasible: what to do if training meets a batch with a new shape that no plan keeps within the budget: "run"
            the plan of least memory, after a warning, or "raise" InfeasibleBudgetError.
        plan: an earlier plan, or the file that `Plan.save` wrote. It is installed with its own budget. Nothing is timed
            or solved, and one measurement confirms the plan unless `measure` is False.

    Returns:
        The plan, which can be printed, drawn and saved.

    Raises:
        UnsupportedModelError: if the model, its `compile()` arguments or its training step cannot be rematerialized.
        BatchError: if the model cannot train on such a batch.
        BudgetError: if the budget cannot be read.
        InfeasibleBudgetError: if no plan within the budget was found.
        PlanError: if `plan` is for another step or exceeds its budget here.

    After an error, the model trains as before.

    Example:

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
            raise BudgetError(f"the plan has its own budget, {format_bytes(given.budget_bytes)}: leave budget out")
        budget = given.budget_bytes
    request = Request(budget, time_limit_s, options, measure, progress, on_infeasible, given)
    batch = prepare_batch(model, batch_size=batch_size, data=data)
    if options.device is not None:
        return Plan(InstalledStep(model, request).plan(batch, request))
    step = find_installed_step(model) or InstalledStep(model, request)
    planned = step.plan(batch, request)
    step.install()
    return Plan(planned)


def restore(model: keras.Model) -> None:
    """Removes the step that `rematerialize` installed, so that the model trains as before. Does nothing without one.

    Args:
        model: the model.

    Raises:
        UnsupportedModelError: if `model` is not a Keras model.

    Example:

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
