"""Runs the command `checkmate-tf` as `python -m checkmate_tf`."""

import sys

from checkmate_tf.cli import main

sys.exit(main())
