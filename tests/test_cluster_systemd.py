"""What ends the jobs of a node whose watchers are stopped: `cluster node`; if that is stopped, too, systemd."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final
from uuid import uuid4

import psutil
import pytest
from clusters import RealCluster, end_all, marker_of, real_cluster
from conftest import Command, eventually

from sessionrun.runtime.node.watchdog import WATCHDOG_S

MANAGERS: Final = ("/usr/lib/systemd/systemd", "/lib/systemd/systemd")
GROUPS: Final = Path("/sys/fs/cgroup")
BEGIN: Final = """
for place in "$@"; do echo $$ > "$place/cgroup.procs" || exit 9; done
exec unshare --mount --propagation private sh -c '
mount -t tmpfs none /run && mkdir -p /run/systemd/system && exec "$MANAGER" --user --unit=node.service'
"""
"""A manager of systemd, in control groups of its own; it wants to see that the machine was begun by systemd."""


class Manager:
    """systemd's manager of one user, which has one service to run."""

    def __init__(self, place: Path, unit: str) -> None:
        name = f"sessionrun-test-{uuid4().hex[:12]}"
        tops = [top for top in (GROUPS / "systemd", GROUPS / "unified") if (top / "cgroup.procs").exists()]
        self.groups = [top / name for top in tops or [GROUPS]]
        units = place / "config" / "systemd" / "user"
        units.mkdir(parents=True)
        (units / "node.service").write_text(unit)
        (place / "run").mkdir(mode=0o700)
        self._log = place / "manager.log"
        self._place = place

    def start(self) -> None:
        """Start it, or say why that cannot be."""
        program = next((path for path in MANAGERS if os.path.exists(path)), None)
        if program is None or os.geteuid() != 0 or shutil.which("unshare") is None:
            pytest.skip("needs root, systemd and unshare(1)")
        try:
            for group in self.groups:
                group.mkdir()
        except OSError as error:
            pytest.skip(f"no control groups can be made here: {error}")
        dirs = {"XDG_RUNTIME_DIR": str(self._place / "run"), "XDG_CONFIG_HOME": str(self._place / "config")}
        env = {**os.environ, **dirs, "HOME": str(self._place), "MANAGER": program, "SYSTEMD_LOG_TARGET": "console"}
        argv = ["sh", "-c", BEGIN, "sh", *map(str, self.groups)]
        with open(self._log, "wb") as log:
            self.process = subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def find(self) -> list[psutil.Process]:
        """All processes below it, and itself."""
        found = []
        for path in self.groups[0].rglob("cgroup.procs"):
            with suppress(OSError):
                found += [int(word) for word in path.read_text().split()]
        processes = []
        for pid in found:
            with suppress(psutil.Error):
                processes.append(psutil.Process(pid))
        return processes

    def close(self) -> None:
        """End all of it, and take its groups away."""
        if hasattr(self, "process"):
            self.process.kill()
            self.process.wait()
        end_all(self.find)
        for group in self.groups:
            for path in sorted([group, *group.rglob("*")], reverse=True):
                if path.is_dir():
                    eventually(partial(_is_removed, path))


def _is_removed(group: Path) -> bool:
    with suppress(OSError):
        group.rmdir()
    return not group.exists()


@contextmanager
def managed(cluster: RealCluster, place: Path) -> Iterator[Manager]:
    """A manager that runs the unit which `cluster node --systemd` prints, with a shorter watchdog."""
    words = ("cluster", "node", cluster.address, "--name", "n0", "--slots", "2", "--systemd")
    unit = cluster.command(*words, env=cluster.env).stdout
    assert f"WatchdogSec={WATCHDOG_S}\n" in unit
    place.mkdir()
    manager = Manager(place, unit.replace(f"WatchdogSec={WATCHDOG_S}\n", "WatchdogSec=20\n"))
    try:
        manager.start()
        eventually(lambda: manager.process.poll() is not None or has_node(cluster))
        if manager.process.poll() is not None:
            pytest.skip(f"systemd does not run here: {(place / 'manager.log').read_text().strip()}")
        yield manager
    finally:
        manager.close()


def has_node(cluster: RealCluster) -> bool:
    return any(node["lives"] for node in cluster.show().get("nodes", ()))


def start_stubborn(cluster: RealCluster) -> tuple[str, list[psutil.Process]]:
    """A session whose one job ignores TERM, and the processes of that job."""
    plan = [{"id": "a", "prompt": "trap '' TERM; echo up; while :; do sleep 1; done"}]
    session_id = cluster.command.start(plan, "--cluster", cluster.address)
    output = cluster.command.directory(session_id) / "task-a.txt"
    eventually(lambda: output.is_file() and output.read_text() == "up\n")
    jobs = find_jobs(cluster)
    assert jobs
    return session_id, jobs


def find_jobs(cluster: RealCluster) -> list[psutil.Process]:
    node_id = cluster.site("n0").name.removeprefix("node-")
    return [one for one in psutil.process_iter() if marker_of(one).startswith(f"{node_id}/")]


def check_lost(cluster: RealCluster, session_id: str) -> None:
    """The session calls the task lost, and nothing of it runs."""
    ended = cluster.command.wait(session_id)
    assert (ended["outcome"], [task["outcome"] for task in ended["tasks"]]) == ("failed", ["lost"])
    assert find_jobs(cluster) == []


@pytest.mark.slow
def test_with_all_watchers_stopped_systemd_ends_the_jobs_and_starts_the_node_again(
    sessionrun: Command, tmp_path: Path
) -> None:
    with real_cluster(sessionrun, nodes=0) as cluster, managed(cluster, tmp_path / "manager") as manager:
        session_id, jobs = start_stubborn(cluster)
        (loop,) = (
            one for one in manager.find() if "--systemd" not in one.cmdline() and "cluster" in one.cmdline()
        )
        assert "NOTIFY_SOCKET" in loop.environ()
        assert not {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"} & set(jobs[0].environ())
        watchers = [one for one in manager.find() if one not in jobs and one.pid != manager.process.pid]
        watchers = [one for one in watchers if "systemd" not in one.name() and "(sd-pam)" not in one.name()]
        assert len(watchers) >= 5  # the loop, the worker, root, keeper and link
        for process in watchers:
            process.send_signal(signal.SIGSTOP)
        eventually(lambda: not find_jobs(cluster))
        eventually(lambda: not any(one.is_running() for one in watchers))
        check_lost(cluster, session_id)
        eventually(lambda: has_node(cluster))
        again = cluster.command.start([{"id": "b", "prompt": "true"}], "--cluster", cluster.address)
        assert cluster.command.wait(again)["outcome"] == "succeeded"


@pytest.mark.slow
def test_with_three_watchers_stopped_the_fourth_ends_the_jobs_with_the_lease(sessionrun: Command) -> None:
    with real_cluster(sessionrun, nodes=1, timers="tick=0.3,lease=6,grace=1,margin=3") as cluster:
        session_id, _ = start_stubborn(cluster)
        chain = [one for which in ("root", "keeper", "link") for one in cluster.find_chain("n0", which)]
        watchers = [*chain, *cluster.find("dask_worker")]
        assert len(watchers) == 4
        for process in watchers:
            process.send_signal(signal.SIGSTOP)
        eventually(lambda: not find_jobs(cluster))
        check_lost(cluster, session_id)
        for process in watchers:
            with suppress(psutil.Error):
                process.send_signal(signal.SIGCONT)
