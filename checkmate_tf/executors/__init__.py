"""An executor runs a training step: TensorFlow's graph executor, or XLA. This room makes a schedule a step for either.

`step` says what planning asks of a step, whichever executor runs it. `emission/` has what both share, `graph/` and
`xla/` a room each; these never import each other.

Imports the core, tracing, rewriting, profiling and measurement, and never solvers. Start reading at `step.Step`.
"""
