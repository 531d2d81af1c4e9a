"""Mixed-integer programs and the libraries that solve them.

Knows no graph and no schedule. Start reading at `program`; each library has one module, which alone sets its options.
"""
