"""Builds the walls that a job is to have (`walls.wish`), as words for bubblewrap, from what lies on its machine.

A job that begins outside goes on inside: its process builds the walls, and becomes bubblewrap.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, NoReturn

import orjson

from sessionrun.agents.programs import Program, find_program
from sessionrun.git.clone import list_alternates
from sessionrun.git.rooms import list_borrowed, list_stores
from sessionrun.model.errors import SessionrunError
from sessionrun.session.executor import look_up
from sessionrun.store import index
from sessionrun.store.files import expand_path, make_directories, open_regular, replace_file
from sessionrun.store.jobfiles import DENIED, DOOR, FOLDERS, LIST, NETWORK, SOCKET, list_networks, load_record
from sessionrun.store.processes import JOB_MARKER
from sessionrun.store.programs import locate_python, locate_uv
from sessionrun.store.session import AGENT_DIR, WALLS_STATE
from sessionrun.walls import proxy
from sessionrun.walls.agent_state import LOGINS, add_state, locate_state
from sessionrun.walls.argv import PROMPT, REPORT_FD, TMP_FOLDER, Walls, clear_ways
from sessionrun.walls.groups import GROUPS, enter_groups
from sessionrun.walls.policy import filter_environment
from sessionrun.walls.programs import (
    find_folders,
    find_home,
    find_masks,
    find_named,
    find_python,
    find_sandbox_problem,
    holds_own,
    is_hidden,
    list_rules,
    make_walls,
)
from sessionrun.walls.proxy.upstream import keep_environment
from sessionrun.walls.wish import INSIDE, REPORT, WallsWish

PROXY: Final = os.path.join(os.path.dirname(os.path.abspath(proxy.__file__)), "serving.py")

_NEIGHBOURS: Final = ("session-", ".env-", ".gate-", ".room-")
"""How the names of directories begin that hold what is another session's or task's; worktrees have a `.git`."""


def raise_if_any(asked: WallsWish | None, *, builds: bool = False) -> Walls | None:
    """How the programs of a job of this process are started inside, or those that build its environment.

    The latter see no worktree, and the repository can only be read.  What they write is added when a build begins.

    Raises:
        SessionrunError: walls are wished for, and cannot be had here.
        OSError: what they need cannot be made.
    """
    if asked is None:
        return None
    wish, agent = _settle(asked), asked.agent
    state = None if agent is None else find_program(agent.argv[0])
    built, env = _build(wish, state), wish.env
    if state is not None and agent is not None:
        own = Path(wish.folder).parent / WALLS_STATE / agent.name
        environ = {**os.environ, **env}
        built = add_state(built, state, own, environ, record=Path(wish.record) / LOGINS)
        env = {**locate_state(built.home, state, environ), **env}
    if builds:
        shown = () if wish.git is None else ((wish.git, wish.git),)
        built = replace(built, worktree=None, own=None, binds=(), ro_binds=shown)
    elif wish.room is not None:
        tmp = f"{wish.folder}/{TMP_FOLDER}-{os.path.basename(wish.record)}"
        make_directories(Path(tmp), 0o700)
        built = replace(built, worktree=wish.room, own=None, tmp=tmp)
    else:
        kept = os.path.join(os.path.dirname(wish.record), AGENT_DIR)  # of all attempts
        built = replace(built, binds=(*built.binds, *([(kept, kept)] if os.path.isdir(kept) else ())))
    if wish.prompt is not None:
        built = replace(built, ro_binds=(*built.ro_binds, (wish.prompt, PROMPT)))
    built = _connect(wish, built, env, state)
    clear_ways(built)
    return replace(built, before=(*built.before, *enter_groups(wish.group, wish.sandbox)))


def _settle(wish: WallsWish) -> WallsWish:
    """The wish with the variables that are given by name; what the end of the job has to know is written down.

    Raises:
        SessionrunError: it cannot be fulfilled on this machine.
        OSError: the job's folder cannot be written.
    """
    problem = find_sandbox_problem(wish.sandbox)
    if problem is not None:
        raise SessionrunError(problem)
    if wish.sandbox.memory is not None or wish.sandbox.cpus is not None:
        replace_file(Path(wish.record, GROUPS), os.fsencode(wish.group), durable=False)
    if wish.sandbox.disk is not None:
        replace_file(Path(wish.record, FOLDERS), orjson.dumps(list_writable(wish)), durable=False)
    return replace(wish, env=look_up(wish.env, os.environ))


def list_writable(wish: WallsWish) -> list[str]:
    """What a job can write: it counts for the limit of the disk (see `walls.disk`)."""
    state = os.path.join(os.path.dirname(wish.folder), WALLS_STATE)
    beside = (state, os.path.join(os.path.dirname(wish.record), AGENT_DIR))
    return [
        path for path in (wish.folder, *beside, wish.worktree, wish.environment, wish.room) if path is not None
    ]


def _connect(wish: WallsWish, built: Walls, env: Mapping[str, str], state: Program | None) -> Walls:
    """The walls with their way into the network, and the variables inside."""
    prefixes, proxied = state.prefixes if state else (), wish.sandbox.network == "proxy"
    env = {"HOME": built.home, **env}
    inside = filter_environment(os.environ, env, prefixes=prefixes, names=wish.sandbox.env, proxied=proxied)
    if not proxied:
        return replace(built, env=inside)
    record = Path(wish.record)
    folder = record / f"{NETWORK}{1 + sum(1 for _ in list_networks(record))}"
    make_directories(folder / DOOR, 0o700)
    rules = list_rules(wish.sandbox.hosts, state, inside, wish.agent.argv if wish.agent is not None else ())
    replace_file(folder / LIST, orjson.dumps([list(rule) for rule in rules]), durable=False)
    files = (str(folder / DOOR / SOCKET), str(folder / LIST), str(folder / DENIED))
    before = (sys.executable, "-I", "-S", PROXY, *files, "-" if wish.outlives_us else "1")
    inside |= keep_environment(os.environ)
    return replace(built, proxy=str(folder / DOOR), env=inside, before=before)


def _build(wish: WallsWish, own: Program | None) -> Walls:
    """The walls of a task, without the state of its agent, whose program is `own` if that is known."""
    tmp = Path(wish.folder, TMP_FOLDER)
    make_directories(tmp, 0o700)
    sandbox, repository, agent = wish.sandbox, wish.repository, wish.agent
    home, needed = find_home(), find_python()[1]
    shown = [*_find_shown(wish)]
    shown += [path for path in list_alternates(Path(repository.common_dir)) if os.path.isdir(path)]
    shown += list_borrowed(repository)
    if sandbox.policy == "project" and not holds_own(home):
        shown.append(home)
    top = repository.top if sandbox.policy == "project" and os.path.isdir(repository.top) else None
    built = make_walls(sandbox, str(tmp), shown)
    visible = built.shown
    needs = (wish.worktree, home, repository.top, repository.common_dir, *needed)
    hidden = [*_list_hidden(wish, top, needs, visible), *filter(os.path.isdir, wish.answers)]
    more = filter(os.path.isfile, wish.answers)
    folders, files = _find_masks(wish, own, needs, (*visible, *((top,) if top else ())), more)
    if sandbox.policy == "strict":
        hidden = [path for path in hidden if not is_hidden(path, "strict") or _is_below(path, (*visible, home))]
    programs = find_folders(agent.argv[0]) if agent is not None else ()
    again = [path for path in programs if _is_below(path, folders)]  # what is hidden covers them
    # files of the session to which variables of the job lead
    named = [path for path in wish.env.values() if path.startswith(f"{wish.session}/") and os.path.isfile(path)]
    return replace(
        built,
        top=top,
        common_dir=repository.common_dir,
        own=wish.folder,
        worktree=wish.worktree,
        links=tuple(_find_links(wish, visible)),
        masked=files,
        hidden=tuple(dict.fromkeys((*folders, *hidden))),
        binds=() if wish.environment is None else ((wish.environment, wish.environment),),
        ro_binds=tuple((path, path) for path in (*again, *named, *list_stores(repository))),
        reports=bool(wish.command),
        stdin=PROMPT if wish.prompt is not None and wish.on_stdin else None,
        outlives_us=wish.outlives_us,
    )


def _list_hidden(wish: WallsWish, top: str | None, needs: Sequence[str], visible: Sequence[str]) -> Iterator[str]:
    """What is empty inside but for what is the task's own: results, directories of worktrees, the cache."""
    kept = (wish.repository.common_dir, *((top,) if top else ()))
    yield from _hide(os.path.dirname(wish.session), (*kept, wish.worktree))
    # that of a mirror is ours, whatever of the task's lies in it
    yield from _hide(wish.repository.worktree_dir, () if wish.repository.upstream is not None else kept)
    if (beside := os.path.dirname(wish.worktree)) != wish.repository.worktree_dir:  # it stays, or was moved
        yield from _hide(beside, (wish.worktree,))
    for folder in (wish.cache, *wish.hidden):
        yield from _hide(folder, ())
    # the user's other results, and the index that names them, where they would be seen
    for folder in (*index.results_dirs(), str(index.index_path().parent)):
        if not is_hidden(folder, wish.sandbox.policy) or _is_below(folder, visible):
            yield from _hide(folder, needs)


def _find_shown(wish: WallsWish) -> Iterator[str]:
    """What can be read beside the system, where it exists: programs, links, what the plan names."""
    if wish.agent is not None:
        yield from find_folders(wish.agent.argv[0])
    if wish.environment is not None:
        # not by the links of the environment: a task may lead them anywhere
        environ = {**os.environ, **wish.plain_env}
        python, uv = locate_python(wish.python, environ, "/"), locate_uv(environ)
        for program in filter(None, (python, python and uv)):
            yield from find_folders(program)
    top = wish.repository.top
    for path in (*(expand_path(top, link) for link in wish.links), *wish.sandbox.read):
        if os.path.exists(path):
            yield os.path.realpath(path)


def _find_links(wish: WallsWish, visible: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Links to make, where the checkout is not seen: a link of the worktree may lead to a link in the checkout."""
    top = wish.repository.top
    for path in dict.fromkeys(expand_path(top, link) for link in wish.links):
        real = os.path.realpath(path)
        if wish.sandbox.policy == "strict" and real != path and not _is_below(path, visible):
            yield path, real


def _find_masks(
    wish: WallsWish, own: Program | None, needs: Sequence[str], seen: Iterable[str], more: Iterable[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Folders and files with secrets that would be seen, and `more` of these.

    Of those that variables name a folder around what the task needs is left out, and what is in its worktree, the
    first of `needs`.
    """
    sandbox = wish.sandbox
    passed = filter_environment(os.environ, {}, prefixes=own.prefixes if own else (), names=sandbox.env)
    named = [
        path
        for path in find_named(os.environ, passed, wish.cwd)
        if not _is_below(path, needs[:1]) and not any(_is_below(need, (path,)) for need in needs)
    ]
    found = find_masks(find_home(), own, as_root=os.geteuid() == 0, named=[*named, *more])
    folders, files = (
        tuple(path for path in paths if not is_hidden(path, sandbox.policy) or _is_below(path, seen))
        for paths in found
    )
    return folders, files


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
            and (entry.name.startswith(_NEIGHBOURS) or os.path.isfile(os.path.join(entry.path, ".git")))
        ]


def _is_below(path: str, folders: Iterable[str]) -> bool:
    return any(path == folder or path.startswith(f"{folder}/") for folder in folders)


def go_inside(folder: Path) -> NoReturn:
    """Become bubblewrap, or the proxy that starts it; else say why not, as bubblewrap does.

    By that the end of a walled job is told from the end of walls that could not be built.
    """
    try:
        wish = load_record(folder / INSIDE, WallsWish)
        open_report(folder / REPORT)
        walls = raise_if_any(wish)
        assert walls is not None
        argv = walls.wrap(wish.begins_in, *wish.command)
        marker = {name: os.environ[name] for name in (JOB_MARKER,) if name in os.environ}  # it finds processes
        os.execve(argv[0], argv, {**walls.env, **marker})
    except (SessionrunError, OSError) as error:
        sys.exit(f"bwrap: {error}")


def open_report(path: Path) -> None:
    """Open the file of the report as the descriptor that `inner` is given."""
    os.dup2(open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), REPORT_FD)
    os.set_inheritable(REPORT_FD, True)  # if it was the same, dup2 changes nothing
