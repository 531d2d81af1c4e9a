"""Reads a compiled module of XLA: the bytes of its buffers (`memory`), and the kernels that it runs (`kernels`)."""
