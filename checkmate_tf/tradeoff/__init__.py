"""A user learns here what each memory budget costs: `pareto` plans one model for many budgets.

Imports planning, training and reports, and installs nothing. Start reading at `pareto.pareto`.
"""
