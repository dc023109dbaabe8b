"""A node of a cluster: its real processes, with the scheduler in the test."""

from __future__ import annotations

import asyncio
import base64
import errno
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import psutil
import pytest
from calls import Calls, each_call, needs_calls
from clusters import PATIENT, SHORT, SID, NodeUnderTest, make_order, real_cluster
from conftest import Command, eventually, is_gone, slow

from sessionrun.cluster import machines, node_directory
from sessionrun.cluster.ends import Timers
from sessionrun.cluster.messages import KILL, SESSION_TOKEN, key_of
from sessionrun.cluster.node_directory import guard, load_site, open_node, start_root
from sessionrun.cluster.node_jobs import JobFolders
from sessionrun.keeper.lease import Watcher
from sessionrun.model.asked import Cluster
from sessionrun.model.errors import InputError
from sessionrun.session.executor import Exit
from sessionrun.store import processes

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")


@pytest.fixture
def nodes(own_place: Path) -> Iterator[list[NodeUnderTest]]:
    """Nodes that a test makes; they are ended with it."""
    made: list[NodeUnderTest] = []
    yield made
    for node in made:
        node.close()


def begin(nodes: list[NodeUnderTest], place: Path, **options: object) -> NodeUnderTest:
    node = NodeUnderTest(place / "nodes", **options)  # type: ignore[arg-type]
    nodes.append(node)
    return node


@pytest.fixture
def node(nodes: list[NodeUnderTest], own_place: Path) -> NodeUnderTest:
    """One of these, as usual."""
    return begin(nodes, own_place)


def stubborn(seconds: int = 300) -> tuple[str, ...]:
    """A job that ignores TERM, with a child in a session of its own that does, too."""
    trap = f"trap '' TERM; echo up; while :; do sleep {seconds}; done"
    return "/bin/sh", "-c", f'setsid sh -c "{trap}" & {trap}'


def test_output_and_end_come_back_and_the_node_forgets_the_job(node: NodeUnderTest) -> None:
    file = base64.b64encode(b"brought\n").decode()
    folder = f"{SESSION_TOKEN}/jobs/t"
    script = f'cat; cat "$F"; echo made > {folder}/made; : > {folder}/empty; echo oops >&2; exit 3'
    job = node.submit(
        "t",
        "/bin/sh",
        "-c",
        script,
        env={"F": f"{folder}/file"},
        stdin=f"{folder}/file",
        files={"jobs/t/file": file},
    )
    node.pump(lambda: job in node.ends and job not in node.head.opened)
    end = node.ends[job]
    assert (end["kind"], end["wait_status"]) == ("exit", 3 << 8)
    assert end["files"] == {"task-t.txt": 16, "task-t.err": 5, "jobs/t/made": 5, "jobs/t/empty": 0}
    assert node.text(job) == b"brought\nbrought\n" and node.text(job, "err") == b"oops\n"
    node.pump(lambda: node.ledger_words(job) == "CTSXZA")
    eventually(lambda: not list((node.site.path / "jobs").iterdir()))


@pytest.mark.parametrize("victim", ["link", *slow("keeper", "root")])
def test_no_death_of_the_chain_costs_a_job_or_its_code(victim: str, node: NodeUnderTest) -> None:
    job = node.submit("t", "/bin/sh", "-c", "echo up; while [ ! -e go ]; do sleep 0.05; done; echo down; exit 7")
    node.pump(lambda: node.text(job) == b"up\n")
    node.find(victim).kill()
    (node.site.path.parent / "go").touch()
    node.pump(lambda: job in node.ends)
    assert (node.ends[job]["kind"], node.ends[job]["wait_status"]) == ("exit", 7 << 8)
    node.pump(lambda: node.text(job) == b"up\ndown\n")


def test_an_end_is_told_until_the_session_has_it(node: NodeUnderTest) -> None:
    node.drops = False
    job = node.submit("t", "/bin/sh", "-c", "echo hello")
    node.pump(lambda: job in node.ends)
    node.ends.clear()
    node.find("link").kill()
    node.restart_scheduler("e2", node.permits.timers)
    node._call()
    node._call()
    node.drops = True
    node.pump(lambda: node.ledger_words(job) == "CTSXZA")
    assert node.ends[job]["wait_status"] == 0


@pytest.mark.parametrize("who", ["keeper", *slow("root")])
def test_with_the_lease_its_jobs_end_whatever_they_ignore(who: str, node: NodeUnderTest) -> None:
    """By the keeper or, where that is stopped, by its root, with the keeper."""
    job = node.submit("t", *stubborn())
    node.pump(lambda: node.text(job) == b"up\nup\n")
    running, keeper = node.jobs(job), node.find("keeper")
    assert len(running) >= 2
    node.shorten_lease()
    if who == "root":
        keeper.suspend()
    eventually(lambda: all(map(is_gone, running)) and not node.jobs(job))  # no tick is answered any more
    assert who == "keeper" or eventually(lambda: not keeper.is_running())
    node.pump(lambda: job in node.ends)
    assert node.ends[job]["kind"] == "lease" and node.ledger_words(job).startswith("CTSO")


def test_under_a_lease_that_is_nearly_over_nothing_starts(node: NodeUnderTest) -> None:
    node.permits.timers = replace(PATIENT, grace=PATIENT.lease)
    job = node.submit("a", "/bin/true")
    node.pump(lambda: job in node.ends)
    assert (node.ends[job]["kind"], node.ends[job]["verdict"]) == ("lost", "void")
    node.pump(lambda: node.ledger_words(job) == "CA")


def test_a_node_counts_the_boots_of_its_machine(own_place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = open_node(own_place, "n", 1, Cluster("tls://a:1"))
    assert open_node(own_place, "n", 2, Cluster("tls://b:1")).boots == first.boots == 1
    monkeypatch.setattr(processes, "boot_id", lambda: "another")
    again = open_node(own_place, "n", 1, Cluster("tls://b:1", "/certs-\udcff/ca.pem"))
    assert (again.node_id, again.boots) == (first.node_id, 2) and load_site(again.path) == again
    settings = own_place / "n" / "node.json"
    settings.write_bytes(settings.read_bytes().replace(b'"rescue_s": 300.0', b'"rescue_s": -1'))
    with pytest.raises(ValueError, match="rescue_s"):
        load_site(again.path)


def test_a_lease_is_watched_while_a_root_does_not_come_up(
    own_place: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    site = open_node(own_place, "n", 1, Cluster("tls://a:1"))
    looks, ended = list[float](), threading.Event()

    def look_on(_: object) -> float:
        looks.append(0.0)
        return 0.01

    def wait_for_looks(_: object) -> str:
        before = len(looks)
        eventually(lambda: len(looks) > before + 2)
        ended.set()
        return "it took too long"

    monkeypatch.setattr(Watcher, "look", look_on)
    monkeypatch.setattr(node_directory, "start_root", wait_for_looks)
    guard(site, ended)
    assert capfd.readouterr().err == "node n: its root does not start: it took too long\n"


def test_without_room_for_a_process_a_guard_goes_on(own_place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = open_node(own_place, "n", 1, Cluster("tls://a:1"))

    def refuse(*_: object, **__: object) -> None:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(subprocess, "run", refuse)
    assert start_root(site) == os.strerror(errno.EAGAIN)


def test_a_worker_of_dask_tells_its_node_where_its_files_are_from_anywhere(
    own_place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(own_place)
    monkeypatch.setenv("SESSIONRUN_NODES", str(own_place / "nodes"))
    monkeypatch.setattr(machines, "_THREADS", [])
    monkeypatch.setattr(machines, "guard", lambda *_: None)
    tls = SimpleNamespace(tls_ca_file="ca.pem", tls_worker_cert="-----BEGIN\n", tls_worker_key=None)
    size = SimpleNamespace(total_resources={}, nthreads=1)
    scheduler = SimpleNamespace(address="tls://a:1")
    asyncio.run(machines.join(SimpleNamespace(name="w", state=size, security=tls, scheduler=scheduler)))
    (path,) = (own_place / "nodes").glob("*/node-*")
    assert load_site(path).cluster == Cluster("tls://a:1", str(own_place / "ca.pem"), "-----BEGIN\n")
    monkeypatch.setattr(machines, "_THREADS", [])
    many = SimpleNamespace(total_resources={machines.SLOT: 10_001}, nthreads=1)
    with pytest.raises(InputError, match="10000"):
        asyncio.run(machines.join(SimpleNamespace(name="v", state=many, security=tls, scheduler=scheduler)))
    assert len([*(own_place / "nodes").iterdir()]) == 1


def test_an_order_that_comes_again_starts_nothing(node: NodeUnderTest, own_place: Path) -> None:
    """Neither while its job runs, for which the link is enough, nor when the link has forgotten it."""
    ran = own_place / "ran"
    argv = "/bin/sh", "-c", f"echo x >> {ran}; while [ ! -e {own_place}/go ]; do sleep 0.05; done"
    job = node.submit("t", *argv)
    permit = node.permits.sessions[SID].permits[job]
    node.pump(lambda: permit.begun and ran.exists())
    permit.state = "offered"
    node.pump(lambda: permit.state == "delivered")
    (own_place / "go").touch()
    node.pump(lambda: node.ledger_words(job) == "CTSXZA")
    assert node.ends.pop(job)["kind"] == "exit"
    assert node.submit("t", *argv) == job
    node.pump(lambda: job in node.ends)
    assert (node.ends[job]["kind"], node.ends[job]["verdict"]) == ("lost", "lost")
    node.pump(lambda: node.ledger_words(job).count("A") == 2)
    assert ran.read_text() == "x\n" and node.ledger_words(job) == "CTSXZAA"


def test_a_refused_order_never_runs_writes_nothing_elsewhere_and_sends_nothing_back(
    node: NodeUnderTest, own_place: Path
) -> None:
    brought = {"jobs/t/file": base64.b64encode(b"brought\n").decode()}
    damaged: list[dict[str, object]] = [
        {"files": {"../../evil": ""}},
        {"files": {"/etc/evil": ""}},
        {"stdout": "../out"},
        {"argv": None},
        {"files": 5},
        {"files": brought, "env": {"KEY": "{env:NOT_SET_ANYWHERE}"}},
        {},  # it cannot be noted
    ]
    (node.site.path / "jobs" / f"{SID},t6,1,1,work,1.json").mkdir()
    for number, order in enumerate(damaged):
        job = node.submit(f"t{number}", "/bin/true", **order)
        node.pump(lambda job=job: job in node.ends)  # type: ignore[misc]
        end = node.ends[job]
        if "env" in order:
            assert (end["kind"], end["wait_status"]) == ("exit", None) and "NOT_SET_ANYWHERE" in end["detail"]
        else:
            assert (end["kind"], end["verdict"]) == ("lost", "void") and "order cannot be used" in end["reason"]
        assert node.ledger_words(job) == "" and end["files"] == {}
    assert "evil" not in {name for _, folders, files in os.walk(own_place) for name in (*folders, *files)}
    other = node.submit("u", "/bin/sh", "-c", "echo ran")
    node.pump(lambda: other in node.ends and node.text(other) == b"ran\n")


def test_a_job_that_comes_again_before_its_folder_is_removed_has_all_of_its_files(own_place: Path) -> None:
    (own_place / "jobs").mkdir()
    folders = JobFolders(own_place / "jobs")
    files = {f"jobs/t/{number}/file": base64.b64encode(b"%d" % number).decode() for number in range(20)}
    order = make_order("t", "/bin/true", files=files)
    names = [f"{SID}/t/{attempt}/1/work/1" for attempt in range(6)]
    for name in names[:5]:
        folders.forget(folders.place(name, order)[0])
    again, _ = folders.place(names[4], order)  # the thread that removes has the others to do first
    last, _ = folders.place(names[5], order)
    folders.forget(last)
    eventually(lambda: not last.folder.exists())
    found = {path.parent.name: path.read_text() for path in again.folder.rglob("file")}
    assert found == {str(number): str(number) for number in range(20)}


def test_a_new_link_finds_the_jobs_whose_files_are_whole_and_nothing_else(own_place: Path) -> None:
    """Whatever a job did to its folder.  A link may have been killed before it had noted one, or while it did."""
    jobs = own_place / "jobs"
    jobs.mkdir()
    folders, names = JobFolders(jobs), [f"{SID}/{task}/1/1/work/1" for task in "abcde"]
    placed = [
        folders.place(name, make_order(name.split("/")[1], "/bin/true", rescue=rescue))[0]
        for name, rescue in zip(names, (None, "jobs/b", None, None, None), strict=True)
    ]
    kept = [job.folder.with_name(f"{job.folder.name}.json") for job in placed]
    for number in (1, 2):
        (placed[1].folder / "jobs" / "b" / f"rescue-00000{number}-{number:040x}.pack").mkdir(parents=True)
    shutil.rmtree(placed[0].folder)
    kept[2].unlink()
    kept[3].write_bytes(kept[3].read_bytes()[:20])
    folders.forget(placed[4])
    eventually(lambda: not list(jobs.glob("gone-*")))
    assert not placed[4].folder.exists()
    (jobs / f"{placed[1].folder.name}.rescue").mkdir()
    found = list(JobFolders(jobs).load())
    assert [job.job for job in found] == names[:2]
    assert found[0].outputs == ["task-a.txt", "task-a.err"]
    assert sorted(path.name for path in jobs.iterdir()) == [kept[0].name, placed[1].folder.name, kept[1].name]


def test_a_node_whose_slots_are_all_in_use_hears_of_a_stop_and_started_again_has_those_that_it_is_given_then(
    nodes: list[NodeUnderTest], own_place: Path
) -> None:
    node = begin(nodes, own_place, slots=1)
    job = node.submit("t", "/bin/sh", "-c", "echo up; sleep 300")
    node.pump(lambda: node.text(job) == b"up\n")
    open_node(own_place / "nodes", "n", 2, node.cluster)
    node.pump(lambda: node.permits.nodes[node.site.node_id].about["slots"] == 2)
    other = node.submit("u", "/bin/sh", "-c", "echo up; sleep 300")
    node.pump(lambda: node.text(other) == b"up\n")
    assert job not in node.ends
    (own_place / "nodes" / "n" / "node.json").unlink()  # a link that goes on needs it no more
    for each in (job, other):
        node.head.stop(each, KILL)
        node.pump(partial(node.ends.__contains__, each))
        assert node.ends[each]["wait_status"] == signal.SIGKILL


@pytest.mark.slow
def test_much_output_of_a_job_that_goes_on_does_not_wait_from_tick_to_tick(
    nodes: list[NodeUnderTest], own_place: Path
) -> None:
    """A tick has room for a part of it; in the time that is given here, few ticks without news are sent."""
    node = begin(nodes, own_place, timers=Timers(tick=5.0))
    job = node.submit("t", "/bin/sh", "-c", "head -c 40000000 /dev/zero; sleep 300")
    node.pump(lambda: len(node.text(job)) == 40_000_000, timeout_s=60.0)
    assert job not in node.ends


def test_names_and_depths_of_all_kinds_cost_a_node_nothing(
    own_place: Path, make_deep: Callable[[Path, int], None]
) -> None:
    """A job may leave what no message can hold, and directories below each other beyond the depth of our stack."""
    (own_place / "jobs").mkdir()
    folders = JobFolders(own_place / "jobs")
    job, _ = folders.place(f"{SID}/t/1/1/work/1", make_order("t", "/bin/true"))
    folder = job.folder / "jobs" / "t"
    folder.mkdir(parents=True)
    (folder / os.fsdecode(b"caf\xe9")).write_text("1")
    (folder / "plain").write_text("22")
    make_deep(folder, 1500)
    job.finish(Exit(key_of(job.job), 0))
    assert job.end is not None and job.end["files"] == {"jobs/t/plain": 2}
    assert orjson.loads(orjson.dumps(job.end)) == job.end
    folders.forget(job)
    eventually(lambda: not job.folder.exists())


# --- Processes of a cluster that die or stop at an exact moment: at a job's start, or anywhere in a sessi ---

AROUND_A_START = (
    *(f"write:1:{do}:*/ledger: {record} " for record in "CTSXZ" for do in ("half", "after")),
    *("sync:1:kill:*/ledger", "spawn:2:kill", "spawn:2:after"),
)
"""What a keeper does when it starts its first job; the first that it spawns is its supervisor."""


@needs_calls
@pytest.mark.slow
def test_what_a_keeper_claimed_and_did_not_spawn_is_lost_and_never_starts(
    nodes: list[NodeUnderTest], own_place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed at each step around a start.  What is said to have never run has not; nothing runs twice."""
    told = []
    for number, rule in enumerate(AROUND_A_START):
        calls, ran = Calls(own_place / "calls", f"keeper:{rule}"), own_place / f"ran-{number}"
        calls.watch(monkeypatch)
        node = begin(nodes, own_place / str(number))
        job = node.submit("t", "/bin/sh", "-c", f"echo x >> {ran}")
        node.pump(lambda job=job, node=node: job in node.ends)  # type: ignore[misc]
        end, starts = node.ends[job], ran.read_text() if ran.exists() else ""
        assert calls.has_hit() == [True] and starts in ("", "x\n"), rule
        if end["kind"] == "exit":
            assert starts == "x\n"
        else:
            assert end["verdict"] == "lost" or starts == ""
            told.append((end["verdict"], node.ledger_words(job)[:2]))
        node.close()
    assert {("void", "C"), ("lost", "CT")} <= set(told)


@needs_calls
@pytest.mark.slow
def test_a_keeper_that_is_stopped_before_a_spawn_beyond_its_lease_never_spawns(
    nodes: list[NodeUnderTest], own_place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has looked at the lease and goes to start the job: its root kills it there when the lease is over."""
    Calls(own_place / "calls", "keeper:spawn:2:stop").watch(monkeypatch)
    node, ran = begin(nodes, own_place / "node", timers=SHORT), own_place / "ran"
    keeper = node.find("keeper")
    job = node.submit("t", "/bin/sh", "-c", f"echo x >> {ran}")
    node.pump(lambda: keeper.status() == psutil.STATUS_STOPPED)
    assert node.ledger_words(job) == "CT" and not node.jobs(job)
    node.pump(lambda: job in node.ends or job in node.dead)
    eventually(lambda: not keeper.is_running())
    node.pump(lambda: job in node.ends)
    assert node.ends[job]["kind"] != "exit" and not ran.exists()


@needs_calls
@pytest.mark.slow
def test_a_supervisor_that_is_killed_at_any_step_runs_nothing_twice(
    sessionrun: Command, own_place: Path, monkeypatch: pytest.MonkeyPatch, say: Callable[[str], None]
) -> None:
    """Between journal and order, between end and the word that it may be forgotten, and everywhere else."""
    with real_cluster(sessionrun, nodes=1) as cluster:
        ran = own_place / "ran"

        def run(environ: Mapping[str, str]) -> Any:
            ran.unlink(missing_ok=True)
            with monkeypatch.context() as patch:
                for name, value in environ.items():
                    if name != "CALLS_ROLE":  # the supervisor shows its own, and the launcher is not to have it
                        patch.setenv(name, value)
                session_id = sessionrun.start(
                    [{"id": "a", "prompt": f"echo x >> {ran}"}], "--cluster", cluster.address
                )
                return sessionrun.wait(session_id)["tasks"][0]

        for at, task in each_call(run, own_place / "calls", "supervisor", kind="step"):
            assert (task["outcome"], task["attempt"], ran.read_text()) == ("succeeded", 1, "x\n"), at
        say(f"a supervisor killed at each of {at} steps")
        assert at > 10
