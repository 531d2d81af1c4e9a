"""Holds what planning found for a step: the schedule that was chosen and what is known of it, as plain data."""

from dataclasses import dataclass
from importlib import metadata

from checkmate_tf.executors.emission.function import EmittedFunction
from checkmate_tf.executors.emission.ordering import Ordering
from checkmate_tf.executors.step import Chunks, ResidentBytes, Step
from checkmate_tf.graph import Graph
from checkmate_tf.measurement.difference import StepDifference
from checkmate_tf.measurement.step_run import StepRun
from checkmate_tf.origins import Origins
from checkmate_tf.planning.pattern_costs import PatternCost
from checkmate_tf.profiling.device import find_default_device, make_device_key
from checkmate_tf.schedule import Schedule
from checkmate_tf.solvers import Solution


@dataclass(frozen=True)
class Stock:
    """A stock step is the one without rematerialization.

    Args:
        run: what it took; None where it was not measured.
        expected_bytes: that it is expected to take at most, where it must not run, or at least, where it ran out of
            memory; None where it was measured, or where the predicted peak is all that is known.
    """

    predicted_bytes: int
    run: StepRun | None = None
    expected_bytes: int | None = None

    @property
    def peak_bytes(self) -> int:
        """Returns the measured peak; the expected or the predicted one where the step was not measured."""
        if self.run is not None:
            return self.run.peak_bytes
        return self.predicted_bytes if self.expected_bytes is None else self.expected_bytes


@dataclass(frozen=True)
class Conditions:
    """Conditions are what a plan was made under, beside the graph of its step.

    Args:
        executor: "XLA" or "graph executor".
        batch: dtypes and shapes of what the step takes, such as "float32[8, 6], int64[8]".
        device: that it was planned on: its model and driver; or that it was planned for, where that was not there.
        checkmate_tf, tensorflow, keras: versions.
    """

    executor: str = ""
    batch: str = ""
    device: str = ""
    checkmate_tf: str = ""
    tensorflow: str = ""
    keras: str = ""

    @staticmethod
    def of(step: Step) -> "Conditions":
        """Notes what a step is planned under here and now."""
        return Conditions(
            executor="XLA" if step.uses_xla else "graph executor",
            batch=step.signature,
            device=_describe_device(step),
            **{name: metadata.version(name) for name in ("checkmate_tf", "tensorflow", "keras")},
        )


def _describe_device(step: Step) -> str:
    if step.device is not None:
        return f"{step.device.name}, not here: compiled by JAX {metadata.version('jax')}"
    key = make_device_key(find_default_device())
    return f"{key.device}, {key.driver}"


@dataclass(frozen=True)
class PlannedStep:
    """A planned step is the schedule chosen for a step within its budget; it holds no tensor, variable or function.

    Args:
        budget_bytes: that it was planned for; this and all peaks include what is resident.
        solution: the schedule, with what the simulator predicts of it.
        ordering: in which it was emitted; None where it is the stock step as it is.
        run: what it took; None where it was not measured.
        stock: what the step takes without rematerialization.
        resident: what all peaks include.
        origins: the Keras layers and source lines that the nodes of the graph come from.
        conditions: what it was planned under.
        chunks: what `graph` computes in chunks of rows, unlike the stock step.
        margin_bytes: that were taken from the budget that was asked for: `budget_bytes` is without them.
        patterns: what was to be kept or recomputed, and what that costs.
    """

    budget_bytes: int
    graph: Graph
    solution: Solution
    ordering: Ordering | None
    run: StepRun | None
    stock: Stock
    resident: ResidentBytes
    origins: Origins
    conditions: Conditions = Conditions()
    chunks: tuple[Chunks, ...] = ()
    margin_bytes: int = 0
    patterns: tuple[PatternCost, ...] = ()

    @property
    def schedule(self) -> Schedule:
        """Returns the schedule that the step follows."""
        return self.solution.scheduled.schedule

    @property
    def predicted_peak_bytes(self) -> int:
        """Returns the peak that the simulator predicts."""
        return self.solution.scheduled.simulation.peak_bytes

    @property
    def measured_peak_bytes(self) -> int | None:
        """Returns the measured peak; None where no step was measured."""
        return None if self.run is None else self.run.peak_bytes

    @property
    def peak_bytes(self) -> int:
        """Returns the measured peak, the predicted one where no step was measured."""
        return self.predicted_peak_bytes if self.run is None else self.run.peak_bytes

    @property
    def difference(self) -> StepDifference | None:
        """Returns how far one step ended from the stock step; None where the two were not compared."""
        return None if self.run is None else self.run.difference

    @property
    def overhead(self) -> float:
        """Returns the predicted cost over the stock step's cost, minus 1."""
        return self.solution.scheduled.simulation.overhead


@dataclass(frozen=True)
class ReadyStep:
    """A ready step is a planned one and the function that carries it out: the stock step, or one that was emitted."""

    planned: PlannedStep
    function: EmittedFunction
