"""Training steps that XLA compiles: what a compiled step stores, its graph, and how a schedule is written so that XLA
keeps to it.

Imports emission, measurement and planning. Start reading at `step.XlaStep`.
"""
