"""Root and keeper as a program: ``python -I -S __main__.py SESSION LOCK_FD READY_FD SUPERVISOR...``."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))))

from sessionrun.runtime.keeper.root import main

if __name__ == "__main__":
    main()
