"""Mutations: small faults put into emission, simulator and solvers, one at a time, each of which some test must catch.

`make mutations` applies each to a copy of the package and counts those that are caught. The list is in `listed`, the
solvers' part in `listed_solvers`; what applies them is in `__main__`.
"""
