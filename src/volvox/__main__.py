"""`python -m volvox` is the command `volvox`."""

import sys

from volvox.cli import main

if __name__ == "__main__":
    sys.exit(main())
