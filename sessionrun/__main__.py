"""The command as a program: the console script, and ``python -m sessionrun``."""

# `signal` loads `enum` and more, which takes as long as the start of the interpreter
import _signal  # type: ignore[import-not-found]
import gc
import os
import sys

EXIT_INTERRUPTED = 130


def main() -> int:
    """Run the command with few collections of garbage: a command makes much, and throws little of it away."""
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:  # else it is ignored, as below `nohup`
        # Nothing has begun while modules are imported, and there an exception can be lost (see `cli.interrupts`).
        _signal.signal(_signal.SIGINT, lambda *_: os._exit(EXIT_INTERRUPTED))
    _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)  # a caller may ignore it: all programs would end with 0
    gc.set_threshold(100_000)  # those during the imports alone take a tenth of a poll
    from sessionrun.cli import main as run

    try:
        return run()
    except KeyboardInterrupt:  # where the command could not catch it
        return EXIT_INTERRUPTED
    finally:
        # the exit code stands, and Python's end prints no traceback
        _signal.signal(_signal.SIGINT, _signal.SIG_IGN)
        # Ctrl+C inside the `exec` of a string (dataclasses are made so) leaves a mark by which Python ends itself
        # with SIGINT, whatever the exit code: CPython's Py_RunMain.  Another such `exec` takes the mark away.
        exec("")


if __name__ == "__main__":
    sys.exit(main())
