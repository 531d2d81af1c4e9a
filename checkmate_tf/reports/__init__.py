"""Makes the texts and pictures of a plan: sentences, records, tables, pictures, a page and a trace.

All of them start from a `PlanView`. A `Plan` makes one of itself, and one can be made from files of a graph and a
schedule. `plan.Plan` describes the result of planning. Imports the core, solvers and planning's data. Start reading at
`view`.
"""
