"""Which value counts when a task, the command line, the input and the configuration differ.

Must not know any input format.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from sessionrun.input.fields import DEFAULT_FIELDS
from sessionrun.input.rows import SETTINGS
from sessionrun.input.settings import Options
from sessionrun.model.places import Upstream
from sessionrun.model.spec import LINGER_S, Workspace

MIRROR: Final = Workspace("mirror")

Level = tuple[str | None, str | None]
"""The agent and the model that one level names."""

NO_LIMIT: Final = ("timeout_s", "round_timeout_s", "idle_timeout_s", "setup_timeout_s", "linger_s")
"""Durations of a task for which 0 means none."""

_ASKED: Final = {row.name for row in SETTINGS if row.scope == "task"} & (
    {field.name for field in DEFAULT_FIELDS.values()} - {"prove", "sandbox"}
)
"""The defaults of tasks that are settled alike; the others have rules of their own."""

MERGED: Final = ("env", "labels", "uses")
"""Maps of a task that add to those of the defaults; every other field replaces."""


def settle_agent(levels: Sequence[Level]) -> tuple[str, str | None]:
    """Settle agent and model, strongest level first; no agent is "".

    The first agent counts.  A model that stands beside an agent belongs to that agent: it is passed over
    when another one was chosen.
    """
    agent = next((agent for agent, _ in levels if agent), "")
    model = next((model for beside, model in levels if model and beside in (None, agent)), None)
    return agent, model


def list_levels(options: Options, defaults: Mapping[str, Any], top: Mapping[str, Any]) -> tuple[Level, ...]:
    """The levels above a task: flags, the input's defaults, its top level, environment and files."""
    levels = (options.given, defaults, top, options.config)
    return tuple((level.get("agent"), level.get("model")) for level in levels)


def settle_defaults(options: Options, defaults: Mapping[str, Any], levels: Sequence[Level]) -> dict[str, Any]:
    """The fields of a task that says nothing but its prompt."""
    own = {name: options.given[name] for name in _ASKED & options.given.keys()}
    asked = {**options.given.get("defaults", {}), **own}
    weakest = {"linger_s": LINGER_S, **{name: options.config[name] for name in NO_LIMIT if name in options.config}}
    values = _lay(asked, {**weakest, **{name: value for name, value in defaults.items() if value is not None}})
    values["prove"] = values.get("prove") or options.given.get("prove")  # an input may say more: how it is proved
    repo, ref = values.pop("repo", None), values.pop("ref", None)
    values["upstream"] = Upstream(repo or "", ref) if repo or ref else None
    if repo and values.get("workspace", MIRROR) == MIRROR:
        values["workspace"] = MIRROR
    elif options.given.get("worktree"):
        values["workspace"] = Workspace("worktree")
    values["agent"], values["model"] = settle_agent(levels)
    return values | {name: values.get(name) or None for name in NO_LIMIT}


def settle_task(own: Mapping[str, Any], base: Mapping[str, Any], levels: Sequence[Level]) -> dict[str, Any]:
    """The fields of a task that says `own`, over those of `settle_defaults`."""
    values = _lay(own, base)
    repo, ref = values.pop("repo", None), values.pop("ref", None)
    upstream, workspace = base.get("upstream"), own.get("workspace")
    usual = base.get("workspace", Workspace())
    if repo is not None:  # a ref of the defaults belongs to their repository, if they name one
        left = upstream.ref if upstream is not None and not upstream.repo else None
        upstream, usual = Upstream(repo, ref or left), MIRROR
    elif ref is not None:
        upstream = Upstream(upstream.repo if upstream is not None else "", ref)
    elif workspace not in (None, MIRROR):
        upstream = None  # another workspace without a repository: that of the defaults is not meant
    values["upstream"], values["workspace"] = upstream, workspace or usual
    if "agent" in own or "model" in own:
        values["agent"], values["model"] = settle_agent([(own.get("agent"), own.get("model")), *levels])
    return values | {name: values[name] or None for name in NO_LIMIT}


def _lay(own: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, Any]:
    """The values of one level over those of a weaker one."""
    both = {name: {**base[name], **own[name]} for name in MERGED if name in own and name in base}
    return {**base, **own, **both}
