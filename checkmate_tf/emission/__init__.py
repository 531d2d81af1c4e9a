"""Emission makes a schedule a new static TensorFlow function for the graph executor.

`copies` names operations and knows which copy of a tensor is read; `ordering` says what an ordering policy is, and
`control_edges` is that of the graph executor; `folding` keeps grappler from computing ahead. Imports the core and
tracing. Start reading at `writer.emit`.
"""
