"""Searches for a plan within a budget: solves, emits, measures, and solves again with the measurements.

`targets` chooses the target of the next schedule, and `planned_step` holds the result as plain data, which
`reports.plan` describes. Imports the core and solvers; steps come through the `Step` protocol. Start reading at
`search.find_plan`.
"""
