"""Writes copies of a training step's operations, for both executors.

`copies` names operations and chooses the copy of a tensor that an operation reads. `ordering` defines the interface of
ordering policies. `awaited_calls` keeps changes of variables behind the loops that read them, and `function` makes a
TensorFlow function of the result. Imports the core and tracing. Start reading at `writer.NodeWriter`.
"""
