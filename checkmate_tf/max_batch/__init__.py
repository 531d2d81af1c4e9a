"""The largest batch, image or sequence whose training step fits a budget.

Imports training and planning. Start reading at `max_batch_size.max_batch_size`.
"""
