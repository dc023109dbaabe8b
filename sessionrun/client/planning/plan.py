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
from sessionrun.client.config import Config, load_config, read_flag
from sessionrun.client.planning.asked import Asked
from sessionrun.client.planning.assemble import (
    Choice,
    assemble_spec,
    choose_agent,
    foresee_costs,
    foresee_programs,
    foresee_prompts,
    foresee_verdicts,
)
from sessionrun.client.planning.effects import refuse_idle_options
from sessionrun.client.planning.inputs import Given, find_input, read_own, read_source
from sessionrun.client.planning.limits import settle_limits
from sessionrun.client.planning.mirroring import settle_cache, settle_mirrors
from sessionrun.client.planning.sandboxing import foresee_readable, settle_sandboxes
from sessionrun.client.planning.seats import settle_seats
from sessionrun.input.formats import Dialect, choose_dialect
from sessionrun.input.own_options import OWN_VARIABLES, refuse_others
from sessionrun.input.plan import Fallback, LandingWish, Options, Plan, RepositoryWish, Source
from sessionrun.model.cluster import SLURM, uses_replicas
from sessionrun.model.errors import InputError
from sessionrun.model.places import Repository
from sessionrun.model.spec import INSTANCE_RESULTS, LINGER_S, Alternative, Landing, SessionSpec

if TYPE_CHECKING:
    from sessionrun.client.planning.handover import AskedTasks


GATE_TIMEOUT_S: Final = 3600.0
"""How long a gate may take where nothing else is said."""


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
        asked: what is said beside the input, like the options of `run`.
        tasks: prompts in the place of the input, items for which each task is there once, keys of all tasks.
        into: the session, as it is now, to which the tasks will be added; see `load_open` and `settle_addition`.
        directory: in the repository of the worktrees; None: the current one.
        programs: what starts an agent in place of its program, by the agent's name.
        preview: nothing will be started, so agents need not be installed: a missing agent is a warning.

    Raises:
        InputError: the first problem, in one line; nothing was created.
    """
    asked = asked or Asked()
    given, dialect = find_input(given, asked.own, asked.dialect)
    asked = asked._replace(dialect=dialect)
    source, keys = _read(given, tasks)
    config = load_config(Path.cwd(), os.environ, table.BUILTIN)
    agents = {name: config.agents[name] for name in programs or () if name in config.agents}
    others = {name: replace(one, argv=(*(programs or {})[name], *one.argv[1:])) for name, one in agents.items()}
    config = replace(config, agents={**config.agents, **others})
    place = directory or Path.cwd()
    return _settle(source, config, asked, keys=keys, preview=preview, into=into, place=place)


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
    *,
    keys: Mapping[str, Any],
    preview: bool,
    into: SessionSpec | None,
    place: Path,
) -> Planned | Nothing:
    if into is not None:
        from sessionrun.client.planning.joining import join_config, join_plan, join_repository

        config = join_config(config, into)
    options = _options(asked, config, into)
    dialect, reason = choose_dialect(source, asked.dialect)
    refuse_others(dialect.NAME, asked.own)
    plan = _load(dialect, source, options, keys)
    if not plan.tasks:
        return Nothing(plan.warnings)
    plan = replace(plan, limits=settle_limits(plan.limits, asked, config))
    choice = choose_agent(plan, config, preview=preview)
    if into is not None and choice.name == into.agent and not asked.agent:
        choice = choice._replace(why=f"as in session {into.session_id}")
    plan, mirrors = settle_mirrors(_add_links(plan), asked, config, source)
    if into is None:
        repository, remarks = _find_repository(plan, asked, config, source.name, place)
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
        landing=_settle_landing(plan.landing, asked, repository),
        mirrors=mirrors,
        cache=settle_cache(plan, asked, config),
        missing=missing,
        others=options.others,
    )
    spec = settle_seats(replace(spec, notify=asked.notify or config.notify), plan, into)
    spec = _choose_cluster(spec, asked, config, into, preview=preview)
    spec = settle_sandboxes(spec, asked.sandbox, config)
    refuse_idle_options(asked._asdict(), spec, keys)
    remarks += [*(missing or ()), *chain.from_iterable(foresee(spec) for foresee in _FORESEEN)]
    return Planned(spec, choice, reason, (*plan.warnings, *remarks), skipped)


_FORESEEN: Final = (foresee_costs, foresee_verdicts, foresee_readable, foresee_programs, foresee_prompts)


def _load(dialect: Dialect, source: Source, options: Options, keys: Mapping[str, Any]) -> Plan:
    own = options.own
    if keys:
        from sessionrun.client.planning.handover import asked_rounds

        own = {**asked_rounds(dialect.NAME, keys), **own}
    own = _add_variables(dialect.NAME, own, os.environ)
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


def _find_repository(
    plan: Plan, asked: Asked, config: Config, source: str, place: Path
) -> tuple[Repository | None, list[str]]:
    """The repository from which worktrees are made, if any task wants one; and remarks on it."""
    if not any(task.workspace.kind == "worktree" for task in plan.tasks):
        mirrored = any(task.upstream is not None for task in plan.tasks)
        if mirrored and asked.base:
            raise InputError("--base has no effect on tasks with a repository of their own: say ref in the input")
        if (asked.base or asked.worktree_dir or asked.keep) and not mirrored:
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
            base=asked.base or wish.base,
            worktree_dir=asked.worktree_dir or wanted,
            keep=asked.keep or wish.keep or "never",
        )
    except InputError as error:
        raise _name_key(error, wish, asked, source) from None
    filled = all("submodule" in " ".join(task.setup) for task in plan.tasks)
    if not filled and (names := find_submodules(repository)):
        more = " and others" if len(names) > 3 else ""
        mend = "--setup 'git submodule update --init' fills them"
        remarks.append(f"submodules are empty in worktrees: {', '.join(names[:3])}{more}; {mend}")
    return repository, remarks


def _name_key(error: InputError, wish: RepositoryWish, asked: Asked, source: str) -> InputError:
    """The error, with the input's key in place of the option if the value came from the input."""
    problem = str(error)
    for option, key in wish.keys.items():
        if problem.startswith(option) or f": {option}" in problem:
            value = asked.base if option == "--base" else asked.worktree_dir
            return error if value else InputError(f"{source}: {key}: {problem.replace(option + ' ', '')}")
    return (
        error if wish.path is None else InputError(f"{source}: {wish.keys.get('path', 'repository')}: {problem}")
    )


def _options(asked: Asked, config: Config, into: SessionSpec | None) -> Options:
    return Options(
        agent=asked.agent,
        model=asked.model,
        max_parallel=asked.max_parallel,
        timeout_s=asked.timeout_s,
        idle_timeout_s=asked.idle_timeout_s,
        name=asked.name,
        labels=_parse_labels(asked.labels),
        envelope=asked.envelope,
        workspace="worktree" if asked.worktree else None,
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
    from sessionrun.input.kinds import Misfit, as_alternatives

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


def _settle_landing(wish: LandingWish | None, asked: Asked, repository: Repository | None) -> Landing | None:
    """How the work of the session lands by itself; None: it does not.

    Args:
        wish: what the plan says.
        asked: what the command line says; it wins over the plan.
        repository: where the session begins.

    Raises:
        InputError: options without landing, no worktrees, or no such branch.
    """
    if wish is None and not asked.land:
        given = {"--land-into": asked.land_into, "--gate": asked.gates or None, "--mends": asked.mends}
        lost = next((option for option, value in given.items() if value is not None), None)
        if lost is not None:
            raise InputError(f"{lost} needs --land")
        return None
    if repository is None:
        raise InputError("land needs tasks with a worktree: add --worktree")
    from sessionrun.landing.target import find_target  # few sessions land, and this imports all that git needs

    wish = wish or LandingWish()
    timeout_s = GATE_TIMEOUT_S if wish.gate_timeout_s is None else wish.gate_timeout_s
    target = find_target(repository, asked.land_into or wish.into)
    mends = wish.mends if asked.mends is None else asked.mends
    return Landing(target, asked.gates or wish.gates, timeout_s or None, wish.batch, mends, wish.sandbox)


def _choose_cluster(
    spec: SessionSpec, asked: Asked, config: Config, into: SessionSpec | None, *, preview: bool
) -> SessionSpec:
    """The spec with the cluster that runs its jobs.

    Args:
        spec: without it.
        asked: what the command line says of it.
        config: what the configuration says.
        into: the session to which its tasks will be added; they run where its own do.
        preview: nothing will be started, so nothing is fetched.

    Raises:
        InputError: the cluster cannot be used, or a task needs what it cannot give.
    """
    if into is not None:
        if uses_replicas(into.cluster):
            from sessionrun.client.cluster.address import settle_tasks  # few sessions have a cluster

            spec = spec if preview else replace(spec, tasks=settle_tasks(spec, into.tasks))
        return replace(spec, cluster=into.cluster)
    address = (config.cluster or None) if asked.cluster is None else asked.cluster
    if asked.slurm and address != SLURM:
        raise InputError("--slurm-option has no effect without --cluster slurm")
    if address is None or not spec.tasks:
        return spec
    if address == SLURM:
        from sessionrun.client.planning.slurm import check_options, open_slurm, parse_words

        options = {**check_options(config.slurm, "slurm"), **parse_words(asked.slurm)}
        return replace(spec, cluster=open_slurm(options, os.environ))
    from sessionrun.client.cluster.address import settle_cluster

    return settle_cluster(spec, address, os.environ, preview=preview)


def _add_variables(dialect: str, own: Mapping[str, Any], environ: Mapping[str, str]) -> Mapping[str, Any]:
    """The options with those that environment variables say; a variable of another format says nothing.

    Raises:
        InputError: a variable is no flag.
    """
    from sessionrun.input.kinds import Misfit

    variables = {}
    for variable, name in OWN_VARIABLES.get(dialect, {}).items():
        try:
            if environ.get(variable) and read_flag(environ[variable]):
                variables[name] = variable
        except Misfit as misfit:
            raise InputError(f"{variable}: {misfit.problem}") from None
    return {**variables, **own}
