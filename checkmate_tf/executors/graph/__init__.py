"""TensorFlow's graph executor follows a schedule by control edges.

`control_edges` is the ordering policy, with `node_ends` and `needed_waits` for which operations wait; `folding`,
`terms` and `sums` keep grappler from changing the operations, when they run, and the order in which terms are added;
`accuracy` compares predictions with runs. Start reading at `step.GraphStep`.
"""
