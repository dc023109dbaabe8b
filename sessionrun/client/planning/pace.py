"""How a session is to stop after failures, and how fast it may start work: from all levels, settled."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final, NamedTuple

from sessionrun.client.config import Config
from sessionrun.model.errors import InputError
from sessionrun.model.spec import Halt, Limits


class AskedPace(NamedTuple):
    """What the command line of `run` says of it; 0 means that nothing is held."""

    halt: Halt | None = None
    max_load: float | None = None
    min_free_memory: int | None = None
    stagger_s: float | None = None
    starts_at: float | None = None
    max_failures: int | None = None
    notify: tuple[str, ...] = ()
    cluster: str | None = None
    slurm: tuple[str, ...] = ()


CONFIGURED: Final = ("halt", "max_load", "min_free_memory", "stagger_s")
"""What a configuration may say, too."""


def settle_pace(limits: Limits, asked: AskedPace, config: Config) -> Limits:
    """The limits where the command line wins over the input, that over the configuration.

    Raises:
        InputError: this machine cannot say what is asked for; or the command line asks for what has no effect.
    """
    limits = replace(limits, starts_at=asked.starts_at, max_failures=asked.max_failures or limits.max_failures)
    if asked.halt and limits.max_failures is None:
        raise InputError("--halt has no effect here: no number of failures stops the session; add --max-failures")
    settled: dict[str, Any] = {}
    for name in CONFIGURED:
        levels = (getattr(level, name) for level in (asked, limits, config))
        settled[name] = next((level for level in levels if level is not None), None) or None
    limits = replace(limits, **settled)
    _refuse_unknown(limits)
    return limits


def _refuse_unknown(limits: Limits) -> None:
    """Refuse a limit of what this machine cannot say.

    Raises:
        InputError: which one.
    """
    if not (limits.max_load or limits.min_free_memory):
        return
    from sessionrun.runtime.machine import measure_free_memory, measure_load

    if limits.max_load and measure_load() is None:
        raise InputError("max_load: this system does not say what its load is; leave max_load out")
    if limits.min_free_memory and measure_free_memory() is None:
        why = "only Linux says how much memory is free"
        raise InputError(f"min_free_memory: {why}; leave min_free_memory out")
