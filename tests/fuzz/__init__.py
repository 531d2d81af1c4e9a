"""Random inputs against a small simulator of its own: `make fuzz SECONDS=600`.

A check is a function of a seed that raises where anything is wrong, and else returns a word or two on what it met. To
add one, write a module with such a function and name it in `CHECKS` of `__main__.py`.
"""
