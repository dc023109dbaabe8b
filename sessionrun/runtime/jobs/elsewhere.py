"""A walled job on a node of a cluster: its process builds the walls that were wished for, with their proxy.

What is left to do when such a job has ended, the node does: `settle`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson

from sessionrun.model.errors import SessionrunError
from sessionrun.model.keys import parse_job_key
from sessionrun.runtime.executors.orders import NotSet, look_up
from sessionrun.runtime.jobs.logins import LOGINS, take_back
from sessionrun.runtime.jobs.raising import OpenDoor, raise_for_build, raise_walls
from sessionrun.runtime.proxying import Proxying
from sessionrun.store.files import read_regular, replace_file
from sessionrun.store.session import AGENT_DIR, WALLS_STATE, SessionDir
from sessionrun.walls.argv import Enclosure
from sessionrun.walls.groups import FULL, GROUPS, drop_groups, was_full
from sessionrun.walls.space import FOLDERS
from sessionrun.walls.trial import find_wish_problem
from sessionrun.walls.wish import WallsWish


@contextmanager
def open_walls(wish: WallsWish) -> Iterator[Enclosure]:
    """The walls of a wish, with their way into the network for as long as this lasts.

    Raises:
        SessionrunError, OSError: they cannot be built here.
    """
    with _open_door(wish) as door:
        yield raise_walls(_check(wish), door)


@contextmanager
def open_request(request: Any) -> Iterator[Any]:
    """What a CHECK, a PROVE or the making of an environment is asked, with its walls if they are wishes so far.

    Raises:
        SessionrunError, OSError: they cannot be built here.
    """
    wishes = list(_find_wishes(request))
    if not wishes:
        yield request
        return
    with _open_door(wishes[0]) as door:
        yield _fulfil(request, door)


def _find_wishes(request: Any) -> Iterator[WallsWish]:
    """The wishes in a request; those of one job are all for the same network."""
    if getattr(request, "walls_wish", None) is not None:
        yield request.walls_wish
    if getattr(getattr(request, "walls", None), "wish", None) is not None:
        yield request.walls.wish
    for part in ("verification", "environment"):
        if getattr(request, part, None) is not None:
            yield from _find_wishes(getattr(request, part))


def _fulfil(request: Any, door: OpenDoor | None) -> Any:
    if getattr(request, "walls_wish", None) is not None:
        request = replace(request, walls=raise_for_build(_check(request.walls_wish), door), walls_wish=None)
    if getattr(getattr(request, "walls", None), "wish", None) is not None:
        request = replace(request, walls=raise_walls(_check(request.walls.wish), door))
    for part in ("verification", "environment"):
        if getattr(request, part, None) is not None:
            request = replace(request, **{part: _fulfil(getattr(request, part), door)})
    return request


def _check(wish: WallsWish) -> WallsWish:
    """The wish with the variables that are given by name.

    Raises:
        SessionrunError: it cannot be fulfilled on this machine.
    """
    problem = find_wish_problem(wish.sandbox)
    if problem is not None:
        raise SessionrunError(problem)
    try:
        env = look_up(wish.env, os.environ)
    except NotSet as error:
        raise SessionrunError(str(error)) from None
    if wish.sandbox.memory is not None or wish.sandbox.cpus is not None:
        replace_file(Path(wish.record, GROUPS), os.fsencode(wish.group), durable=False)
    if wish.sandbox.disk is not None:
        replace_file(Path(wish.record, FOLDERS), orjson.dumps(_list_writable(wish)), durable=False)
    return replace(wish, env=env)


def _list_writable(wish: WallsWish) -> list[str]:
    """What a job of the task can write; see `runtime.disk`."""
    state = os.path.join(os.path.dirname(wish.folder), WALLS_STATE)
    beside = (state, os.path.join(os.path.dirname(wish.record), AGENT_DIR))
    return [
        path for path in (wish.folder, *beside, wish.worktree, wish.environment, wish.room) if path is not None
    ]


@contextmanager
def _open_door(wish: WallsWish) -> Iterator[OpenDoor | None]:
    """A proxy of this process's own, if the job's network is one."""
    if wish.sandbox.network != "proxy":
        yield None
        return
    proxying = Proxying(SessionDir(Path(wish.session)), lambda line: print(line, file=sys.stderr))
    key = parse_job_key(wish.job)
    try:
        yield lambda rules: proxying.open(key, rules)
    finally:
        proxying.shut(key)
        proxying.end()


def settle(folder: Path) -> None:
    """When a job has ended on this node, or was lost there: what it renewed of log-ins is kept, its groups go."""
    take_back(folder / LOGINS)
    with suppress(OSError):
        name = os.fsdecode(read_regular(folder / GROUPS, 4096))
        if was_full(name):
            replace_file(folder / FULL, b"", durable=False)
        drop_groups(name)
        os.unlink(folder / GROUPS)
