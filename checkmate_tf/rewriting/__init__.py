"""Rewrites parts of a traced training step as loops over chunks of rows, so that they need less memory.

A loss over a large vocabulary treats each row of its logits independently of the others. So does a feed-forward block,
and so does attention for each of its queries. `rows` describes tensors of which some dimensions are rows. `rules` lists
the operations that keep rows apart or sum over them. `regions` finds such operations around a wide product, and divides
them into passes. `chunks` writes each pass as a loop. All this happens before the training graph is extracted. Imports
the core, tracing and profiling. Start reading at `chunks.write_chunks`.
"""
