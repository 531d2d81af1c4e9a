"""Makes what people look at: sentences and records of what a plan knows, pictures, a page, a trace, and tables.

All of it starts from a `PlanView`, which a `Plan` makes of itself, and which graph and schedule files give too.
`plan.Plan` describes what planning found. Imports the core, solvers and planning's data. Start reading at `view`.
"""
