"""The default solver and the least budget. Methods run one after the other, or side by side in processes.

This is the only room that knows all others. Start reading at `auto`.
"""
