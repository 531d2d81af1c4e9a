"""XLA compiles a training step: what it stores, the graph of that, and how XLA is made to keep to a schedule.

`hlo/` reads compiled modules, `model/` makes the graph of what XLA stores, `order/` has the ordering policy, and
`rules/` what XLA is known to do, each fact in a file of its own, which `backends` lists. Start reading at
`step.XlaStep`.
"""
