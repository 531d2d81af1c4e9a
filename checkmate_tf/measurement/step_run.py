"""Describes what a training step took when it ran."""

from dataclasses import dataclass

from checkmate_tf.measurement.difference import StepDifference


@dataclass(frozen=True)
class StepRun:
    """A step run says what a step took: its peak, resident bytes included, and its time, None where none was timed.

    Of the peak, `held_bytes` are what steps leave behind, beyond what is resident. `difference` says how far a
    rewritten step ends from the stock step; None where the two were not compared. Where a step `is_compiled`, its peak
    is that of XLA's buffer assignment, and not of a run.
    """

    peak_bytes: int
    step_s: float | None = None
    held_bytes: int = 0
    difference: StepDifference | None = None
    is_compiled: bool = False


@dataclass(frozen=True)
class ProcessRun:
    """This is a step run in a process of its own; `failure` says what ended it, "" where it ended well.

    `measured_peak_bytes` includes what is resident.
    """

    measured_peak_bytes: int | None = None
    step_time_s: float | None = None
    failure: str = ""
