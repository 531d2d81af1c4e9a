"""From a schedule to a new static TensorFlow function for the graph executor.

Imports the core and tracing. Start reading at `writer.emit`.
"""
