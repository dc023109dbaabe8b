"""Where a node keeps its books: ``NODES/NAME/node.json`` says which one it is, ``NODES/NAME/node-ID`` is its own.

The replicas of this machine's nodes lie beside the books.  What guards a node starts its root, and is the third of
the lease's watchers: `cluster node`, or a worker of a cluster of dask that the user started.

The id is made once, at random: two machines that have the same name are two nodes, and a node that comes back is
the same one.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final
from uuid import uuid4

from sessionrun.cluster.ends import GUARD_SLACK_S
from sessionrun.keeper.lease import Lease, LeaseFile, Watcher
from sessionrun.keeper.wire import LEASE, module_command, say
from sessionrun.model.asked import Cluster
from sessionrun.model.errors import InputError, StoreError
from sessionrun.model.frozen import frozen
from sessionrun.model.kinds import Seconds
from sessionrun.store import locks, processes
from sessionrun.store.codec import build
from sessionrun.store.files import make_directories, read_regular, replace_file
from sessionrun.store.index import choose_directory, user_directory

NODES_VARIABLE: Final = "SESSIONRUN_NODES"
"""Names the directory of this machine's nodes."""

SETTINGS: Final = "node.json"
"""File in the directory of a node's name, written by what guards it: which node that is, as a `NodeSite`."""

JOBS: Final = "jobs"
LEFT: Final = "left"
"""File in a node's own directory: it was told to end, and is not started again but by a person."""

CONTACT: Final = "contact"
"""File in a node's own directory: why there is no contact with the cluster's scheduler; empty: there is."""

GUARD_LOCK: Final = "guard.lock"
"""File in the directory of a node's name: what guards the node locks it."""

LOCK_WAIT_S: Final = 10.0
"""So long a program waits for one that is ending."""

GUARD_LOOK_S: Final = 0.5

MAX_SLOTS: Final = 10_000
RESCUE_S: Final = 300.0
MAX_NAME: Final = 63
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


@frozen
class NodeSite:
    """A node of a `cluster`, as `node.json` has it but for the `path`, which is its own directory.

    Work in progress is sent every `rescue_s` seconds (0: never).  `boots` counts the boots of the machine on which
    it was started, `boot` is the last one: each has a clock of its own.
    """

    node_id: str
    name: str
    slots: int
    cluster: Cluster
    path: Path = Path()
    rescue_s: Seconds = RESCUE_S
    boot: str | None = None
    boots: int = 0


def find_nodes_dir(environ: Mapping[str, str]) -> Path:
    """The directory of this machine's nodes: as the environment says, else in the user's cache directory."""
    return choose_directory(environ, NODES_VARIABLE, user_directory("cache") / "nodes")


def take_lock(lock: Path, verb: str, what: str, option: str) -> int:
    """Take the lock of what only one program of this machine may be.

    Raises:
        InputError: another one has it, or it cannot be had.
    """
    try:
        make_directories(lock.parent, 0o700)
        lock_fd = locks.hold(lock, timeout_s=LOCK_WAIT_S)
    except OSError as error:
        raise InputError(
            f"the directory {lock.parent} cannot be written: {error.strerror}; see {NODES_VARIABLE}"
        ) from error
    if lock_fd is None:
        raise InputError(
            f"another `sessionrun cluster {verb}` of this machine, or a program of dask's, is {what}: end it, or "
            f"give this one another {option}"
        )
    return lock_fd


def lock_node(
    name: str, slots: int, cluster: Cluster, environ: Mapping[str, str], rescue_s: float = RESCUE_S
) -> NodeSite:
    """The node of that name, once no other program of this machine guards it.

    InputError: there can be no node of this name, or with so many slots; see also `take_lock` and `open_node`.
    """
    if not _NAME.fullmatch(name):
        raise InputError(f"--name {name!r:.80}: give letters, digits, '.', '_' and '-', at most 63")
    if not 1 <= slots <= MAX_SLOTS:
        raise InputError(f"--slots {slots}: give a number from 1 to {MAX_SLOTS}")
    nodes = find_nodes_dir(environ)
    take_lock(nodes / name / GUARD_LOCK, "node", f"the node {name}", "--name")
    return open_node(nodes, name, slots, cluster, rescue_s)


def open_node(nodes: Path, name: str, slots: int, cluster: Cluster, rescue_s: float = RESCUE_S) -> NodeSite:
    """The node of that name, made where there is none yet; it has `slots` from now on, and calls the `cluster`.

    Raises:
        InputError: the directory cannot be written.
    """
    folder = nodes / name
    try:
        make_directories(folder, 0o700)
        try:
            before = load_site(folder / "node")
        except (OSError, ValueError):
            before = NodeSite(f"{name}@{uuid4().hex[:12]}", name, slots, cluster)
        boot, node_id = processes.boot_id(), before.node_id
        boots = before.boots + (before.boot != boot)
        site = NodeSite(node_id, name, slots, cluster, folder / f"node-{node_id}", rescue_s, boot, boots)
        kept = asdict(site)
        del kept["path"]
        for file in (LEFT, CONTACT):  # the link writes the second one anew when it sees other settings
            (site.path / file).unlink(missing_ok=True)
        replace_file(folder / SETTINGS, json.dumps(kept).encode(), durable=True)
        make_directories(site.path / JOBS, 0o700)
        if not os.path.lexists(site.path / LEASE):
            LeaseFile(site.path).write(Lease())
    except OSError as error:
        raise InputError(f"the node's directory {folder} cannot be written: {error.strerror}") from error
    return site


def load_site(path: Path) -> NodeSite:
    """The node whose own directory that is.  OSError, ValueError: it is none."""
    about = json.loads(read_regular(path.parent / SETTINGS, 1 << 16))  # paths in it may hold any byte
    return replace(build(NodeSite, about), path=path)


def guard(site: NodeSite, ended: threading.Event) -> None:
    """Keep the root of a node running, and watch the lease, until `ended`, or until the node was told to end."""
    over, watcher = threading.Event(), Watcher(site.path, GUARD_SLACK_S)

    def watch() -> None:
        while not over.wait(min(watcher.look(), GUARD_LOOK_S)):
            pass

    threading.Thread(target=watch, daemon=True).start()  # for a root may take its time to come up
    try:
        _keep_root(site, ended)
    finally:
        over.set()


def _keep_root(site: NodeSite, ended: threading.Event) -> None:
    printed = set[str]()
    while not ended.is_set():
        lines = set[str]()
        if not locks.is_held(site.path / "root.lock"):
            if os.path.lexists(site.path / LEFT):
                say("stopped by `sessionrun cluster stop`")
                return
            if (reason := start_root(site)) is not None:
                lines.add(f"node {site.name}: its root does not start: {reason}")
        with suppress(OSError):
            fault, address = read_regular(site.path / CONTACT, 1 << 16).decode(), site.cluster.address
            lines.add(f"no contact with the cluster at {address}: {fault}" if fault else f"serves {address}")
        for line in sorted(lines - printed):
            say(line)
        printed = lines
        ended.wait(GUARD_LOOK_S)


def start_root(site: NodeSite) -> str | None:
    """Start the node's root, unless there is one; the reason if it did not come up.

    By a process of its own: the caller may have threads, and a process that has them must not fork.
    """
    argv = module_command(__name__, str(site.path))
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    except OSError as error:  # there is no room for a process now
        return error.strerror or str(error)
    if done.returncode == 0:
        return None
    return (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]


def main() -> None:
    """Start the root of the node in ``argv[1]``, detached; exit code 1 and the reason if it does not come up."""
    from sessionrun.session import launch
    from sessionrun.store.session import SessionDir

    directory = Path(sys.argv[1])
    try:
        lock_fd = locks.hold(directory / "root.lock", timeout_s=launch.LOCK_TIMEOUT_S)
        if lock_fd is not None:
            launch.start_detached(SessionDir(directory), lock_fd, new=False, program="sessionrun.cluster.node")
    except (StoreError, OSError) as error:
        sys.exit(str(error))
