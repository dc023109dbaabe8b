"""How `cluster head` and `cluster node` take over from one that was killed.

Each keeps a program of dask running.  If it alone is killed, its program goes on, so that no job suffers; but
nothing starts that again.  So it ends when the next verb has come, and then that one starts its own.  For the
cluster that is a restart like any other.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from sessionrun.store import locks

LOOP_VARIABLE: Final = "SESSIONRUN_LOOP"
"""In a program that a verb of `cluster` starts again and again: the verb's process, and its lock."""

LOOK_S: Final = 0.5
CLOSE_TIMEOUT_S: Final = 2.0


def name_loop(verb_lock: Path) -> str:
    """The value of `LOOP_VARIABLE` for the programs of this process, which is a verb."""
    return f"{os.getpid()}:{verb_lock}"


def is_succeeded(environ: Mapping[str, str]) -> bool:
    """Whether the verb that started this program is gone, and another one has come."""
    verb, _, lock = environ[LOOP_VARIABLE].partition(":")
    return verb != str(os.getppid()) and locks.is_held(Path(lock))


async def give_way(close: Callable[[], Awaitable[object]]) -> None:
    """End this program when it is succeeded; if no verb started it, return."""
    if LOOP_VARIABLE not in os.environ:
        return
    while not is_succeeded(os.environ):
        await asyncio.sleep(LOOK_S)
    with suppress(Exception):
        await asyncio.wait_for(close(), CLOSE_TIMEOUT_S)
    os._exit(0)
