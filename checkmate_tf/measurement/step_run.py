"""The measured peak and time of a training step."""

from dataclasses import dataclass

from checkmate_tf.measurement.difference import StepDifference


@dataclass(frozen=True)
class StepRun:
    """The peak and the time of a step.

    Args:
        peak_bytes: the peak, including resident bytes.
        step_s: the time; None if no step was timed.
        held_bytes: the part of the peak that steps leave in use, besides resident bytes.
        difference: of a rewritten step from the stock step; None if the two were not compared.
        is_compiled: the peak is that of XLA's buffer assignment, not of a run.
    """

    peak_bytes: int
    step_s: float | None = None
    held_bytes: int = 0
    difference: StepDifference | None = None
    is_compiled: bool = False


@dataclass(frozen=True)
class ProcessRun:
    """The peak and the time of a step in a separate process.

    Args:
        measured_peak_bytes: the peak, including resident bytes; None after a failure.
        step_time_s: the time; None after a failure.
        failure: the reason why the process ended early; "" after a success.
    """

    measured_peak_bytes: int | None = None
    step_time_s: float | None = None
    failure: str = ""
