"""The subcommands of `checkmate-tf`, a module each; cli.py says how to add one."""
