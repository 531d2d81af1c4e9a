"""Each subcommand of `checkmate-tf` is a module here; cli.py says how to add one."""
