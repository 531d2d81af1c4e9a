"""Finds the largest batch, image or sequence whose training step fits a budget.

`sized_step` traces the step of any size, `modelled_step` models its graph between the traced sizes, and `search` finds
the largest size. Imports training and planning. Start reading at `max_batch_size.max_batch_size`.
"""
