"""What any door calls: plan, launch, ask, wait, read, explain, change, clean, doctor.

In: whole errands on sessions, with records and warnings as answers.
Not in: click, and printing: that is the business of the door.

The names of `api` are the public ones, and are names of this package, too.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sessionrun.client.api import *  # noqa: F403
else:  # or a checker would believe in every name

    def __getattr__(name: str) -> Any:
        """A public name.  They are imported when one is used: a verb only passes here on the way to a module."""
        return getattr(import_module("sessionrun.client.api"), name)

    def __dir__() -> list[str]:
        """The public names."""
        return [name for name in dir(import_module("sessionrun.client.api")) if not name.startswith("_")]
