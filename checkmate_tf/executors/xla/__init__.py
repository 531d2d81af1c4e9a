"""XLA compiles a training step: what it stores, the graph of that, and how XLA is made to keep to a schedule.

The ordering policy is in `gradient_ties`. Start reading at `step.XlaStep`.
"""
