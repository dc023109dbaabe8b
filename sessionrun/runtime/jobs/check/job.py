"""A CHECK of a task with a brief as a process: ``python job.py FOLDER``.  Exit 0: it passed; 1: it did not."""

from __future__ import annotations

import os
import sys


def run() -> None:
    """Do what the request in the folder says."""
    sys.path[0] = os.path.abspath(os.path.join(__file__, *[os.pardir] * 5))
    from sessionrun.runtime.jobs.check.check import main

    sys.exit(main(sys.argv[1]))


if __name__ == "__main__":
    run()
