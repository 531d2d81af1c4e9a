"""Makes a step of a schedule for either executor: TensorFlow's graph executor, or XLA.

`step` defines the interface between planning and either executor. `emission/` contains the code that both share.
`graph/` and `xla/` are the rooms of the two executors, and never import each other.

Imports the core, tracing, rewriting, profiling and measurement, and never solvers. Start reading at `step.Step`.
"""
