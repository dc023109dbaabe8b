"""What an agent has inside of walls in the place of its folders: a folder of the task's own with a log-in.

A log-in is the user's file itself, mounted, so that what one task renews all have; or a copy, if its agent
renames a new file over it: a mounted file refuses that with EBUSY.

A log-in is renewed with a token that holds once.  If the new one were lost with the job, the user would be
logged out.  So after the job, and only outside, its copy replaces the user's file: if it is a regular file and a
JSON object with a key of the user's, and if the user's file is what it was when the job began.  (Not with all of
its keys: qwen leaves some out.)  If another program renewed the user's own meanwhile, that one stays.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import orjson

from sessionrun.agents.programs import Program, find_seed, find_state_folder
from sessionrun.keeper.wire import say
from sessionrun.model.frozen import frozen
from sessionrun.model.kinds import PathText
from sessionrun.store import locks
from sessionrun.store.files import make_directories, read_regular, replace_file
from sessionrun.store.jobfiles import load_usable
from sessionrun.walls.argv import Walls
from sessionrun.walls.programs import find_state_folders, list_settings

LOGINS: Final = "walls-logins"
"""In the folder of a job: a list of `Copied`."""

MAX_LOGIN: Final = 1 << 20
"""The largest file that is a log-in (bytes)."""


@frozen
class Copied:
    """A log-in that a job has a copy of: where each really is, and the digest of what was in it at the begin."""

    users: PathText
    copy: PathText
    digest: str


def copy_logins(users: str, own: Path, names: Iterable[str], record: Path) -> None:
    """Copy log-ins from the user's folder into a task's, and record it before the job can change them."""
    copied = []
    for name in names:
        path = os.path.realpath(os.path.join(users, name))
        content = read_regular(path, MAX_LOGIN)
        replace_file(own / name, content, durable=False)
        copied.append(Copied(path, str(own / name), _digest(content)))
    if copied:
        replace_file(record, orjson.dumps(copied), durable=True)


def take_back(record: Path) -> None:
    """Put what a job renewed of its log-ins in the place of the user's; without a record nothing happens.

    A second call, after a crash, changes nothing more.  If a user's file cannot be replaced, the log says where
    the renewed one is, and the record stays.
    """
    entries = load_usable(record, tuple[Copied, ...])
    done = [_take_one(entry) for entry in entries or ()]
    if entries is not None and all(done):
        record.unlink(missing_ok=True)


def _take_one(entry: Copied) -> bool:
    """Put it in the place of the user's, unless another program is about to; whether nothing is left to do."""
    users = entry.users
    try:
        new = read_regular(entry.copy, MAX_LOGIN)
    except OSError:
        return True  # it is no log-in any more
    if _digest(new) == entry.digest or not _parse(new):
        return True
    if os.path.realpath(users) != users or not os.path.isfile(users):
        return True
    try:
        fd = locks.hold(f"{users}.lock")  # codex holds the same while it renews
        if fd is None:
            return True
        try:
            old = read_regular(users, MAX_LOGIN)
            if _digest(old) == entry.digest and _parse(old).keys() & _parse(new).keys():
                replace_file(Path(users), new, durable=True)
        finally:
            os.close(fd)
    except OSError as error:
        say(f"{users} cannot be replaced: {error.strerror}; what an agent renewed is {entry.copy}")
        return False
    return True


def _parse(content: bytes) -> dict[str, Any]:
    """The object of a log-in; what is none has no keys."""
    try:
        found = orjson.loads(content)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _digest(content: bytes) -> str:
    import hashlib  # few jobs need it, and every supervisor would wait for its import

    return hashlib.sha256(content).hexdigest()


_MAX_SEED: Final = 1 << 26


def locate_state(home: str, state: Program, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables by which an agent finds what it keeps."""
    if state.folder_variable is None:
        return dict(state.variables)
    folder = find_state_folder(state, home, environ)
    named = os.path.dirname(folder) if state.in_variable else folder
    return {state.folder_variable: named, **dict(state.variables)}


def add_state(walls: Walls, state: Program, own: Path, environ: Mapping[str, str], *, record: Path) -> Walls:
    """The walls with folders of the task's own for its agent, and what of the user's comes in.

    Args:
        own: the task's folder for it; it is made, and more for further folders are made beside it.
        record: the file that gets a record of what is copied.
    """
    writable, readable = [], []
    for num, (users, settings) in enumerate(find_state_folders(walls.home, state, environ)):
        mine = own if num == 0 else own.with_name(f"{own.name}+{num}")
        make_directories(mine, 0o700)
        inside = _find_inside(walls, state, num, users)
        writable.append((str(mine), inside))
        readable += [(path, os.path.join(inside, name)) for name, path in list_settings(users, settings)]
    users, inside = find_state_folder(state, walls.home, environ), writable[0][1]
    logins = [name for name in state.credentials if os.path.isfile(os.path.join(users, name))]
    if state.renames:
        copy_logins(users, own, logins, record)
    else:
        writable += [(os.path.realpath(os.path.join(users, name)), os.path.join(inside, name)) for name in logins]
    if state.seed is not None:
        _sow(find_seed(state, walls.home, environ), own / state.seed, state.seed_keys)
    # the agent reads them in the home directory, which is empty there
    for name in state.files if walls.is_strict else ():
        path = os.path.join(walls.home, name)
        if os.path.isfile(path):
            readable.append((os.path.realpath(path), path))
    return replace(walls, binds=(*walls.binds, *writable), ro_binds=(*walls.ro_binds, *readable))


def _find_inside(walls: Walls, state: Program, num: int, users: str) -> str:
    """Where a folder is inside; where only the mount is new, its place has to be there."""
    if num > 0 or state.folder_variable is None:
        users = os.path.join(walls.home, state.folders[num][0])  # no variable of the user's leads elsewhere inside
    if not walls.is_strict:
        make_directories(Path(users), 0o700)  # the agent would make it by itself
        return os.path.realpath(users)
    return users


def _sow(origin: str, copy: Path, keys: tuple[str, ...]) -> None:
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
