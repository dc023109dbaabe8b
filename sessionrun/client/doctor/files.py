"""Checks of the files in the session directory: their kinds and modes, missing files, and leftover files."""

from __future__ import annotations

import os
import re
import shlex
import stat
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

from sessionrun.client.doctor.evidence import Evidence
from sessionrun.client.doctor.finding import Finding
from sessionrun.model.events import JobClaimed, JobFinished
from sessionrun.runtime.export_places import find_left
from sessionrun.store import locks, processes
from sessionrun.store.files import no_umask, remove_left
from sessionrun.store.session import AGENT_DIR, WALLS_STATE, WALLS_SUFFIX

_REGULAR: Final = ("spec.json", "journal", "ledger", "status.json", "summary", "supervisor.log", *locks.NAMES)
_FOLDERS: Final = ("requests", "prompts", "jobs")
_TASK_FILE: Final = re.compile(r"task-.+\.(txt|err|raw)")
_TEMPORARY: Final = re.compile(r"\..+\.(\d+)\.tmp")
_WORDS: Final = {
    stat.S_IFREG: "a regular file",
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFLNK: "a link",
    stat.S_IFSOCK: "a socket",
}

OLD_S: Final = 3600.0
YOUNG_S: Final = 10.0
"""A process needs moments to write a file beside its place; but its pid may be invisible from here."""


def check_kinds(evidence: Evidence) -> Iterator[Finding]:
    """Whether each of our names in the directory has the right kind: file, directory or FIFO."""
    top = evidence.session.path
    names = [name for name in _list(top) if _TASK_FILE.fullmatch(name)]
    expected = {top / name: stat.S_IFREG for name in (*_REGULAR, *sorted(names))}
    expected |= {top / name: stat.S_IFDIR for name in _FOLDERS} | {top / "wake": stat.S_IFIFO}
    expected |= {top / "requests" / name: stat.S_IFREG for name in sorted(_list(top / "requests"))}
    for path, kind in expected.items():
        inode = _stat(path)
        if inode is not None and stat.S_IFMT(inode.st_mode) != kind:
            what = f"{_WORDS.get(stat.S_IFMT(inode.st_mode), 'a device')} in the place of {_WORDS[kind]}"
            aside = shlex.join(["mv", str(path), f"{path}.planted"])
            plan = f"another program put it there, perhaps a task; move it away: {aside}"
            yield Finding("kinds", "error", str(path), what, plan)


def check_wake(evidence: Evidence) -> Iterator[Finding]:
    """Whether the FIFO that wakes a supervisor for requests is there."""
    path = evidence.session.wake_path
    if evidence.spec is None or _stat(path) is not None:
        return
    if evidence.alive:
        plan = "requests are taken when something else happens; --fix makes it once no process runs the session"
        yield Finding("wake", "warning", str(path), "missing", plan)
    else:
        yield Finding("wake", "warning", str(path), "missing", "--fix makes it", lambda: _make_fifo(path))


def check_modes(evidence: Evidence) -> Iterator[Finding]:
    """Whether other users may read our files."""
    # While a session lives, the files of its jobs have the modes that the jobs chose.
    jobs = evidence.session.path / "jobs" if evidence.alive else None
    own = ((path, inode) for path, inode in _walk(evidence.session.path) if jobs not in path.parents)
    wide = [path for path, inode in own if inode.st_mode & 0o077]
    if not wide:
        return
    first = wide[0]
    more = f", and {len(wide) - 1} more in it" if len(wide) > 1 else ""
    what = f"wider than 0700 or 0600: {os.path.relpath(first, evidence.session.path)}{more}"
    if evidence.alive:
        plan = "--fix takes the rights of group and others away once no process runs the session"
        yield Finding("modes", "warning", str(evidence.session.path), what, plan)
    else:
        plan = "--fix takes the rights of group and others away"
        yield Finding("modes", "warning", str(evidence.session.path), what, plan, lambda: _tighten(wide))


def check_temporary(evidence: Evidence) -> Iterator[Finding]:
    """Whether temporary files are left of a process that died while it wrote them."""
    if evidence.alive:
        return
    what = "left by a process that died while it wrote"
    for path in find_left(evidence.spec.exports if evidence.spec is not None else ()):
        yield Finding("temporary", "warning", str(path), what, "--fix removes it", partial(remove_left, path))
    for path, inode in _walk(evidence.session.path):
        match = _TEMPORARY.fullmatch(path.name)
        if match is None or not stat.S_ISREG(inode.st_mode):
            continue
        age_s = evidence.now - inode.st_mtime
        if age_s > OLD_S or (age_s > YOUNG_S and processes.identify(int(match[1])) is None):
            yield Finding("temporary", "warning", str(path), what, "--fix removes it", path.unlink)


def check_outputs(evidence: Evidence) -> Iterator[Finding]:
    """Whether the outputs of tasks that have ended are there."""
    if evidence.state is None:
        return
    claimed, finished = {}, set()
    for entry in evidence.entries:
        if isinstance(entry.event, JobClaimed) and entry.event.key.phase == "work":
            claimed[entry.event.key.task] = entry.event.key
        elif isinstance(entry.event, JobFinished) and entry.event.wait_status is not None:
            finished.add(entry.event.key)
    for task_id, key in claimed.items():
        if key not in finished or evidence.state.tasks[task_id].outcome is None:
            continue
        answer, raw = evidence.session.output_path(task_id), evidence.session.raw_path(task_id)
        if _stat(answer) is None and _stat(raw) is None:
            what = f"task {task_id} has ended, and its output is gone"
            plan = "it was removed; only a new attempt of the task makes another"
            yield Finding("outputs", "warning", str(answer), what, plan)


def _walk(top: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """A directory and all below it that belongs to us and has one name; links are left out.

    So is the content of folders that tasks and agents have for themselves: it is as private as the folder.
    """
    inode = _stat(top)
    if inode is None or not stat.S_ISDIR(inode.st_mode) or inode.st_uid != os.geteuid():
        return
    yield top, inode
    for name in sorted(_list(top)):
        path = top / name
        inode = _stat(path)
        if inode is None or inode.st_uid != os.geteuid():
            continue
        if stat.S_ISDIR(inode.st_mode):
            yield from [(path, inode)] if _is_of_task(path) else _walk(path)
        elif (stat.S_ISREG(inode.st_mode) and inode.st_nlink == 1) or stat.S_ISFIFO(inode.st_mode):
            yield path, inode


def _is_of_task(path: Path) -> bool:
    is_own = path.name in (AGENT_DIR, WALLS_STATE) or path.name.endswith(WALLS_SUFFIX)
    return is_own and path.parent.parent.name == "jobs"


def _make_fifo(path: Path) -> None:
    with no_umask():
        os.mkfifo(path, 0o600)


def _tighten(paths: list[Path]) -> None:
    for path in paths:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            os.fchmod(fd, stat.S_IMODE(os.fstat(fd).st_mode) & 0o700)
        finally:
            os.close(fd)


def _list(path: Path) -> list[str]:
    try:
        return os.listdir(path) if not path.is_symlink() else []
    except OSError:
        return []


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except OSError:
        return None
