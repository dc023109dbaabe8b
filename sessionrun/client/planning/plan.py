"""Makes a settled spec of what `run` is given: input, configuration and flags."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sessionrun.agents import table
from sessionrun.client.config import Config, load_config
from sessionrun.client.planning.assemble import (
    Choice,
    assemble_spec,
    choose_agent,
    foresee_costs,
    foresee_prompts,
    foresee_verdicts,
)
from sessionrun.client.planning.cluster_choice import choose_cluster
from sessionrun.client.planning.effects import refuse_idle_options
from sessionrun.client.planning.inputs import Given, read_source
from sessionrun.client.planning.landing import AskedLand, settle_landing
from sessionrun.client.planning.mirroring import MirrorWish, settle_cache, settle_mirrors
from sessionrun.client.planning.own_options import add_variables, find_input, read_own
from sessionrun.client.planning.pace import AskedPace, settle_pace
from sessionrun.client.planning.sandboxing import foresee_readable, settle_sandboxes
from sessionrun.client.planning.seats import settle_seats
from sessionrun.dialects.own_options import refuse_others
from sessionrun.dialects.plan import Fallback, Options, Plan, RepositoryWish, Source
from sessionrun.dialects.table import Dialect, choose_dialect
from sessionrun.model.errors import InputError
from sessionrun.model.places import KeepPolicy, Repository
from sessionrun.model.spec import INSTANCE_RESULTS, LINGER_S, WORKSPACE_TIMEOUT_S, Alternative, Limits, SessionSpec

if TYPE_CHECKING:
    from sessionrun.client.planning.handover import AskedTasks


class Asked(NamedTuple):
    """What the command line of `run` says about the tasks; None means that an option was not given."""

    agent: str | None = None
    model: str | None = None
    max_parallel: int | None = None
    timeout_s: float | None = None
    name: str | None = None
    labels: tuple[str, ...] = ()
    approve: bool | None = None
    envelope: bool = False
    dialect: str | None = None
    idle_timeout_s: float | None = None
    expect_change: bool = False
    prove: bool = False
    fallback: tuple[str, ...] = ()
    auto_release: bool = True
    rerun: bool = False
    include_stuck: bool = False
    only: tuple[str, ...] = ()
    stop_on_fail: bool = False
    own: Mapping[str, Any] = {}


class AskedGit(NamedTuple):
    """What the command line of `run` says about worktrees."""

    worktree: bool = False
    base: str | None = None
    worktree_dir: Path | None = None
    keep: KeepPolicy | None = None
    cache_dir: Path | None = None
    require_cache: bool | None = None
    sandbox: str | None = None


class AskedMoney(NamedTuple):
    """The budgets that the command line of `run` gives, in US dollars."""

    budget_usd: float | None = None
    soft_budget_usd: float | None = None
    task_budget_usd: float | None = None


class Planned(NamedTuple):
    """A spec that can be started if it has tasks, and what the user should know about how it was made.

    `skipped` counts tasks of the input that the spec leaves out; it may be all of them.
    """

    spec: SessionSpec
    choice: Choice
    dialect_reason: str
    warnings: tuple[str, ...]
    skipped: int = 0

    @property
    def skipped_for(self) -> str:
        """What those that are left out did before, in one word."""
        return "ended" if any(export.kind == INSTANCE_RESULTS for export in self.spec.exports) else "succeeded"


class Nothing(NamedTuple):
    """Stands for a sound input of which nothing is left to do."""

    warnings: tuple[str, ...]


def plan(
    given: Given,
    asked: Asked | None = None,
    git: AskedGit | None = None,
    money: AskedMoney | None = None,
    land: AskedLand | None = None,
    pace: AskedPace | None = None,
    tasks: AskedTasks | None = None,
    *,
    preview: bool = False,
    into: SessionSpec | None = None,
    directory: Path | None = None,
    programs: Mapping[str, Sequence[str]] | None = None,
) -> Planned | Nothing:
    """Read an input and settle it: the spec then has all that a session needs.

    Args:
        given: a file or directory by name, what its JSON would be as a value, or None for standard input.
        asked: settings of the tasks beside the input, like the options of `run`.
        git: the same about worktrees.
        money: the same about budgets.
        land: the same about landing.
        pace: the same about how fast work may start, and how it stops after failures.
        tasks: prompts in the place of the input, items for which each task is there once, keys of all tasks.
        into: the session, as it is now, to which the tasks will be added; see `load_open` and `settle_addition`.
        directory: in the repository of the worktrees; None: the current one.
        programs: what starts an agent in place of its program, by the agent's name.
        preview: nothing will be started, so agents need not be installed: a missing agent is a warning.

    Raises:
        InputError: the first problem, in one line; nothing was created.
    """
    asked, git, money = asked or Asked(), git or AskedGit(), money or AskedMoney()
    given, dialect = find_input(given, asked.own, asked.dialect)
    asked = asked._replace(dialect=dialect)
    source, keys = _read(given, tasks)
    config = load_config(Path.cwd(), os.environ, table.BUILTIN)
    agents = {name: config.agents[name] for name in programs or () if name in config.agents}
    others = {name: replace(one, argv=(*(programs or {})[name], *one.argv[1:])) for name, one in agents.items()}
    config = replace(config, agents={**config.agents, **others})
    place = directory or Path.cwd()
    wishes = (asked, git, money, land or AskedLand(), pace or AskedPace())
    return _settle(source, config, *wishes, keys=keys, preview=preview, into=into, place=place)


def _read(given: Given, tasks: AskedTasks | None) -> tuple[Source, dict[str, Any]]:
    """The input, and the keys of all tasks."""
    if tasks is None:
        return read_source(given), {}
    from sessionrun.client.planning.handover import (  # few command lines say tasks themselves
        make_source,
        read_keys,
    )

    return make_source(given, tasks), read_keys(tasks.keys, str(Path.cwd()))


def _settle(
    source: Source,
    config: Config,
    asked: Asked,
    git: AskedGit,
    money: AskedMoney,
    land: AskedLand,
    pace: AskedPace,
    *,
    keys: Mapping[str, Any],
    preview: bool,
    into: SessionSpec | None,
    place: Path,
) -> Planned | Nothing:
    if into is not None:
        from sessionrun.client.planning.joining import join_config, join_plan, join_repository

        config = join_config(config, into)
    options = _options(asked, config, into, worktree=git.worktree)
    dialect, reason = choose_dialect(source, asked.dialect)
    refuse_others(dialect.NAME, asked.own)
    plan = _load(dialect, source, options, keys)
    if not plan.tasks:
        return Nothing(plan.warnings)
    plan = replace(plan, limits=_settle_limits(plan.limits, asked, money, pace, config))
    choice = choose_agent(plan, config, preview=preview)
    if into is not None and choice.name == into.agent and not asked.agent:
        choice = choice._replace(why=f"as in session {into.session_id}")
    wish = MirrorWish(git.cache_dir, git.require_cache, git.worktree_dir, git.keep)
    plan, mirrors = settle_mirrors(_add_links(plan), wish, config, source)
    if into is None:
        repository, remarks = _find_repository(plan, git, config, source.name, place)
        remarks += _remark_on_exports(plan)
    else:
        repository, remarks = join_repository(plan, into), []
    plan, skipped = _leave_out_done(plan, rerun=asked.rerun)
    if into is not None:
        plan, remarks = join_plan(plan, into)
    missing: list[str] | None = [] if preview else None
    spec = assemble_spec(
        plan,
        config,
        choice,
        dialect=dialect.NAME,
        source=source.name,
        approve=_settle_approval(asked, plan, config),
        envelope=options.envelope,
        repository=repository,
        landing=settle_landing(plan.landing, land, repository),
        mirrors=mirrors,
        cache=settle_cache(plan, wish, config),
        missing=missing,
        others=options.others,
    )
    spec = settle_seats(replace(spec, notify=pace.notify or config.notify), plan, into)
    spec = choose_cluster(spec, pace, config, into, preview=preview)
    spec = settle_sandboxes(spec, git.sandbox, config)
    refuse_idle_options({**asked._asdict(), **git._asdict(), **money._asdict()}, spec, keys)
    remarks += [*(missing or ()), *chain.from_iterable(foresee(spec) for foresee in _FORESEEN)]
    return Planned(spec, choice, reason, (*plan.warnings, *remarks), skipped)


_FORESEEN: Final = (foresee_costs, foresee_verdicts, foresee_readable, foresee_prompts)


def _load(dialect: Dialect, source: Source, options: Options, keys: Mapping[str, Any]) -> Plan:
    own = options.own
    if keys:
        from sessionrun.client.planning.handover import asked_rounds

        own = {**asked_rounds(dialect.NAME, keys), **own}
    own = add_variables(dialect.NAME, own, os.environ)
    return dialect.load(source, replace(options, own=own, keys=keys))


def _add_links(plan: Plan) -> Plan:
    """The plan with those of its optional links that lead to something."""
    links = tuple(link for link in plan.optional_links if os.path.lexists(link))
    if not links:
        return plan
    return replace(plan, tasks=tuple(replace(task, links=(*task.links, *links)) for task in plan.tasks))


def _settle_approval(asked: Asked, plan: Plan, config: Config) -> bool:
    """Whether agents may use all their tools: the flag wins over the input, that over the configuration."""
    return next((choice for choice in (asked.approve, plan.approve, config.approve) if choice is not None), True)


def _remark_on_exports(plan: Plan) -> list[str]:
    if not plan.exports:
        return []
    from sessionrun.runtime.exports.writer import open_exports

    remarks = [export.remark_on_owner() for export in open_exports(plan.exports)]
    return [remark for remark in remarks if remark]


def _leave_out_done(plan: Plan, *, rerun: bool) -> tuple[Plan, int]:
    """Leave out the tasks that an earlier session finished; in the exports these tasks stay."""
    if rerun and not plan.exports:
        raise InputError("--rerun: this input has no results file that could tell what was finished before")
    if rerun or not plan.exports:
        return plan, 0
    from sessionrun.runtime.exports.writer import open_exports

    done: set[str] = set()
    exports = []
    for export in open_exports(plan.exports):
        kept, carried = export.carry_over(plan.tasks)
        exports.append(kept)
        done |= carried
    tasks = tuple(task for task in plan.tasks if task.id not in done)
    return replace(plan, tasks=tasks, exports=tuple(exports)), len(done)


def _settle_limits(limits: Limits, asked: Asked, money: AskedMoney, pace: AskedPace, config: Config) -> Limits:
    limits = _settle_workspace_timeout(_settle_budgets(limits, money, config), config)
    return settle_pace(replace(limits, max_failures=1) if asked.stop_on_fail else limits, pace, config)


def _settle_budgets(limits: Limits, asked: AskedMoney, config: Config) -> Limits:
    """The budgets: the command line wins over the input, that over the configuration."""
    settled: dict[str, Any] = {}
    for name in asked._fields:
        wanted = (getattr(level, name) for level in (asked, limits, config))
        settled[name] = next((amount for amount in wanted if amount is not None), None)
    return replace(limits, **settled)


def _settle_workspace_timeout(limits: Limits, config: Config) -> Limits:
    """The time limit: the input wins over the configuration, that over the usual limit; 0 means no limit."""
    candidates = (limits.workspace_timeout_s, config.workspace_timeout_s, WORKSPACE_TIMEOUT_S)
    return replace(limits, workspace_timeout_s=next(limit for limit in candidates if limit is not None) or None)


def _find_repository(
    plan: Plan, git: AskedGit, config: Config, source: str, place: Path
) -> tuple[Repository | None, list[str]]:
    """The repository from which worktrees are made, if any task wants one; and remarks on it."""
    if not any(task.workspace.kind == "worktree" for task in plan.tasks):
        mirrored = any(task.upstream is not None for task in plan.tasks)
        if mirrored and git.base:
            raise InputError("--base has no effect on tasks with a repository of their own: say ref in the input")
        if (git.base or git.worktree_dir or git.keep) and not mirrored:
            raise InputError("--base, --worktree-dir and --keep-worktree need --worktree")
        return None, []
    from sessionrun.workspaces.repository import find_repository, find_submodules

    wish = plan.repository
    if wish.path and not os.path.isdir(wish.path):
        raise InputError(f"{source}: {wish.keys['path']}: {wish.path} is not a directory")
    wanted = Path(wish.worktree_dir) if wish.worktree_dir else config.worktree_dir
    try:
        repository, remarks = find_repository(
            Path(wish.path) if wish.path else place,
            base=git.base or wish.base,
            worktree_dir=git.worktree_dir or wanted,
            keep=git.keep or wish.keep or "never",
        )
    except InputError as error:
        raise _name_key(error, wish, git, source) from None
    filled = all("submodule" in " ".join(task.setup) for task in plan.tasks)
    if not filled and (names := find_submodules(repository)):
        more = " and others" if len(names) > 3 else ""
        mend = "--setup 'git submodule update --init' fills them"
        remarks.append(f"submodules are empty in worktrees: {', '.join(names[:3])}{more}; {mend}")
    return repository, remarks


def _name_key(error: InputError, wish: RepositoryWish, git: AskedGit, source: str) -> InputError:
    """The error, with the input's key in place of the option if the value came from the input."""
    problem = str(error)
    for option, key in wish.keys.items():
        if problem.startswith(option) or f": {option}" in problem:
            value = git.base if option == "--base" else git.worktree_dir
            return error if value else InputError(f"{source}: {key}: {problem.replace(option + ' ', '')}")
    return (
        error if wish.path is None else InputError(f"{source}: {wish.keys.get('path', 'repository')}: {problem}")
    )


def _options(asked: Asked, config: Config, into: SessionSpec | None, *, worktree: bool) -> Options:
    return Options(
        agent=asked.agent,
        model=asked.model,
        max_parallel=asked.max_parallel,
        timeout_s=asked.timeout_s,
        idle_timeout_s=asked.idle_timeout_s,
        name=asked.name,
        labels=_parse_labels(asked.labels),
        envelope=asked.envelope,
        workspace="worktree" if worktree else None,
        alternatives=_parse_alternatives(asked.fallback),
        auto_release=asked.auto_release,
        expect_change=asked.expect_change,
        prove=asked.prove,
        rerun=asked.rerun,
        include_stuck=asked.include_stuck,
        only=asked.only,
        stamp=time.strftime("%Y%m%d-%H%M%S"),
        own=read_own(asked.own),
        others=frozenset(task.id for task in into.tasks) if into else frozenset(),
        fallback=Fallback(
            agent=config.agent,
            model=config.model,
            max_parallel=config.max_parallel,
            timeout_s=config.timeout_s,
            idle_timeout_s=config.idle_timeout_s,
            linger_s=LINGER_S if config.linger_s is None else config.linger_s,
        ),
    )


def _parse_alternatives(words: tuple[str, ...]) -> tuple[Alternative, ...]:
    from sessionrun.dialects.convert import Misfit, as_alternatives

    try:
        return as_alternatives(list(words))
    except Misfit as misfit:
        raise InputError(f"--fallback: {misfit.problem}") from None


def _parse_labels(labels: tuple[str, ...]) -> dict[str, str]:
    parsed = {}
    for label in labels:
        key, equals, value = label.partition("=")
        if not key or not equals:
            raise InputError(f"--label {label!r}: write KEY=VALUE")
        parsed[key] = value
    return parsed
