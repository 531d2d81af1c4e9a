"""Finds orders of least peak memory, without recomputing anything.

Start reading at `topological_order.search_order`.
"""
