"""`python -m volvox` is the command `volvox`."""

import sys

from volvox.cli import main

sys.exit(main())
