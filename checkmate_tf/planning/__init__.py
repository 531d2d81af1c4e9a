"""Searches for a plan within a budget: solve, emit, measure, and solve again for what the measurement says.

`step` says what the search asks of a training step, `targets` what the next schedule is planned for, and `plan` is what
the search gives. Imports the core and solvers; what executes a step comes through the `Step` protocol. Start reading at
`search.find_plan`.
"""
