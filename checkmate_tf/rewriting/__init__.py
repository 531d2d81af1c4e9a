"""Rewrites a traced training step before its training graph is extracted, so that less of it is there at once.

A loss over a large vocabulary computes each row of its logits independently of the others, and so does a feed-forward
block, and attention for each of its queries. `rows` describes tensors of which some dimensions are rows, `rules` says
which operations keep rows apart or sum over them, `regions` finds the operations around a wide product that do, and in
how many passes they can be computed, and `chunks` writes each pass as a loop over chunks of rows. Imports the core,
tracing and profiling. Start reading at `chunks.write_chunks`.
"""
