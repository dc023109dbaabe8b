"""Which of a task's jobs run inside of walls, and with what: WORK, the commands of SETUP, CHECK and PROVE.

Here a task's policy, its place and this machine become walls (see `sessionrun.walls`).  PREPARE, PARK, RELEASE and
LAND are programs of ours and run outside.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import orjson

from sessionrun.engine.state import TaskState
from sessionrun.model.errors import SessionrunError
from sessionrun.model.keys import JobKey
from sessionrun.model.places import Place, Repository
from sessionrun.model.repositories import repository_of
from sessionrun.model.sandbox import Sandbox
from sessionrun.model.spec import AgentSpec, SessionSpec, TaskSpec, hides_tests
from sessionrun.runtime.exports.settling import list_places
from sessionrun.runtime.jobs.agent_state import add_state, list_more_settings, locate_state
from sessionrun.runtime.jobs.inside import INSIDE, REPORT, InsideStart
from sessionrun.runtime.jobs.logins import LOGINS
from sessionrun.runtime.jobs.shared import PROGRAM, SHELL, Site
from sessionrun.runtime.jobs.walled_end import name_group
from sessionrun.store.files import make_directories, replace_file
from sessionrun.store.session import AGENT_DIR, WALLS_STATE
from sessionrun.walls import inner
from sessionrun.walls.argv import PROMPT, REPORT_FD, TMP_FOLDER, VIEW_FOLDER, Enclosure, Walls, build_argv
from sessionrun.walls.clearing import clear_ways
from sessionrun.walls.environment import filter_environment
from sessionrun.walls.groups import ENTER, make_groups
from sessionrun.walls.policy import AgentState
from sessionrun.walls.programs import (
    NOT_INSTALLED,
    find_bwrap,
    find_folders,
    find_masks,
    find_named,
    find_python,
    find_state_folder,
    find_system_links,
    is_hidden,
    state_of,
)
from sessionrun.walls.servers import list_rules
from sessionrun.workspaces.environments.interpreter import list_programs
from sessionrun.workspaces.environments.request import BuildWalls, find_cache
from sessionrun.workspaces.links import find_target
from sessionrun.workspaces.view import list_alternates


def enclose(
    site: Site,
    task: TaskSpec,
    key: JobKey,
    place: Place | None,
    *,
    agent: AgentSpec | None,
    env: Mapping[str, str],
    cwd: str,
    room: str | None = None,
    prompt: Path | None = None,
    on_stdin: bool = False,
    reports: bool = False,
    outlives_us: bool = False,
) -> Enclosure | None:
    """How the programs of a job are started inside; None: the task has no walls.

    Args:
        site: the session.
        task: the task.
        key: the job.
        place: the task's worktree.
        agent: whose state comes in; None: of no agent.
        env: the variables of the job, beside those of the session.
        cwd: where the programs begin.
        room: another directory than the worktree that can be written, without git, and with a /tmp of its own.
        prompt: the file of the prompt.
        on_stdin: whether the program reads the prompt from its standard input.
        reports: whether `inner` reports.
        outlives_us: whether the programs go on when the process ends that starts them.

    Raises:
        SessionrunError: bubblewrap is not installed.
        OSError: the session directory cannot be written.
    """
    if task.sandbox is None or place is None or place.worktree is None:
        return None
    folder = site.session.walls_path(key)
    state = None if agent is None else state_of(agent.argv[0])
    built = _build(site, task, key, place, agent=agent, env=env, folder=folder)
    if state is not None and agent is not None:
        own = folder.parent / WALLS_STATE / agent.name
        built = add_state(built, state, own, env, record=site.session.make_job_path(key) / LOGINS)
        env = {**locate_state(built.home, state, env), **env}
    if room is not None:
        tmp = folder / f"{TMP_FOLDER}-{key.phase}-{key.round}-{key.start}"
        make_directories(tmp, 0o700)
        built = replace(built, worktree=room, view=None, tmp=str(tmp))
    else:
        built = replace(built, binds=(*built.binds, *_find_own_folders(site, key)))
    if prompt is not None:
        built = replace(built, ro_binds=(*built.ro_binds, (str(prompt), PROMPT)))
    built, inside = _connect(site, key, built, task.sandbox, env, state, agent)
    clear_ways(built)
    report, stdin = REPORT_FD if reports else None, PROMPT if prompt is not None and on_stdin else None
    argv = build_argv(built, cwd, report=report, stdin=stdin, dies_with_us=not outlives_us)
    return Enclosure((*_enter_groups(key, site, task.sandbox), *argv), inside, built.tmp)


def enclose_build(
    site: Site,
    task: TaskSpec,
    key: JobKey,
    place: Place,
    *,
    env: Mapping[str, str],
    git: str | None = None,
) -> BuildWalls | None:
    """The walls around the build of a task's environment; None: the task has none.

    What a build writes is added when it begins.  It sees no worktree, and the repository can only be read.

    Args:
        site: the session.
        task: the task.
        key: the job that builds.
        place: the task's worktree.
        env: as of `enclose`.
        git: the repository of the room in which the project lies; None: it is in the worktree.

    Raises:
        SessionrunError, OSError: as `enclose`.
    """
    if task.sandbox is None or place.worktree is None:
        return None
    built = _build(site, task, key, place, agent=None, env=env, folder=site.session.walls_path(key))
    shown = () if git is None else ((git, git),)
    built = replace(built, worktree=None, view=None, binds=(), ro_binds=shown)
    built, inside = _connect(site, key, built, task.sandbox, env)
    return BuildWalls(built, inside, task.sandbox, _enter_groups(key, site, task.sandbox))


def _connect(
    site: Site,
    key: JobKey,
    built: Walls,
    sandbox: Sandbox,
    env: Mapping[str, str],
    state: AgentState | None = None,
    agent: AgentSpec | None = None,
) -> tuple[Walls, Mapping[str, str]]:
    """The walls with their way into the network, and the variables inside."""
    prefixes, proxied = state.prefixes if state else (), sandbox.network == "proxy"
    env = {"HOME": built.home, **env}
    inside = filter_environment(os.environ, env, prefixes=prefixes, names=sandbox.env, proxied=proxied)
    if proxied:
        built = replace(built, proxy=_open_door(site, key, sandbox, state, agent, inside))
    return built, inside


def _enter_groups(key: JobKey, site: Site, sandbox: Sandbox) -> tuple[str, ...]:
    """The words before those of bubblewrap that put the job into groups with its limits."""
    groups = make_groups(name_group(site.spec.session_id, key), sandbox)
    return (SHELL, "-c", ENTER, SHELL, *map(str, groups), "--") if groups else ()


def enclose_commands(site: Site, state: TaskState, key: JobKey, *, reports: bool = False) -> Enclosure:
    """How the commands of a walled task's SETUP are started inside; arguments as of `enclose`.

    Raises:
        SessionrunError, OSError: as `enclose`.
    """
    env, cwd = site.environment_of(state.spec, key, state.place), site.directory_of(state.spec, state.place)
    walls = enclose(site, state.spec, key, state.place, agent=None, env=env, cwd=cwd, reports=reports)
    assert walls is not None
    return walls


def ask_inside(site: Site, state: TaskState, key: JobKey, command: tuple[str, ...]) -> tuple[str, ...]:
    """Write down how a command of a walled task is started inside, for a program of ours that becomes it.

    Returns:
        The interpreter, the program, and the job's folder.

    Raises:
        SessionrunError, OSError: as `enclose`.
    """
    walls = enclose_commands(site, state, key, reports=True)
    folder = site.session.make_job_path(key).absolute()
    start = InsideStart(walls.wrap(*command), walls.env, str(folder / REPORT))
    replace_file(folder / INSIDE, orjson.dumps(start), durable=False)
    return sys.executable, PROGRAM, str(folder)


def _build(
    site: Site,
    task: TaskSpec,
    key: JobKey,
    place: Place,
    *,
    agent: AgentSpec | None,
    env: Mapping[str, str],
    folder: Path,
) -> Walls:
    """The walls of a task, without the state of its agent."""
    bwrap = find_bwrap()
    if bwrap is None:
        raise SessionrunError(NOT_INSTALLED)
    make_directories(folder / TMP_FOLDER, 0o700)
    sandbox, repository = task.sandbox, repository_of(site.spec, task, place.start)
    assert sandbox is not None and repository is not None and place.worktree is not None
    python, needed = find_python()
    home, as_root = _find_home(), os.geteuid() == 0
    own = None if agent is None else state_of(agent.argv[0])
    shown = [*needed, *_find_shown(task, repository.top, sandbox, agent)]
    shown += [path for path in list_alternates(Path(repository.common_dir)) if os.path.isdir(path)]
    if sandbox.policy == "project":
        shown.append(home)
    top = repository.top if sandbox.policy == "project" and os.path.isdir(repository.top) else None
    answers = list(_find_answers(site.spec, task))
    hidden = [*_list_hidden(site, task, repository, top, place.worktree), *filter(os.path.isdir, answers)]
    visible = tuple(dict.fromkeys(path for path in shown if is_hidden(path, sandbox.policy)))
    needs = (place.worktree, home, repository.top, repository.common_dir, *needed)
    more = filter(os.path.isfile, answers)
    folders, files = _find_masks(site, sandbox, own, needs, (*visible, *((top,) if top else ())), more)
    if sandbox.policy == "strict":
        hidden = [path for path in hidden if not is_hidden(path, "strict") or _is_below(path, (*visible, home))]
    programs = find_folders(agent.argv[0]) if agent is not None else ()
    return Walls(
        bwrap=bwrap,
        policy=sandbox.policy,
        as_root=as_root,
        home=home,
        python=python,
        inner=inner.__file__,
        tmp=str(folder / TMP_FOLDER),
        network=sandbox.network == "allow",
        top=top,
        common_dir=repository.common_dir,
        view=str(folder / VIEW_FOLDER),
        worktree=place.worktree,
        system_links=find_system_links(),
        shown=visible,
        again=tuple(path for path in programs if _is_below(path, folders)),
        masked_folders=folders,
        masked_files=files,
        hidden=tuple(dict.fromkeys(hidden)),
        binds=() if task.environment is None else ((site.locate_environment(task, key, place),) * 2,),
        ro_binds=tuple((path, path) for path in _find_told(site, env)),
        devices=sandbox.devices,
        processes=sandbox.processes,
    )


def _list_hidden(
    site: Site, task: TaskSpec, repository: Repository, top: str | None, worktree: str
) -> Iterator[str]:
    """What is empty inside but for what is the task's own: results, directories of worktrees, the cache."""
    kept = (repository.common_dir, *((top,) if top else ()))
    yield from _hide(str(site.session.path.parent.absolute()), (*kept, worktree))
    # that of a mirror is ours, whatever of the task's lies in it
    yield from _hide(repository.worktree_dir, kept if task.upstream is None else ())
    yield from _hide(os.path.dirname(find_cache(site.spec.cache)), ())


def _find_shown(task: TaskSpec, top: str, sandbox: Sandbox, agent: AgentSpec | None) -> Iterator[str]:
    """What can be read beside the system, where it exists: programs, links, what the plan names."""
    if agent is not None:
        yield from find_folders(agent.argv[0])
    if task.environment is not None:
        # not by the links of the environment: a task may lead them anywhere
        for program in list_programs(task.environment.python, {**os.environ, **task.env}):
            yield from find_folders(program)
    for path in (*(find_target(top, link) for link in task.links), *sandbox.read):
        if os.path.exists(path):
            yield os.path.realpath(path)


def _find_home() -> str:
    """The home directory itself: inside, a link to it may not be there, and masks lie where secrets really are."""
    return os.path.realpath(os.path.expanduser("~"))


def _find_masks(
    site: Site,
    sandbox: Sandbox,
    own: AgentState | None,
    needs: Sequence[str],
    seen: Iterable[str],
    more: Iterable[str],
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Folders and files with secrets that would be seen, and `more` of these.

    Of those that variables name a folder around what the task needs is left out, and what is in its worktree, the
    first of `needs`.
    """
    passed = filter_environment(os.environ, {}, prefixes=own.prefixes if own else (), names=sandbox.env)
    named = [
        path
        for path in find_named(os.environ, passed, site.spec.cwd)
        if not _is_below(path, needs[:1]) and not any(_is_below(need, (path,)) for need in needs)
    ]
    found = find_masks(_find_home(), own, as_root=os.geteuid() == 0, named=[*named, *more])
    folders, files = (
        tuple(path for path in paths if not is_hidden(path, sandbox.policy) or _is_below(path, seen))
        for paths in found
    )
    return folders, files


def _find_own_folders(site: Site, key: JobKey) -> Iterator[tuple[str, str]]:
    """What can be written beside the worktree, by all attempts."""
    kept = site.session.job_path(key).parent / AGENT_DIR
    if kept.is_dir():
        yield str(kept.absolute()), str(kept.absolute())


def _find_answers(spec: SessionSpec, task: TaskSpec) -> Iterator[str]:
    """Where a task's hidden tests and later commits can be read: input, exports, a repository of this machine."""
    if not hides_tests(task):
        return
    yield os.path.realpath(os.path.join(spec.cwd, spec.source))
    for export in spec.exports:
        yield from list_places(export)
    if task.upstream is not None and os.path.isabs(task.upstream.repo):
        yield os.path.realpath(task.upstream.repo)


def _find_told(site: Site, env: Mapping[str, str]) -> Iterator[str]:
    """Files of the session to which variables of the job lead."""
    prefix = f"{site.session.path.absolute()}/"
    for value in env.values():
        if value.startswith(prefix) and os.path.isfile(value):
            yield value


def _hide(folder: str, kept: Iterable[str]) -> list[str]:
    """The folder, to be empty inside; if what is kept lies in it, then those in it that are a neighbour's."""
    if not os.path.isdir(folder):
        return []
    if not any(_is_below(path, (folder,)) for path in kept):
        return [os.path.realpath(folder)]
    with os.scandir(folder) as entries:
        return [
            entry.path
            for entry in entries
            if entry.is_dir(follow_symlinks=False)
            and (entry.name.startswith("session-") or os.path.isfile(os.path.join(entry.path, ".git")))
        ]


def _is_below(path: str, folders: Iterable[str]) -> bool:
    return any(path == folder or path.startswith(f"{folder}/") for folder in folders)


def _open_door(
    site: Site,
    key: JobKey,
    sandbox: Sandbox,
    state: AgentState | None,
    agent: AgentSpec | None,
    inside: Mapping[str, str],
) -> str:
    """The folder of a socket by which the job reaches the hosts of its list."""
    if site.proxying is None:
        raise SessionrunError("there is no proxy here")
    home = _find_home()
    folder = "" if state is None else find_state_folder(home, state, inside)
    more = () if state is None else list_more_settings(home, state)
    words = () if agent is None else agent.argv
    return site.proxying.open(key, list_rules(sandbox.hosts, state, inside, words, folder, more))
