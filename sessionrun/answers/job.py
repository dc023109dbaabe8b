"""For one release: a supervisor of an older version starts a CHECK with a brief by this path."""

import os
import sys

if __name__ == "__main__":
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    program = os.path.join(package, "runtime", "jobs", "job.py")
    os.execv(sys.executable, [sys.executable, program, "check", *sys.argv[1:]])
