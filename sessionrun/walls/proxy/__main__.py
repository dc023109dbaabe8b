"""The proxy as a program: ``python -I -S __main__.py SOCKET LIST DENIED DIES PROGRAM ARGUMENT...``.

It listens at SOCKET for what the file LIST lets through, notes in the file DENIED what not, runs the program, and
ends as it does.  DIES is ``1`` if both end with the process that started them, else ``-``.
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
    main(*sys.argv[1:])
