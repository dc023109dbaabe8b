"""From walls to words for bubblewrap.  What is there on this machine is found out elsewhere (`programs`); but for
`clear_ways` nothing is touched.

The order of the words is part of what they mean: a later mount covers an earlier one.

    the system              all of it, read-only (project), or /usr, /etc, /opt and what is named (strict)
    /dev /proc /run /tmp    new ones; /tmp is a folder on disk, for a large file in it would use up the memory
    what is shown           programs, paths of the task
    what is around it       folders that are hidden or masked and in which the checkout lies; then the checkout
    git                     such folders with the common directory in them; then in its place nothing but objects,
                            which the task's own git directory borrows (see `worktrees.own`)
    masks                   secrets, results of sessions, other worktrees: after all that is shown read-only
    what is the task's own  its worktree, whose `.git` leads to its own git directory, the state of its agent
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Final

from sessionrun.model.asked import Sandbox
from sessionrun.model.frozen import frozen
from sessionrun.walls import inner

TMP: Final = "/tmp"
PROMPT: Final = "/run/prompt"
INNER: Final = "/run/inner.py"
REPORT_FD: Final = 9
"""The descriptor of a job's report."""

PROXY_FOLDER: Final = "/run/proxy"
PROXY_URL: Final = "http://127.0.0.1:3128"
OWN_GIT: Final = "git"
"""In a task's folder of walls: its own git directory."""

OWN_PLACE: Final = "/run/git"
"""Where it is inside: its own path would tell the name of the session."""

GITFILE: Final = "gitfile"
"""In the same folder: what `.git` of its worktree is inside."""

TMP_FOLDER: Final = "tmp"
"""In the same folder: what is /tmp inside."""

_ALONE: Final = ("--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try")
_NO_CAPABILITIES: Final = ("--cap-drop", "ALL")
"""Without it root keeps all of them, also in a user namespace."""

_ROOT_PROC: Final = ("sys", "irq", "bus", "fs", "acpi", "scsi", "sysrq-trigger", "mtrr")
"""In /proc: what uid 0 may write without a capability, and with it change the machine."""

_SYSTEM: Final = ("/usr", "/etc", "/opt", "/nix")
_RESOLVERS: Final = ("/run/systemd/resolve", "/run/resolvconf", "/run/NetworkManager/resolv.conf")
"""To these /etc/resolv.conf may lead."""


@frozen
class Walls:
    """All that is needed to start programs inside of walls, as absolute paths that exist unless it says otherwise.

    Attributes:
        as_root: whether the user is root: some files have to be covered for it.
        python: an interpreter, which runs `inner`.
        tmp: the folder that is /tmp inside; '': one in memory.
        top: the user's checkout; None: it is not shown.
        common_dir: the common directory of the repository; None: there is none.
        own: the folder of the task's walls, with its own git directory: of the repository nothing is seen but
            objects and large files; None: all of it can be read.
        worktree: the directory that can be written.
        system_links: names in / that lead into /usr, and where to.
        shown: what can be read beside the system.
        links: where a link is made for `strict`, and where it leads.
        masked: files with secrets, which are empty inside.
        hidden: folders that are empty inside but for what is the task's own, its repository too.
        binds: what can be written: where it is, and where it is inside.
        ro_binds: the same for what can only be read; it comes last, so that nothing covers it.
        proxy: the folder with the socket of its proxy, if it has one.
        reports: whether `inner` reports how the program ended.
        stdin: the file inside that the program reads; None: it reads nothing (or as `inner` says).
        outlives_us: whether programs go on when the process ends that starts them.
        env: all variables inside.
        before: the words that start bubblewrap: those of its proxy, and of a shell that enters control groups.
    """

    bwrap: str
    sandbox: Sandbox
    as_root: bool
    home: str
    python: str
    tmp: str
    top: str | None = None
    common_dir: str | None = None
    own: str | None = None
    worktree: str | None = None
    system_links: tuple[tuple[str, str], ...] = ()
    shown: tuple[str, ...] = ()
    links: tuple[tuple[str, str], ...] = ()
    masked: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    binds: tuple[tuple[str, str], ...] = ()
    ro_binds: tuple[tuple[str, str], ...] = ()
    proxy: str | None = None
    reports: bool = False
    stdin: str | None = None
    outlives_us: bool = False
    env: Mapping[str, str] = field(default_factory=dict)
    before: tuple[str, ...] = ()

    @property
    def is_strict(self) -> bool:
        """Whether only what is named is there."""
        return self.sandbox.policy == "strict"

    def wrap(self, cwd: str, *command: str) -> tuple[str, ...]:
        """The words that start a program inside, which begins in `cwd`."""
        words = [*self.before, self.bwrap, *_ALONE, *_NO_CAPABILITIES]
        words += [] if self.sandbox.network == "allow" else ["--unshare-net"]
        words += [] if self.outlives_us else ["--die-with-parent"]
        words += ["--disable-userns"] if self.is_strict and not self.as_root else []
        words += [word for mount in list_mounts(self) for word in mount]
        words += ["--remount-ro", "/"] if self.is_strict else []
        words += ["--chdir", cwd, "--", self.python, "-I", "-S", INNER]
        proxy = None if self.proxy is None else f"{PROXY_FOLDER}/socket"
        given = (REPORT_FD if self.reports else None, self.sandbox.processes, self.stdin, proxy)
        return (*words, *("-" if one is None else str(one) for one in given), *command)


def list_mounts(walls: Walls) -> list[tuple[str, ...]]:
    """What is there inside, as options of bubblewrap in their order; the last word of each is its place inside."""
    mounts = [*_list_system(walls), ("--bind", walls.tmp, TMP) if walls.tmp else ("--tmpfs", TMP)]
    # after TMP, in which it may lie; the root directory and TMP are the task's own anyway
    if walls.is_strict and walls.home not in ("/", TMP):
        mounts.append(("--tmpfs", walls.home))
    mounts += _show(walls.shown)
    mounts += [("--symlink", target, name) for name, target in walls.links]
    around_top = [folder for folder in walls.hidden if _lies_in(folder, walls.top)]
    others = [folder for folder in walls.hidden if folder not in around_top]
    around_git = [folder for folder in others if _lies_in(folder, walls.common_dir)]
    mounts += _empty(around_top)
    mounts += [] if walls.top is None else _show([walls.top])
    mounts += _empty(around_git)
    mounts += _list_git(walls)
    mounts += _empty(folder for folder in others if folder not in around_git)
    mounts += [("--ro-bind", "/dev/null", path) for path in walls.masked]
    if walls.worktree is not None:
        mounts.append(("--bind", walls.worktree, walls.worktree))
    mounts += _list_own(walls)
    mounts += [("--bind", place, inside) for place, inside in walls.binds]
    mounts += _show(walls.sandbox.devices, "--dev-bind")
    mounts += [] if walls.proxy is None else [("--ro-bind", walls.proxy, PROXY_FOLDER)]
    mounts += [("--ro-bind", place, inside) for place, inside in walls.ro_binds]
    return [*mounts, ("--ro-bind", inner.__file__, INNER)]


def _list_system(walls: Walls) -> list[tuple[str, ...]]:
    mounts: list[tuple[str, ...]] = [("--ro-bind", "/", "/")]
    if walls.is_strict:
        mounts = _show(_SYSTEM, "--ro-bind-try")
        mounts += [("--symlink", target, name) for name, target in walls.system_links]
    mounts += [("--dev", "/dev"), ("--proc", "/proc"), *_empty(("/run", "/var/tmp"))]
    mounts += _show(_RESOLVERS, "--ro-bind-try")
    return mounts + _show([f"/proc/{name}" for name in _ROOT_PROC if walls.as_root], "--ro-bind-try")


def _list_git(walls: Walls) -> list[tuple[str, ...]]:
    """The repository, or what a git directory of the task's own borrows from it.

    Git LFS looks for large files beside the objects of each alternate.
    """
    real = walls.common_dir
    if real is None:
        return []
    if walls.own is None:
        return _show([real])
    return [*_empty([real]), *_show([f"{real}/objects"]), *_show([f"{real}/lfs"], "--ro-bind-try")]


def _list_own(walls: Walls) -> list[tuple[str, ...]]:
    """The task's own git directory, and what leads to it from the worktree.

    A person's git outside reads another `.git` there, which the task can neither change nor remove.
    """
    if walls.own is None:
        has_one = walls.worktree is not None and walls.common_dir is not None
        return _show([f"{walls.worktree}/.git"], "--ro-bind-try") if has_one else []
    mounts: list[tuple[str, ...]] = [("--bind", f"{walls.own}/{OWN_GIT}", OWN_PLACE)]
    if walls.worktree is not None:
        mounts.append(("--ro-bind", f"{walls.own}/{GITFILE}", f"{walls.worktree}/.git"))
    return mounts


def _lies_in(folder: str, path: str | None) -> bool:
    return path is not None and path.startswith(f"{folder}/")


def _empty(folders: Iterable[str]) -> list[tuple[str, ...]]:
    return [("--tmpfs", folder) for folder in folders]


def _show(paths: Iterable[str], option: str = "--ro-bind") -> list[tuple[str, ...]]:
    return [(option, path, path) for path in paths]


def clear_ways(walls: Walls) -> None:
    """Delete what a task has put in the place of a directory on the way of a mount, in what it can write.

    Bubblewrap makes the places of mounts that are not there, and follows links on the way to them, while all of
    the machine can still be written.  By a link in its /tmp, where a later job of it has a mount, a task would so
    make directories and empty files outside.  No process of a task lives when a job of it is started.
    """
    mounts = list_mounts(walls)
    # what a task can write, and outlives a job: where it is, and where it is inside
    writable = [mount[1:] for mount in mounts if mount[0] == "--bind" and os.path.isdir(mount[1])]
    for *_, place in mounts:
        for folder, inside in writable:
            if place.startswith(f"{inside}/"):
                _clear(folder, place[len(inside) + 1 :].split("/"))


def _clear(folder: str, parts: Sequence[str]) -> None:
    """Delete the first of `parts`, names below each other, that is no directory; the last one may be a file."""
    path = folder
    for number, part in enumerate(parts, 1):
        path = os.path.join(path, part)
        try:
            mode = os.lstat(path).st_mode
        except FileNotFoundError:
            return
        if not stat.S_ISDIR(mode):
            if number < len(parts) or not stat.S_ISREG(mode):
                os.unlink(path)
            return
