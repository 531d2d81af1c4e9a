"""Makes the graph of the values that XLA stores, from the kernels of the stock step.

`graph.make_xla_graph` calls the other modules in turn. `index` finds the kernels that compute a node, and `facts` joins
them with the rules for operations. `buffers` finds the results in buffers, and `fusion` the nodes that readers compute
within themselves.
"""
