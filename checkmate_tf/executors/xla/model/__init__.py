"""How XLA runs a training graph: from the kernels of the stock step to the graph of what it stores.

`graph.make_xla_graph` shows the order in which facts are found: which kernels compute a node (`index`), what is known
of it (`facts`), what lies in buffers (`buffers`), and what readers compute within themselves (`fusion`).
"""
