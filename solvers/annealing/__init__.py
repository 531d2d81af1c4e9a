"""Simulated annealing in Checkmate's stages. Compiled moves change a set of recomputations (stage, node).

Start reading at `solver`, then `annealer`.
"""
