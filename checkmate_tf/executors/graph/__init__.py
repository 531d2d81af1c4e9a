"""Makes TensorFlow's graph executor follow a schedule, by control edges.

`control_edges` is the ordering policy; `node_ends` and `needed_waits` find the operations that wait. `folding`, `terms`
and `sums` keep grappler from changing the operations, the time at which they run, and the order in which terms are
added. `accuracy` compares predictions with runs. Start reading at `step.GraphStep`.
"""
