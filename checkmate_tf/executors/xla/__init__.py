"""Models a training step that XLA compiles, and makes XLA follow a schedule.

`hlo/` reads compiled modules. `model/` makes the graph of the values that XLA stores. `order/` contains the ordering
policy. `rules/` responds to known behaviour of XLA, with one file for each behaviour; `backends` lists the rules. Start
reading at `step.XlaStep`.
"""
