"""For one release: a supervisor of an older version starts PREPARE and RELEASE by this path."""

import os
import sys

if __name__ == "__main__":
    program = os.path.join(
        os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "runtime", "jobs", "job.py"
    )
    os.execv(sys.executable, [sys.executable, program, *sys.argv[1:]])
