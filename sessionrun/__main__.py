"""``python -m sessionrun``: the same command as the console script."""

import sys

from sessionrun.cli import main

if __name__ == "__main__":
    sys.exit(main())
