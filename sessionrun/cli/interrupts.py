"""Ctrl+C where Python loses it.

In a callback of the garbage collection or of an import Ctrl+C is printed and forgotten; in `__set_name__`, which
each dataclass calls, Python before 3.12 makes a RuntimeError of it; in the import of an extension it may crash.
The session would be started all the same.
"""

from __future__ import annotations

# `signal` loads `enum` and more, which takes as long as the start of the interpreter
import _signal  # type: ignore[import-not-found]
import _thread
import sys
from types import FrameType
from typing import Final, NoReturn

EXIT_INTERRUPTED: Final = 130

_was_pressed = False


def watch() -> None:
    """In the place of the handler of `__main__`: raise KeyboardInterrupt, also again where Python loses it."""
    before = _signal.getsignal(_signal.SIGINT)
    if callable(before) and before is not _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _press)
        sys.unraisablehook = _raise_later


def was_pressed() -> bool:
    """Whether Ctrl+C was pressed since `watch`."""
    return _was_pressed


def ignore() -> None:
    """From now on Ctrl+C does nothing; that of another program, which has called us, is its own."""
    if _signal.getsignal(_signal.SIGINT) is _press:
        _signal.signal(_signal.SIGINT, _signal.SIG_IGN)


def _press(number: int, frame: FrameType | None) -> NoReturn:
    global _was_pressed
    _was_pressed = True
    raise KeyboardInterrupt


def _raise_later(lost: sys.UnraisableHookArgs) -> None:
    if lost.exc_type is KeyboardInterrupt:  # a thread, for what is raised in here is lost again
        # to this thread, not to the process: so it waits where this one holds signals back
        _thread.start_new_thread(_signal.pthread_kill, (_thread.get_ident(), _signal.SIGINT))
    else:
        sys.__unraisablehook__(lost)
