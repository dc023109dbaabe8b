"""Makes a settled spec of what `run` is given: the steps of the house, each of which settles one thing."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from sessionrun.client.planning.assemble import Draft, choose_agent
from sessionrun.house import describe_missing, find_due
from sessionrun.input.config import load_config
from sessionrun.input.fields import LIMIT_FIELDS
from sessionrun.input.formats import choose_format, load_plan, refuse_others
from sessionrun.input.given import Given, find_input, make_source, read_options
from sessionrun.input.parse import Source
from sessionrun.input.plan import Plan
from sessionrun.input.rows import SETTINGS
from sessionrun.input.settings import Options, first
from sessionrun.model.errors import InputError
from sessionrun.model.spec import SLOT, WORKSPACE_TIMEOUT_S, Limits, SessionSpec
from sessionrun.model.validation import validate_wishes
from sessionrun.model.words import format_time

if TYPE_CHECKING:
    from sessionrun.model.events import TasksAdded


class Planned(NamedTuple):
    """A spec that can be started if it has tasks, and what the user should know about how it was made.

    `skipped` counts tasks of the input that the spec leaves out; it may be all of them.  `addition` is what a
    running session gets of it, if the tasks are for one.
    """

    spec: SessionSpec
    agent_reason: str
    dialect_reason: str
    warnings: tuple[str, ...]
    skipped: int = 0
    addition: TasksAdded | None = None

    @property
    def skipped_for(self) -> str:
        """What those that are left out did before, in one word."""
        from sessionrun.session.exports import open_exports

        return next((export.leaves_out for export in open_exports(self.spec.exports)), "succeeded")


class Nothing(NamedTuple):
    """Stands for a sound input of which nothing is left to do."""

    warnings: tuple[str, ...]


def plan(
    given: Given,
    options: Mapping[str, Any] | None = None,
    *,
    preview: bool = False,
    into: SessionSpec | None = None,
) -> Planned | Nothing:
    """Read an input and settle it: the spec then has all that a session needs.

    Args:
        given: a file or directory by name, what its JSON would be as a value, or None for standard input.
        options: the options of `run`, by the names of the settings (`input.rows`), each as a configuration file
            would have it.  Prompts in it stand in the place of the input.
        into: the session, as it is now, to which the tasks will be added; see `client.ask.load_open`.
        preview: nothing will be started: a missing agent is a warning.

    Raises:
        InputError: the first problem, in one line; nothing was created.
    """
    options = read_options(options or {})
    given, wanted = find_input(given, options)
    source = make_source(given, options)
    config = load_config(Path.cwd(), os.environ)
    if into is not None:
        from sessionrun.client.planning import additions  # few launches do, and this imports the engine

        config = additions.join_config(config, options, into)
    dialect, reason = choose_format(source, wanted)
    refuse_others(dialect, options)
    others = frozenset(task.id for task in into.tasks) if into else frozenset[str]()
    beside = Options(options, config.values, others, time.strftime("%Y%m%d-%H%M%S"))
    found = load_plan(dialect, source, beside)
    if not found.tasks:
        return Nothing(found.warnings)
    started = {
        name: replace(agent, argv=(*found.programs[name], *agent.argv[1:]))
        for name, agent in config.agents.items()
        if name in found.programs
    }
    config = config._replace(agents={**config.agents, **started})
    agent, why = choose_agent(found, config, preview=preview)
    if into is not None and agent == into.agent and "agent" not in options:
        why = f"as in session {into.session_id}"
    spec = _begin_spec(source, dialect, agent, found, beside)
    draft = Draft(source, found, beside, config, spec, into, Path.cwd(), preview, found.warnings)
    for settle in find_due("plan", found.tasks, draft, options, config.values, found, into):
        draft = settle(draft)
    planned = Planned(draft.spec, why, reason, draft.remarks, draft.skipped)
    if into is not None and draft.spec.tasks:
        planned = planned._replace(addition=additions.settle_addition(draft.spec, into))
    return planned


def _begin_spec(source: Source, dialect: str, agent: str, found: Plan, options: Options) -> SessionSpec:
    """The spec as far as the input alone settles it."""
    cwd = str(Path.cwd())
    try:
        cwd.encode()
    except UnicodeEncodeError:  # spec.json cannot hold it
        raise InputError(f"the name of the current directory is not UTF-8: {cwd!r}") from None
    spec = SessionSpec(
        session_id=str(uuid.uuid4()),
        created_at=format_time(time.time()) or "",
        name=found.name,
        labels=found.labels,
        dialect=dialect,
        source=source.name.encode("utf-8", "backslashreplace").decode(),
        cwd=cwd,
        agent=agent,
        agents={},
        tasks=found.tasks,
        resources={**found.resources, **({} if found.max_parallel is None else {SLOT: found.max_parallel})},
        limits=found.limits,
        envelope=options.given.get("envelope", False),
        auto_release=found.auto_release,
        exports=found.exports,
        notify=options.choose("notify") or (),
    )
    if missing := describe_missing(spec):  # what job files need though no key of them says it, as checks
        raise InputError(f"{source.name}: {missing}")
    return spec


def leave_out_done(draft: Draft) -> Draft:
    """Leave out the tasks that an earlier session finished; in the exports these tasks stay."""
    rerun = draft.options.given.get("rerun")
    if rerun and not draft.spec.exports:
        raise InputError("--rerun: this input has no results file that could tell what was finished before")
    from sessionrun.session.exports import open_exports

    opened = open_exports(draft.spec.exports)
    if draft.into is None:
        draft = draft.remark(*filter(None, (export.remark_on_owner() for export in opened)))
    if rerun:
        return draft
    carried = [export.carry_over(draft.spec.tasks) for export in opened]
    done = {name for _, names in carried for name in names}
    tasks = tuple(task for task in draft.spec.tasks if task.id not in done)
    draft = draft.settle(tasks=tasks, exports=tuple(kept for kept, _ in carried))
    return replace(draft, skipped=len(done))


def settle_rest(draft: Draft) -> Draft:
    """What needs no more of the draft than its spec and the options; by then it is known what runs the tasks.

    A setting that was given and has no effect is refused, unless no task is left.
    """
    spec, options = draft.spec, draft.options
    validate_wishes(spec)
    for settle in find_due("rest", spec.tasks, options.given, options.config, spec):
        spec = settle(spec, options)
    for row in SETTINGS if spec.tasks else ():
        value = options.given.get(row.name)
        why = None if value is None or row.idle is None else row.idle(spec, value)
        if why is not None:
            raise InputError(f"{row.spell(value)} has no effect here: {why}; leave it out")
    return replace(draft, spec=spec)


def settle_limits(draft: Draft) -> Draft:
    """The limits where the command line wins over the input, that over the configuration; 0 means none."""
    limits, options = draft.spec.limits, draft.options
    usual = {"workspace_timeout_s": WORKSPACE_TIMEOUT_S}
    settled = {
        name: first(options.choose(name, getattr(limits, name)), usual.get(name)) or None
        for name in {field.name for field in LIMIT_FIELDS.values()}
    }
    if "max_failures" not in options.given and options.given.get("stop_on_fail"):
        settled["max_failures"] = 1
    limits = Limits(starts_at=options.given.get("starts_at"), **settled)
    if "halt" in options.given and limits.max_failures is None:
        raise InputError("--halt has no effect here: no number of failures stops the session; add --max-failures")
    if limits.max_load or limits.min_free_memory:
        from sessionrun.session.partners import measure_free_memory, measure_load

        if limits.max_load and measure_load() is None:
            raise InputError("max_load: this system does not say what its load is; leave max_load out")
        if limits.min_free_memory and measure_free_memory() is None:
            raise InputError("min_free_memory: only Linux says how much memory is free; leave it out")
    return draft.settle(limits=limits)
