"""The default solver and the least budget: methods that run one after the other or in processes side by side.

The only room that knows all others. Start reading at `auto`.
"""
