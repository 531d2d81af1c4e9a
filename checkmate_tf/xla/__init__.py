"""Training steps that XLA compiles: what a compiled step stores, its graph, and how a schedule is written so that XLA
keeps to it.

The ordering policy is in `gradient_ties`. Imports emission, measurement and planning. Start reading at `step.XlaStep`.
"""
