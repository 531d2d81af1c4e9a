"""Holds the result of planning a step, as plain data: the chosen schedule and the facts about it."""

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
    """The step without rematerialization.

    Args:
        run: its measurement; None if it was not measured.
        expected_bytes: its expected peak: an upper limit if it must not run, and a lower limit if it ran out of memory.
            None if it was measured, or if only the predicted peak is known.
    """

    predicted_bytes: int
    run: StepRun | None = None
    expected_bytes: int | None = None

    @property
    def peak_bytes(self) -> int:
        """Returns the measured peak; the expected or the predicted one if the step was not measured."""
        if self.run is not None:
            return self.run.peak_bytes
        return self.predicted_bytes if self.expected_bytes is None else self.expected_bytes


@dataclass(frozen=True)
class Conditions:
    """The conditions of a plan, besides the graph of its step.

    Args:
        executor: "XLA" or "graph executor".
        batch: dtypes and shapes of the step's arguments, such as "float32[8, 6], int64[8]".
        device: the model and driver of the device on which it was planned, or for which it was planned if that was not
            there.
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
        """Returns the present conditions of a step."""
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
    """The schedule chosen for a step within its budget. It holds no tensor, variable or function.

    Args:
        budget_bytes: the budget. This and all peaks include resident bytes.
        solution: the schedule, with the simulator's predictions.
        ordering: the ordering in which it was emitted; None for the unchanged stock step.
        run: its measurement; None if it was not measured.
        stock: the step without rematerialization.
        resident: the bytes that all peaks include.
        origins: the Keras layers and source lines from which the nodes of the graph come.
        conditions: the conditions of the plan.
        chunks: the parts that `graph` computes in chunks of rows, unlike the stock step.
        margin_bytes: bytes that were subtracted from the requested budget; `budget_bytes` does not include them.
        patterns: the patterns of nodes to keep or to recompute, and the cost of each.
        state_cost: the cost of reading and writing offloaded optimizer state and frozen weights, which the simulator
            leaves out.
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
    state_cost: int = 0

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
        """Returns the measured peak; None if no step was measured."""
        return None if self.run is None else self.run.peak_bytes

    @property
    def peak_bytes(self) -> int:
        """Returns the measured peak; the predicted one if no step was measured."""
        return self.predicted_peak_bytes if self.run is None else self.run.peak_bytes

    @property
    def difference(self) -> StepDifference | None:
        """Returns the difference between one step and the stock step; None if the two were not compared."""
        return None if self.run is None else self.run.difference

    @property
    def overhead(self) -> float:
        """Returns the predicted cost divided by the stock step's cost, minus 1."""
        simulation = self.solution.scheduled.simulation
        return simulation.overhead + self.state_cost / max(self.graph.baseline_cost, 1)

    @property
    def measured_overhead(self) -> float | None:
        """Returns the time of the step divided by the stock step's, minus 1; None unless both were timed."""
        times_s = [None if run is None else run.step_s for run in (self.run, self.stock.run)]
        return times_s[0] / times_s[1] - 1 if times_s[0] and times_s[1] else None


@dataclass(frozen=True)
class ReadyStep:
    """A planned step with its function: the stock step, or an emitted one."""

    planned: PlannedStep
    function: EmittedFunction
