"""The subcommands of `checkmate-tf`, each a module. `cli.py` says how to add one."""
