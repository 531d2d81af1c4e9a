"""Measures the cost of each memory budget: `pareto` plans one model for many budgets.

Imports planning, training and reports, and installs nothing. Start reading at `pareto.pareto`.
"""
