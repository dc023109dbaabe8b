"""The proxy as a program: ``python -I -S __main__.py FOLDER DIES PROGRAM ARGUMENT...``.

It listens at ``door/socket`` in FOLDER for what its ``list.json`` lets through, runs the program, and ends as it
does.  DIES is ``1`` if both end with the process that started them, else ``-``.
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
