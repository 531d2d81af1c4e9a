"""Reads and checks the arguments of `max_batch_size`: model, overhead and budget."""

import os

import keras
import tensorflow as tf

from checkmate_tf.budget import format_bytes, parse_budget
from checkmate_tf.errors import (
    BudgetError,
    InfeasibleBudgetError,
    SolverError,
    UnsupportedModelError,
    quote,
)
from checkmate_tf.max_batch.sized_step import SizedStep
from checkmate_tf.measurement.device_memory import find_free_bytes
from checkmate_tf.planning.options import Options, Request
from checkmate_tf.profiling.device import find_default_device
from checkmate_tf.training.model_checks import check_eager, check_model

ONE_FORWARD_PASS = "one forward pass"


def check_searchable(model: keras.Model) -> None:
    """Raises UnsupportedModelError for a model whose sizes cannot be searched."""
    check_model(model)
    check_eager()
    if model.distribute_strategy.num_replicas_in_sync > 1:
        raise UnsupportedModelError(
            f"model {model.name!r} is distributed over {model.distribute_strategy.num_replicas_in_sync} replicas; "
            "to find the largest batch of one replica, build the same model outside the strategy"
        )


def parse_overhead(max_overhead: float | str | None) -> float | str | None:
    """Returns the requested fraction, "one forward pass", or None.

    Raises BudgetError for anything else.
    """
    if max_overhead is None or (isinstance(max_overhead, str) and max_overhead == ONE_FORWARD_PASS):
        return max_overhead
    try:
        text = max_overhead.strip() if isinstance(max_overhead, str) else str(float(max_overhead))
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except (TypeError, ValueError, OverflowError):
        share = -1.0
    if isinstance(max_overhead, bool) or not 0 <= share < float("inf"):
        raise BudgetError(
            f'max_overhead {quote(max_overhead)} is not "{ONE_FORWARD_PASS}", a share such as "10%" or 0.1, or None'
        )
    return share


def refuse_device(options: Options, name: str) -> None:
    """Raises SolverError if another device is planned for, because the function of this name runs steps here."""
    if options.device is not None:
        raise SolverError(f"{name} plans for this machine; leave device out, or pass it to rematerialize instead")


def check_device_is_shared(model: keras.Model) -> None:
    """Raises BudgetError if no other process can use the device on which the model's step is to run."""
    if model.jit_compile or not find_default_device().startswith("GPU"):
        return
    if not all(map(_leaves_memory, tf.config.get_visible_devices("GPU"))):
        raise BudgetError(
            "this process has reserved the whole GPU, so that no other can run the step there; call "
            "tf.config.experimental.set_memory_growth(gpu, True) before the model is built"
        )


def _leaves_memory(gpu: tf.config.PhysicalDevice) -> bool:
    """Returns whether TensorFlow takes less than a whole GPU: only as much as it needs, or up to a limit."""
    if os.environ.get("TF_GPU_ALLOCATOR") == "cuda_malloc_async":
        return True
    parts = tf.config.get_logical_device_configuration(gpu)
    if parts:
        return all(part.memory_limit is not None for part in parts)
    forced = os.environ.get("TF_FORCE_GPU_ALLOW_GROWTH")
    return tf.config.experimental.get_memory_growth(gpu) if forced not in ("true", "false") else forced == "true"


def parse_budget_bytes(request: Request, step: SizedStep, size: int) -> int:
    """Returns the budget in bytes, less its margin. Raises BudgetError if it cannot be read."""
    state_bytes = step.count_resident_bytes(size).state
    if request.budget == "auto":
        # The model's variables are on the device already, but the batch is not.
        budget_bytes = state_bytes + find_free_bytes(find_default_device(), margin=0.0)
    else:
        budget_bytes = _parse_named(request.budget)
    return budget_bytes - request.find_margin(budget_bytes, state_bytes)


def _parse_named(budget: int | float | str) -> int:
    if isinstance(budget, str) and budget.strip().endswith("%"):
        raise BudgetError(
            f'budget {budget!r} is a share of a peak that grows with the size; give bytes, such as "6GiB", or "auto"'
        )
    return parse_budget(budget, peak_bytes=0)


def check_resident(step: SizedStep, size: int, budget_bytes: int) -> None:
    """Raises InfeasibleBudgetError if the bytes that are always held exceed the budget."""
    resident = step.count_resident_bytes(size)
    if resident.total > budget_bytes:
        raise InfeasibleBudgetError(
            f"budget {format_bytes(budget_bytes)} is below {format_bytes(resident.total)}, what model "
            f"{step.model.name!r} always holds: parameters {format_bytes(resident.parameters)}, optimizer state "
            f"{format_bytes(resident.optimizer)}, other state {format_bytes(resident.other_state)} and a batch of "
            f"{format_bytes(resident.batch)}; use a larger budget, or an optimizer with less state",
            proved=True,
        )
