"""Where a node keeps its books: ``NODES/NAME/node.json`` says which one it is, ``NODES/NAME/node-ID`` is its own.

The replicas of this machine's nodes lie beside the books.

The id is made once, at random: two machines that have the same name are two nodes, and a node that comes back is
the same one.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final
from uuid import uuid4

import orjson

from sessionrun.keeper.lease import NAME as LEASE
from sessionrun.keeper.lease import Lease, LeaseFile
from sessionrun.keeper.wire import module_command
from sessionrun.model.errors import InputError, SessionrunError, StoreError
from sessionrun.model.frozen import frozen
from sessionrun.store import locks, processes
from sessionrun.store.codec import build
from sessionrun.store.files import list_folders, make_directories, read_regular, replace_file
from sessionrun.store.index import choose_directory, user_directory
from sessionrun.store.locks import hold_lock
from sessionrun.store.space import Cached, measure
from sessionrun.store.trees import remove_tree

NODES_VARIABLE: Final = "SESSIONRUN_NODES"
"""Names the directory of this machine's nodes."""

EXIT_LEFT: Final = 77
"""What a program that a verb of `cluster` starts again and again ends with to end that."""

LOOP_VARIABLE: Final = "SESSIONRUN_LOOP"
"""In a program that a verb of `cluster` starts again and again: the verb's process."""

NODE_VARIABLE: Final = "SESSIONRUN_NODE"
"""Tells a worker of the cluster which node it is the bridge of: the node's own directory."""

CALM: Final[Mapping[str, str]] = {
    "DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED": "False",
    "DASK_DISTRIBUTED__ADMIN__TICK__INTERVAL": "500ms",
    "DASK_DISTRIBUTED__SCHEDULER__HTTP__ROUTES": "[]",
    "DASK_DISTRIBUTED__WORKER__HTTP__ROUTES": "[]",
}
"""Settings of the programs of dask: else they look all the time at tasks of its own, of which there are none, and
show logs and addresses by HTTP to all users of the machine."""

SOCKET: Final = "link.sock"
JOBS: Final = "jobs"
LEFT: Final = "left"
"""File in a node's own directory: it was told to end, and is not started again but by a person."""

LOCK: Final = "bridge.lock"
"""File in the directory of a node's name: `cluster node` and its worker lock it, or a worker of the user's own."""

MAX_SLOTS: Final = 10_000
RESCUE_S: Final = 300.0

MAX_NAME: Final = 63

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


@frozen
class NodeSite:
    """A node of this machine, as `node.json` has it but for the `path`, which is its own directory.

    Work in progress is sent every `rescue_s` seconds (0: never).  `boots` counts the boots of the machine on which
    it was started, `boot` is the last one: each has a clock of its own.
    """

    node_id: str
    name: str
    slots: int
    path: Path = Path()
    rescue_s: float = RESCUE_S
    boot: str | None = None
    boots: int = 0


def find_nodes_dir(environ: Mapping[str, str]) -> Path:
    """The directory of this machine's nodes: as the environment says, else in the user's cache directory."""
    return choose_directory(environ, NODES_VARIABLE, user_directory("cache") / "nodes")


def check_node(name: str, slots: int) -> None:
    """See that a node can have this name, and so many slots.  InputError: it cannot."""
    if not _NAME.fullmatch(name):
        raise InputError(f"--name {name!r:.80}: give letters, digits, '.', '_' and '-', at most 63")
    if not 1 <= slots <= MAX_SLOTS:
        raise InputError(f"--slots {slots}: give a number from 1 to {MAX_SLOTS}")


def open_node(nodes: Path, name: str, slots: int, rescue_s: float = RESCUE_S) -> NodeSite:
    """The node of that name, made where there is none yet; it has `slots` from now on.

    Raises:
        InputError: the name or the number cannot be used, or the directory not be written.
    """
    check_node(name, slots)
    folder = nodes / name
    try:
        make_directories(folder, 0o700)
        try:
            before = load_site(folder / "node")
        except (OSError, ValueError):
            before = NodeSite(f"{name}@{uuid4().hex[:12]}", name, slots)
        boot, node_id = processes.boot_id(), before.node_id
        boots = before.boots + (before.boot != boot)
        site = NodeSite(node_id, name, slots, folder / f"node-{node_id}", rescue_s, boot, boots)
        kept = asdict(site)
        del kept["path"]
        replace_file(folder / "node.json", orjson.dumps(kept), durable=True)
        (site.path / LEFT).unlink(missing_ok=True)
        make_directories(site.path / JOBS, 0o700)
        if not os.path.lexists(site.path / LEASE):
            LeaseFile(site.path).write(Lease())
    except OSError as error:
        raise InputError(f"the node's directory {folder} cannot be written: {error.strerror}") from error
    return site


def load_site(path: Path) -> NodeSite:
    """The node whose own directory that is.  OSError, ValueError: it is none."""
    about = orjson.loads(read_regular(path.parent / "node.json", 1 << 16))
    return replace(build(NodeSite, about), path=path)


def stay_with_verb() -> None:
    """Be killed with the verb that started this program, if one did: nothing would start it again when it ends."""
    if (verb := os.environ.get(LOOP_VARIABLE)) is not None:
        processes.die_with_parent()
        if os.getppid() != int(verb):  # it died before
            os._exit(0)


def has_root(site: NodeSite) -> bool:
    """Whether its root lives."""
    return locks.is_held(site.path / "root.lock")


def start_root(site: NodeSite) -> str | None:
    """Start the node's root, unless there is one; the reason if it did not come up.

    By a process of its own: the caller may have threads, and a process that has them must not fork.
    """
    argv = module_command(__name__, str(site.path))
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode == 0:
        return None
    return (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]


def main() -> None:
    """Start the root of the node in ``argv[1]``, detached; exit code 1 and the reason if it does not come up."""
    from sessionrun.session import launch
    from sessionrun.store.session import SessionDir

    directory = Path(sys.argv[1])
    calm = (name for name, value in CALM.items() if os.environ.get(name) == value)
    for name in (NODE_VARIABLE, LOOP_VARIABLE, *calm):
        os.environ.pop(name, None)  # these are for the worker, not for jobs
    try:
        lock_fd = locks.hold(directory / "root.lock", timeout_s=launch.LOCK_TIMEOUT_S)
        if lock_fd is not None:
            launch.start_detached(SessionDir(directory), lock_fd, new=False, program="sessionrun.cluster.node")
    except (StoreError, OSError) as error:
        sys.exit(str(error))


_REPLICAS: Final = "repositories"


def iterate_replicas(_: Path) -> Iterator[Cached]:
    """The replicas of all nodes of this machine, by name: they lie beside the cache."""
    for path in _list_replicas():
        try:
            yield Cached(path, max(each.lstat().st_mtime for each in (path, *path.iterdir())), measure(path))
        except (OSError, ValueError):
            continue  # removed meanwhile


def find_stranded() -> Iterator[Path]:
    """Worktrees in replicas of nodes that have no jobs: nothing works on them, or will send them home."""
    for replica in _list_replicas():
        if not _has_jobs(replica.parent.parent):
            yield from _list_worktrees(replica)


def remove_replica(replica: Cached, *, dry_run: bool = False) -> str | None:
    """Remove a replica; why it stays, or None.

    It holds what tasks began with, which sessions send again.  It stays while its node has jobs, and while a
    worktree of it is there: that is work which did not come home.
    """
    node = replica.path.parent.parent
    if _has_jobs(node):
        return f"the node {node.name} has jobs"
    if worktrees := _list_worktrees(replica.path):
        return f"there are worktrees in it: {worktrees[0]}"
    try:
        with hold_lock(replica.path / "lock", 0o600, 0.0):
            if not dry_run:
                trash = replica.path.with_name(f".trash-{replica.path.name}")
                os.rename(replica.path, trash)
                remove_tree(trash)
            return None
    except SessionrunError:
        return "it is in use"


def _list_worktrees(replica: Path) -> list[Path]:
    """Those of tasks: rooms and environments, with a dot, hold no work."""
    names = list_folders(replica / "worktrees")
    return [replica / "worktrees" / name for name in names if not name.startswith(".")]


def _list_replicas() -> list[Path]:
    nodes = find_nodes_dir(os.environ)
    folders = (nodes / node / _REPLICAS for node in list_folders(nodes))
    return [folder / name for folder in folders for name in list_folders(folder)]


def _has_jobs(node: Path) -> bool:
    return any(list_folders(site / JOBS) for site in node.glob("node-*"))
