"""Searches for a plan within a budget: solve, emit, measure, and solve again for what the measurement says.

`targets` chooses what the next schedule is planned for, and `planned_step` holds the result as plain data, which
`reports.plan` describes. Imports the core and solvers; what executes a step comes through the `Step` protocol. Start
reading at `search.find_plan`.
"""
