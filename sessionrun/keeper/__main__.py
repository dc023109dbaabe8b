"""Root and keeper as a program: ``python -I -S __main__.py SESSION LOCK_FD READY_FD SUPERVISOR...``."""

import gc
import os
import sys

gc.disable()  # until all is imported

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from sessionrun.keeper.root import main  # noqa: E402

if __name__ == "__main__":
    main()
