"""Budgets, pace, and how a session stops after failures: from all levels, settled."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from sessionrun.client.config import Config
from sessionrun.client.planning.asked import Asked
from sessionrun.model.errors import InputError
from sessionrun.model.spec import WORKSPACE_TIMEOUT_S, Limits

_BUDGETS: Final = ("budget_usd", "soft_budget_usd", "task_budget_usd")
PACE: Final = ("halt", "max_load", "min_free_memory", "stagger_s")
_USUAL: Final = Limits(workspace_timeout_s=WORKSPACE_TIMEOUT_S)
"""The weakest level."""


def settle_limits(limits: Limits, asked: Asked, config: Config) -> Limits:
    """The limits where the command line wins over the input, that over the configuration.

    0 means that there is no such limit.

    Raises:
        InputError: this machine cannot say what is asked for; or the command line asks for what has no effect.
    """
    failures = asked.max_failures or (1 if asked.stop_on_fail else limits.max_failures)
    limits = replace(limits, starts_at=asked.starts_at, max_failures=failures)
    if asked.halt and limits.max_failures is None:
        raise InputError("--halt has no effect here: no number of failures stops the session; add --max-failures")
    settled: dict[str, Any] = {}
    for name in (*_BUDGETS, *PACE, "workspace_timeout_s"):
        levels = (getattr(level, name, None) for level in (asked, limits, config, _USUAL))
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
