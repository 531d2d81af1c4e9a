"""Both executors write copies of a training step's operations with what is here.

`copies` names operations and knows which copy of a tensor is read, `ordering` says what an ordering policy is,
`awaited_calls` keeps changes of variables behind the loops that read them, and `function` makes a TensorFlow function
of the result. Imports the core and tracing. Start reading at `writer.NodeWriter`.
"""
