"""``python -m sessionrun``: the same command as the console script."""

import sys

from sessionrun.cli import main

if __name__ == "__main__":
    code = main()
    # Ctrl+C inside the `exec` of a string (dataclasses are made so) leaves a mark by which `python -m` ends itself
    # with SIGINT, whatever the exit code: CPython's Py_RunMain.  Another such `exec` takes the mark away.
    exec("")
    sys.exit(code)
