"""The proxy as a program: ``python -I -S __main__.py CONTROL SESSION``.

CONTROL is the descriptor of a socket (see `serving`).  SESSION only tells people whose proxy it is.
"""

import gc
import os
import sys

gc.disable()  # until all is imported

_HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(_HERE))))

from sessionrun.walls.proxy.serving import main  # noqa: E402

if __name__ == "__main__":
    gc.enable()
    sys.exit(main(int(sys.argv[1])))
