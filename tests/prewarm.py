"""Makes a process ready to fork others that run our code: what each of them would do first has been done."""

from __future__ import annotations

import gc
import pkgutil
from contextlib import suppress
from functools import cache
from importlib import import_module
from typing import Any

import sessionrun
from sessionrun.model import frozen
from sessionrun.model.events import EVENTS
from sessionrun.model.spec import SessionSpec
from sessionrun.store import codec

EXTRAS = ("sessionrun.mcp.", "sessionrun.serve.", "sessionrun.runtime.dask.")
"""What only verbs of an extra need, and import for themselves: it brings twice as much as all the rest, and each
fork copies the tables of the memory that it takes."""

OTHERS = ("daemon", "yaml", "rich.console", "rich.progress", "tabulate", "psutil", "filelock")
"""What our code imports where it needs it."""


@cache
def make_ready() -> None:
    """Import our code but for the extras, and make what is otherwise made with the first record of a class."""
    for module in pkgutil.walk_packages(sessionrun.__path__, "sessionrun."):
        if module.name.startswith(EXTRAS):
            continue
        if not module.name.endswith("__main__"):
            import_module(module.name)
    for name in OTHERS:
        import_module(name)
    for cls in object.__subclasses__():
        if cls.__init__ is frozen._compile_and_init:
            with suppress(TypeError):  # it has no defaults for all fields; its `__init__` is compiled now
                cls()
    written: list[Any] = [*EVENTS.values(), SessionSpec]
    for record in written:
        codec._check_of_record(record)
    gc.collect()
    gc.freeze()
