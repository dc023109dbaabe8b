"""Budgets, pace, and how a session stops after failures: from all levels, settled."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from sessionrun.client.planning.draft import Draft
from sessionrun.input.fields import LIMIT_FIELDS
from sessionrun.input.settings import first
from sessionrun.model.errors import InputError
from sessionrun.model.spec import WORKSPACE_TIMEOUT_S, Limits

_USUAL: Final = {"workspace_timeout_s": WORKSPACE_TIMEOUT_S}
"""The weakest level."""


def settle_limits(draft: Draft) -> Draft:
    """The limits where the command line wins over the input, that over the configuration.

    0 means that there is no such limit.

    Raises:
        InputError: this machine cannot say what is asked for; or the command line asks for what has no effect.
    """
    limits, options = draft.spec.limits, draft.options
    settled = {
        name: first(options.choose(name, getattr(limits, name)), _USUAL.get(name)) or None
        for name in {field.name for field in LIMIT_FIELDS.values()}
    }
    if "max_failures" not in options.given and options.given.get("stop_on_fail"):
        settled["max_failures"] = 1
    limits = Limits(starts_at=options.given.get("starts_at"), **settled)
    if "halt" in options.given and limits.max_failures is None:
        raise InputError("--halt has no effect here: no number of failures stops the session; add --max-failures")
    _refuse_unknown(limits)
    return replace(draft, spec=replace(draft.spec, limits=limits))


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
