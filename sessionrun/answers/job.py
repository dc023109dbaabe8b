"""See `sessionrun.runtime.jobs.check.job`, which this is."""

import os
import sys

sys.path[0] = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from sessionrun.runtime.jobs.check.check import main  # noqa: E402  (it is found only now)

if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
