"""`python -m checkmate_tf`: the same as the command `checkmate-tf`."""

import sys

from checkmate_tf.cli import main

sys.exit(main())
