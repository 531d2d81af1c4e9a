"""Mutations: small faults put into emission and the simulator, one at a time, each of which some test must catch.

`make mutations` applies each to a copy of the package and counts those that are caught. The list is in `listed`, what
applies it in `__main__`.
"""
