"""Chooses between retaining, recomputing and offloading, on top of a solver that recomputes.

Start reading at `choose`.
"""
