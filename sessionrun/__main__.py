"""The command as a program: the console script, and ``python -m sessionrun``."""

import gc
import sys


def main() -> int:
    """Run the command with few collections of garbage: a command makes much, and throws little of it away."""
    gc.set_threshold(100_000)  # those during the imports alone take a tenth of a poll
    from sessionrun.cli import main as run

    return run()


if __name__ == "__main__":
    code = main()
    # Ctrl+C inside the `exec` of a string (dataclasses are made so) leaves a mark by which `python -m` ends itself
    # with SIGINT, whatever the exit code: CPython's Py_RunMain.  Another such `exec` takes the mark away.
    exec("")
    sys.exit(code)
