"""What an agent has inside of walls in the place of its folders: a folder of the task's own, and in it the user's
settings, which can only be read, and log-ins.

A log-in is the user's file itself, mounted, so that what one task renews all have; or a copy, if its agent
renames a new file over it (see `logins`): a mounted file refuses that with EBUSY.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import orjson

from sessionrun.runtime.jobs.logins import copy_logins
from sessionrun.store.files import make_directories, read_regular, replace_file
from sessionrun.walls.argv import Walls
from sessionrun.walls.policy import EVERYTHING, AgentState
from sessionrun.walls.programs import find_state_folder, find_state_folders

_MAX_SEED: Final = 1 << 26


def locate_state(home: str, state: AgentState, env: Mapping[str, str]) -> dict[str, str]:
    """The variables by which an agent finds what it keeps."""
    if state.folder_variable is None:
        return dict(state.variables)
    folder = find_state_folder(home, state, env)
    named = os.path.dirname(folder) if state.in_variable else folder
    return {state.folder_variable: named, **dict(state.variables)}


def list_more_settings(home: str, state: AgentState) -> tuple[str, ...]:
    """The user's files of an agent's settings that are not in its main folder."""
    others = find_state_folders(home, state, {})[1:]
    paths = [path for users, settings in others for _, path in _list_settings(users, settings)]
    return (*(path for path in paths if os.path.isfile(path)), *(os.path.join(home, name) for name in state.files))


def add_state(walls: Walls, state: AgentState, own: Path, env: Mapping[str, str], *, record: Path) -> Walls:
    """The walls with folders of the task's own for its agent, and what of the user's comes in.

    Args:
        walls: without them.
        state: the agent's.
        own: the task's folder for it; it is made, and more for further folders are made beside it.
        env: the variables of the job.
        record: the file that gets a record of what is copied.

    Raises:
        OSError: something cannot be made.
    """
    writable, readable = [], []
    for num, (users, settings) in enumerate(find_state_folders(walls.home, state, env)):
        mine = own if num == 0 else own.with_name(f"{own.name}+{num}")
        make_directories(mine, 0o700)
        inside = _find_inside(walls, state, num, users)
        writable.append((str(mine), inside))
        readable += [(path, os.path.join(inside, name)) for name, path in _list_settings(users, settings)]
    users, inside = find_state_folder(walls.home, state, env), writable[0][1]
    logins = [name for name in state.credentials if os.path.isfile(os.path.join(users, name))]
    if state.renames:
        copy_logins(users, own, logins, record)
    else:
        writable += [(os.path.realpath(os.path.join(users, name)), os.path.join(inside, name)) for name in logins]
    if state.seed is not None:
        _sow(_find_seed(walls.home, state, users), own / state.seed, state.seed_keys)
    readable += _list_files(walls, state)
    return replace(walls, binds=(*walls.binds, *writable), ro_binds=(*walls.ro_binds, *readable))


def _find_inside(walls: Walls, state: AgentState, num: int, users: str) -> str:
    """Where a folder is inside; where only the mount is new, its place has to be there."""
    if num > 0 or state.folder_variable is None:
        users = os.path.join(walls.home, state.folders[num][0])  # no variable of the user's leads elsewhere inside
    if walls.policy == "project":
        make_directories(Path(users), 0o700)  # the agent would make it by itself
        return os.path.realpath(users)
    return users


def _list_settings(users: str, settings: Iterable[str]) -> Iterator[tuple[str, str]]:
    """What of the user's settings is there: the name, and where it really is."""
    if EVERYTHING in settings:
        settings = sorted(os.listdir(users)) if os.path.isdir(users) else ()
    for name in settings:
        path = os.path.realpath(os.path.join(users, name))
        if os.path.isfile(path) or os.path.isdir(path):
            yield name, path


def _list_files(walls: Walls, state: AgentState) -> Iterator[tuple[str, str]]:
    """The files of the home directory that the agent reads, where the home directory is empty."""
    for name in state.files if walls.policy == "strict" else ():
        path = os.path.join(walls.home, name)
        if os.path.isfile(path):
            yield os.path.realpath(path), path


def _find_seed(home: str, state: AgentState, users: str) -> Path:
    """The file whose keys come in: in the folder if a variable names that, else beside it."""
    usual = users == os.path.join(home, state.folder)
    return Path(home if usual else users, state.seed or "")


def _sow(origin: Path, copy: Path, keys: tuple[str, ...]) -> None:
    """Write the file of the task's own, if it has none; what cannot be read is left out."""
    if copy.exists():
        return
    try:
        record = orjson.loads(read_regular(os.path.realpath(origin), _MAX_SEED))
    except (OSError, ValueError):
        return
    if isinstance(record, dict) and any(key in record for key in keys):
        kept = {key: record[key] for key in keys if key in record}
        replace_file(copy, orjson.dumps(kept), durable=False)
