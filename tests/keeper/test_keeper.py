"""A keeper in a process of its own, driven through the executor as the supervisor does; nothing is simulated."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import psutil
import pytest
from conftest import eventually, is_gone, slow

from sessionrun.keeper import loop
from sessionrun.keeper.adoption import Adopted, RootCodes
from sessionrun.keeper.children import Children
from sessionrun.keeper.leftovers import Deaths
from sessionrun.keeper.loop import LONG_LIFE_S, Keeper, SupervisorProcess
from sessionrun.keeper.wire import EXIT_NO_ROOM, EXIT_TAKEN, PACKAGE_ROOT, Connection, JobOrder, pack
from sessionrun.model.events import HoldPlaced, JobLost, JobStarted
from sessionrun.model.keys import JobKey
from sessionrun.model.spec import Job
from sessionrun.session.executor import Exit, LocalExecutor, name_left, read_frame
from sessionrun.store import logs
from sessionrun.store.logs import AppendLog, fold_ledger, make_record, read_log
from sessionrun.store.processes import Identity, boot_id, pid_namespace, raw_status, scan, start_time

SESSION = str(uuid.uuid4())
"""Not the same in two runs of these tests at once: processes are found by it."""
PATIENCE_S = 60.0


@dataclass
class Bench:
    """An executor in a directory of its own."""

    place: Path
    executor: LocalExecutor
    keeper: int
    started: dict[str, JobStarted] = field(default_factory=dict)
    early: list[Exit] = field(default_factory=list)

    def job(self, script: str, name: str = "a", **values: Any) -> Job:
        """A job that runs a shell script."""
        job = Job(
            key=JobKey(name, 1, 1, "work", 1),
            argv=("/bin/sh", "-c", script),
            cwd=str(self.place),
            stdout=str(self.place / f"{name}.out"),
            stderr=str(self.place / f"{name}.err"),
            stop_grace_s=0.3,
        )
        return replace(job, **values)

    def start(self, *jobs: Job) -> list[Any]:
        """Start jobs; what became of each, in the order told.  An end that comes early is for `wait`."""
        heard = self.hear(
            lambda heard: len({one.key for one in heard if not isinstance(one, HoldPlaced)}) >= len(jobs),
            self.executor.start(jobs),
        )
        ended = [one for one in heard if isinstance(one, Exit) and one.errno is None]
        self.early += ended
        self.started |= {one.key.task: one for one in heard if isinstance(one, JobStarted)}
        return [one for one in heard if one not in ended]

    def wait(self, count: int = 1) -> dict[str, Exit]:
        """Wait for that many ends."""
        early, self.early = self.early, []
        heard = self.hear(lambda heard: len(heard) >= count, early)
        assert all(isinstance(one, Exit) for one in heard)
        ends = {one.key.task: one for one in heard}
        assert len(ends) == len(heard)
        return ends

    def hear(self, is_all: Callable[[list[Any]], bool], heard: Iterable[Any] = ()) -> list[Any]:
        """Wait until all is told; what was told, with what was heard before."""
        told, deadline = list(heard), time.monotonic() + PATIENCE_S
        while not is_all(told):
            assert time.monotonic() < deadline, told
            told += self.executor.wait(1.0)
        return told

    def run(self, script: str, **values: Any) -> Exit:
        """Run one job to its end."""
        notices = self.start(self.job(script, **values))
        assert isinstance(notices[0], JobStarted), notices
        return self.wait()["a"]

    def output(self, name: str = "a") -> str:
        return (self.place / f"{name}.out").read_text()

    def pid_in(self, name: str) -> int:
        """The pid that a script wrote into a file."""
        path = self.place / name
        return int(eventually(lambda: path.exists() and path.read_text().endswith("\n") and path.read_text()))


class GivenSupervisor(SupervisorProcess):
    """The test is the supervisor: it is there already, and nobody starts it."""

    def __init__(self, end: socket.socket) -> None:
        super().__init__([], Path("/none"))
        self._connection = Connection(end)

    def is_due(self) -> bool:
        return False


def keep(session: Path, supervisor: SupervisorProcess, env: dict[bytes, bytes]) -> NoReturn:
    """In a forked process: be the keeper of a session."""
    code = 3
    try:
        os.environb.clear()
        os.environb.update(env)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        codes_read, codes_write = os.pipe()
        os.write(codes_write, b"end\n")
        code = Keeper(session, codes_read, supervisor).run(-1)
    finally:
        os._exit(code)


def fork_keeper(session: Path) -> tuple[socket.socket, int]:
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        ours.close()
        keep(session, GivenSupervisor(theirs), dict(os.environb))
    theirs.close()
    return ours, pid


@contextmanager
def make_bench(tmp_path: Path) -> Iterator[Bench]:
    """A keeper that inherits what this process has and ignores."""
    directory = tmp_path / f"session-{SESSION}"
    directory.mkdir()
    end, keeper = fork_keeper(directory)
    one = Bench(directory, LocalExecutor(end), keeper)
    yield one
    one.executor.close()
    for process in psutil.process_iter():
        try:
            if SESSION in process.environ().get("SESSIONRUN_JOB", ""):
                process.kill()
        except psutil.Error:
            continue
    assert os.waitpid(one.keeper, 0)[1] == 0


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with make_bench(tmp_path) as one:
        yield one


# --- ends ---


SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGPIPE, signal.SIGALRM)


@pytest.mark.parametrize("status", [*(code << 8 for code in (0, 1, 7, 126, 127, 255)), *map(int, SIGNALS)])
def test_exit_codes_and_deaths_by_signal_are_kept(bench: Bench, status: int) -> None:
    ended = bench.run(f"exit {status >> 8}" if status not in SIGNALS else f"kill -{status} $$")
    assert (ended.wait_status, ended.errno, ended.detail) == (status, None, None)
    assert ended.cpu_s is not None


def test_the_core_dump_bit_is_kept() -> None:
    """As wait(2) has it; few machines let a test dump core."""
    status = raw_status(SimpleNamespace(si_code=os.CLD_DUMPED, si_status=int(signal.SIGQUIT)))
    assert os.WCOREDUMP(status) and os.WTERMSIG(status) == signal.SIGQUIT


def test_the_ledger_has_it_all(bench: Bench) -> None:
    ended = bench.run("exit 3")
    ledger = fold_ledger(read_log(bench.place / "ledger").payloads)
    job = ledger.jobs["a/1/1/work/1"]
    assert (job.tried, job.wait_status, job.errno) == (True, 3 << 8, None)
    assert (job.pid, job.started) == (bench.started["a"].pid, bench.started["a"].started)
    assert ledger.boot_id
    kinds = [payload[:1] for payload in read_log(bench.place / "ledger").payloads]
    assert kinds == [b"K", b"C", b"T", b"S", b"X", b"Z"]
    assert ended.ledger == (bench.place / "ledger").stat().st_size


def test_many_at_once(bench: Bench) -> None:
    jobs = [bench.job(f"echo out {n}; exit {n % 7}", f"t{n}") for n in range(100)]
    notices = bench.start(*jobs)
    assert [notice.key for notice in notices] == [job.key for job in jobs]
    ends = bench.wait(100)
    assert {name: ended.wait_status for name, ended in ends.items()} == {f"t{n}": n % 7 << 8 for n in range(100)}
    assert all(bench.output(f"t{n}") == f"out {n}\n" for n in range(100))
    assert len({notice.pid for notice in notices}) == 100


def test_the_wait_ends_when_the_time_is_up_or_somebody_rings(bench: Bench) -> None:
    bench.start(bench.job("sleep 600"))
    assert bench.executor.wait(0.01) == []
    read_fd, write_fd = os.pipe()
    os.write(write_fd, b".")
    assert bench.executor.wait(None, read_fd) == []
    assert bench.executor.wait(1e8, read_fd) == []  # the longest timeout that a plan may name
    assert bench.executor.wait(1e300, read_fd) == []
    os.close(read_fd)
    os.close(write_fd)


# --- what cannot be started ---


@pytest.mark.parametrize(
    ("values", "number", "said"),
    [
        ({"argv": ("/no/such/program",)}, errno.ENOENT, "/no/such/program"),
        ({"argv": ("/etc/passwd",)}, errno.EACCES, "/etc/passwd"),
        ({"argv": ("/tmp",)}, errno.EACCES, None),
        ({"cwd": "/no/such/directory"}, errno.ENOENT, "/no/such/directory"),
        ({"cwd": "/etc/passwd"}, errno.ENOTDIR, "/etc/passwd"),
        ({"stdout": "/no/such/directory/out"}, errno.ENOENT, None),
        ({"stdout": "/tmp"}, errno.EISDIR, None),
        ({"stdin": "/no/such/prompt"}, errno.ENOENT, None),
        ({"argv": ("/bin/sh", "-c", "x" * 300_000)}, errno.E2BIG, None),
        ({"argv": ("/bin/sh", "nul\0byte")}, errno.EINVAL, None),
        ({"env": {"A=B": "c"}}, errno.EINVAL, None),
    ],
    ids=range(11),
)
def test_what_cannot_be_started(bench: Bench, values: dict[str, Any], number: int, said: str | None) -> None:
    (ended,) = bench.start(bench.job("true", **values))
    assert isinstance(ended, Exit)
    assert (ended.wait_status, ended.errno) == (None, number)
    assert ended.detail
    assert said is None or said in ended.detail
    assert fold_ledger(read_log(bench.place / "ledger").payloads).jobs["a/1/1/work/1"].errno == number
    bench.start(bench.job("exit 5", "b"))
    assert bench.wait()["b"].wait_status == 5 << 8


@pytest.mark.parametrize("small_disk", ["1m,nr_inodes=2"], indirect=True)
def test_a_disk_without_room_for_the_outputs_is_a_hold(bench: Bench, small_disk: Path) -> None:
    (small_disk / "last").touch()
    hold, lost = bench.start(bench.job("true", stdout=str(small_disk / "out")))
    assert isinstance(hold, HoldPlaced)
    assert (lost.verdict, lost.counts) == ("void", False)


def test_a_planted_link_in_the_outputs_place_is_refused(bench: Bench) -> None:
    victim = bench.place / "victim"
    victim.write_text("precious")
    (bench.place / "a.out").symlink_to(victim)
    (ended,) = bench.start(bench.job("echo overwritten"))
    assert isinstance(ended, Exit)
    assert ended.errno == errno.ELOOP
    assert victim.read_text() == "precious"


# --- what a job gets ---


def test_what_it_is_given_and_what_not(bench: Bench) -> None:
    """No descriptor of ours, no standard input but its prompt, no PWD of the caller's; outputs are appended to."""
    (bench.place / "a.out").write_text("before\n")
    script = "cat; readlink /proc/self/fd/0; ps -o pid=,pgid=,sid= $$; echo $SESSIONRUN_JOB $ADDED; pwd; "
    script += "tr '\\0' '\\n' < /proc/$$/environ | grep ^PWD=; echo error >&2; exec ls /proc/self/fd"
    assert bench.run(script, env={"ADDED": "caf\xe9"}).wait_status == 0
    before, stdin, ids, *rest = bench.output().splitlines()
    assert (before, stdin, set(map(int, ids.split()))) == ("before", "/dev/null", {bench.started["a"].pid})
    place = str(bench.place)
    assert rest == [f"{SESSION}/a/1/1/work/1 caf\xe9", place, f"PWD={place}", "0", "1", "2", "3"]  # 3 is of ls
    assert (bench.place / "a.err").read_text() == "error\n"
    assert (bench.place / "a.err").stat().st_mode & 0o777 == 0o600
    prompt = bench.place / "prompt"
    prompt.write_text("the prompt\n")
    bench.start(bench.job("cat", "b", stdin=str(prompt)))
    bench.wait()
    assert bench.output("b") == "the prompt\n"


def test_signals_are_as_at_login(tmp_path: Path) -> None:
    """Python ignores SIGPIPE and a caller may ignore or block more; a job must not notice."""
    show = (
        "import signal as s;"
        "print(s.getsignal(2) is s.default_int_handler, int(s.getsignal(15)), s.pthread_sigmask(0, ()))"
    )
    old = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    try:
        with make_bench(tmp_path) as bench:
            bench.run("", argv=(sys.executable, "-S", "-c", show))
            assert bench.output() == "True 0 set()\n"
            bench.start(bench.job("(yes; echo $? >code) | head -n 1 >/dev/null", "b"))
            bench.wait()
            assert (bench.place / "code").read_text() == "141\n"
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])
        signal.signal(signal.SIGTERM, old)


# --- stopping ---


def stop_and_wait(bench: Bench) -> tuple[int, float]:
    """Stop the job; its wait status and how long that took.  What was stopped with it was not left behind."""
    began = time.monotonic()
    bench.executor.stop(JobKey("a", 1, 1, "work", 1))
    ended = bench.wait()["a"]
    assert ended.wait_status is not None
    assert ended.left == ()
    return ended.wait_status, time.monotonic() - began


STOPS: dict[str, tuple[float, int]] = {
    # a script -> how long it may take, and how it ends
    "trap 'exit 9' TERM; echo $$ >ready; while :; do sleep 0.05; done": (PATIENCE_S, 9 << 8),
    "trap 'exit 4' TERM; echo $$ >ready; kill -STOP $$; sleep 600": (PATIENCE_S, 4 << 8),
    "trap '' TERM; echo $$ >ready; while :; do sleep 0.05; done": (0.5, signal.SIGKILL),
}


@pytest.mark.parametrize("script", STOPS, ids=["TERM comes first", "also to one that is stopped", "KILL follows"])
def test_a_stop(bench: Bench, script: str) -> None:
    grace_s, ends = STOPS[script]
    bench.start(bench.job(script, stop_grace_s=grace_s))
    pid = bench.pid_in("ready")
    if "STOP" in script:
        eventually(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    status, took_s = stop_and_wait(bench)
    assert (status, took_s >= 0.5 or ends != signal.SIGKILL) == (ends, True)


def test_stopping_twice_or_nothing_does_no_harm(bench: Bench) -> None:
    bench.executor.stop(JobKey("none", 1, 1, "work", 1))
    bench.start(bench.job("exec sleep 600", stop_grace_s=PATIENCE_S))
    bench.executor.stop(JobKey("a", 1, 1, "work", 1))
    status, _ = stop_and_wait(bench)
    assert os.WTERMSIG(status) == signal.SIGTERM
    bench.executor.stop(JobKey("a", 1, 1, "work", 1))
    assert bench.executor.wait(0.0) == []


def test_a_stop_that_comes_with_its_start_is_not_lost(bench: Bench) -> None:
    """Both wait in the socket while the keeper is stopped or busy, and are read at once."""
    os.kill(bench.keeper, signal.SIGSTOP)
    eventually(lambda: psutil.Process(bench.keeper).status() == psutil.STATUS_STOPPED)
    bench.executor.start([bench.job("exec sleep 600", stop_grace_s=PATIENCE_S)])
    bench.executor.stop(JobKey("a", 1, 1, "work", 1))
    os.kill(bench.keeper, signal.SIGCONT)
    heard = bench.hear(lambda heard: any(isinstance(one, Exit) for one in heard))
    assert os.WTERMSIG(heard[-1].wait_status) == signal.SIGTERM


@pytest.mark.parametrize("now", [True, False], ids=["now", "with a grace"])
@pytest.mark.parametrize(
    ("count", "rounds"), [pytest.param(12, 1, id="once"), pytest.param(60, 20, id="often", marks=pytest.mark.slow)]
)
def test_nothing_of_a_job_goes_on_when_it_is_stopped(bench: Bench, count: int, rounds: int, now: bool) -> None:
    """A shell that sees its child end, or stop, would run its next command."""
    script = "set -m; " if shutil.which("bash") else ""
    script += 'sh -c "sleep 600 | (read line; echo end of file >>marks)"; echo next >>marks; exit 0'
    for number in range(rounds):
        keys = [JobKey(f"{name}", 1, 1, "work", 1) for name in range(number * count, (number + 1) * count)]
        argv = (shutil.which("bash") or "/bin/sh", "-c", script)
        bench.start(*(replace(bench.job("", key.task), argv=argv) for key in keys))
        for key in keys:
            bench.executor.stop(key, now=now)
        ends = bench.wait(count)
        assert not (bench.place / "marks").exists()
        assert {end.wait_status and os.WTERMSIG(end.wait_status) for end in ends.values()} <= {
            signal.SIGKILL if now else signal.SIGTERM
        }


TREES: dict[str, str] = {
    "a child": "sleep 600 & echo $! >child; wait",
    "a child in a session of its own": "setsid sh -c 'echo $$ >child; exec sleep 600' & wait",
    "a daemon": "(setsid sh -c 'echo $$ >child; exec sleep 600' </dev/null >/dev/null 2>&1 &); sleep 600",
    "a child that ignores TERM": "(trap '' TERM; exec setsid sh -c 'echo $$ >child; exec sleep 600') & wait",
    "a grandchild": "sh -c 'sh -c \"echo \\$\\$ >child; exec sleep 600\" & wait' & wait",
}


@pytest.mark.parametrize("name", TREES)
def test_the_whole_tree_is_stopped_and_no_other(bench: Bench, name: str) -> None:
    """Of another job neither its process, nor what that has left, which is a child of the keeper, too."""
    daemon = TREES["a daemon"].replace(">child", ">other")
    bench.start(bench.job(TREES[name]), bench.job(daemon, "b"))
    child, other = psutil.Process(bench.pid_in("child")), psutil.Process(bench.pid_in("other"))
    stop_and_wait(bench)
    own = psutil.Process(bench.started["b"].pid or 0)
    assert (is_gone(child), is_gone(other), is_gone(own)) == (True, False, False)


ORPHAN = "(sleep 600 & echo $! >pid); until grep -q sleep /proc/$(cat pid)/comm; do :; done;"
WALLS = ORPHAN.replace("sleep 600", "./bwrap -ISc 'import time; time.sleep(600)'").replace(
    "grep -q sleep", "grep -q bwrap"
)
LEFT: dict[str, tuple[str, list[tuple[str, str]]]] = {
    # what a job does -> what it left behind
    "nothing": ("sleep 0.01 & wait", []),
    "what ends by itself": ("sleep 0.1 &", []),
    "a server": ("sleep 600 &", [("sleep 600", "stopped by us")]),
    "a tree": ("sh -c 'sleep 600; :' &", [("sh -c sleep 600; :", "stopped by us")]),
    "a daemon": ("(setsid sleep 601 </dev/null >/dev/null 2>&1 &); sleep 0.2", [("sleep 601", "stopped by us")]),
    "many": ("for i in 1 2 3 4 5 6 7 8 9 10; do sleep 600 & done", [("sleep 600", "stopped by us")] * 8),
    "killed": (f"{ORPHAN} kill $(cat pid)", [("sleep", "killed by the agent")]),
    "killed by force": (f"{ORPHAN} kill -9 $(cat pid)", [("sleep", "killed by the agent")]),
    # the inner of two programs of walls is still there when the outer one, the job, has ended
    "walls": (f"ln -s {sys.executable} bwrap; {WALLS} kill -9 $(cat pid)", []),
    "its own child": ("sleep 600 & kill $!; wait", []),
    "what ignores TERM": (
        "sh -c 'trap \"\" TERM; sleep 600; :' &",
        [('sh -c trap "" TERM; sleep 600; :', "stopped by us")],
    ),
}


@pytest.mark.parametrize("name", [*list(LEFT)[:-1], *slow("what ignores TERM")])
def test_what_a_job_leaves_behind_is_recorded(bench: Bench, name: str) -> None:
    script, left = LEFT[name]
    ended = bench.run(script)
    assert [(one.command, one.how) for one in ended.left] == left
    assert not any(marker.startswith(f"{SESSION}/a/") for marker in scan().marked), "all of it is gone"
    job = fold_ledger(read_log(bench.place / "ledger").payloads).jobs[ended.key.text()]
    assert name_left(job.left) == ended.left, "the next supervisor reads it there"


def test_what_we_end_of_one_job_is_not_the_doing_of_another_job_s_agent(bench: Bench) -> None:
    stopped = bench.job(TREES["a daemon"], "b")
    bench.start(stopped)
    bench.pid_in("child")
    bench.executor.stop(stopped.key, now=True)
    assert bench.wait()["b"].left == ()
    assert bench.run("exit 0").left == ()


@pytest.mark.parametrize("is_other", [False, True], ids=["the same process", "another one with its pid"])
def test_a_process_that_is_told_to_end_may_take_longer_than_any_grace(
    is_other: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    child, deaths = subprocess.Popen(["/bin/sleep", "300"], start_new_session=True), Deaths()
    started = start_time(child.pid) or 0
    deaths.expect([Identity(child.pid, started - is_other)])
    later = time.monotonic() + 3600
    monkeypatch.setattr(time, "monotonic", lambda: later)
    child.terminate()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    deaths.expect([])  # of another job, before the death is seen
    deaths.note(child.pid, signal.SIGTERM)
    child.wait()
    assert deaths.of_job(child.pid, later, [child.pid]) == ([(logs.KILLED, "sleep")] if is_other else [])


def test_the_ledger_up_to_the_hello_is_that_of_the_moment_it_is_asked_for(tmp_path: Path) -> None:
    """A supervisor waits for its lock; what another one did meanwhile must not be news to it, nor unknown."""
    directory = tmp_path / f"session-{SESSION}"
    directory.mkdir()
    end, keeper = fork_keeper(directory)
    place = str(directory)
    argv = ["/bin/sh", "-c", "exit 3"]
    order = JobOrder("a/1/1/work/1", 1.0, place, "", f"{place}/out", f"{place}/err", argv, {})
    end.sendall(pack(("J", *order)))
    try:
        eventually(lambda: any(b"Z a/1" in line for line in read_log(directory / "ledger").payloads))
        executor = LocalExecutor(end)
    except BaseException:
        os.kill(keeper, signal.SIGKILL)
        raise
    assert executor.ledger_end == (directory / "ledger").stat().st_size
    assert executor.wait(0.05) == []
    executor.close()
    assert os.waitpid(keeper, 0)[1] == 0


def test_a_key_is_claimed_once(bench: Bench) -> None:
    job = bench.job("echo ran")
    bench.run("echo ran")
    (lost,) = bench.start(job)
    assert isinstance(lost, JobLost)
    assert lost.verdict == "lost"
    assert bench.output() == "ran\n"


def test_the_ledger_survives_a_refusal(bench: Bench) -> None:
    """Past the limit of file sizes nothing can be claimed: a hold, and nothing was started."""
    size = (bench.place / "ledger").stat().st_size
    if not hasattr(resource, "prlimit"):
        pytest.skip("the limits of another process cannot be set here")
    limits = resource.prlimit(bench.keeper, resource.RLIMIT_FSIZE)
    resource.prlimit(bench.keeper, resource.RLIMIT_FSIZE, (size + 5, limits[1]))
    try:
        notices = bench.start(bench.job("echo ran"))
    finally:
        resource.prlimit(bench.keeper, resource.RLIMIT_FSIZE, limits)
    assert isinstance(notices[0], HoldPlaced)
    assert isinstance(notices[1], JobLost)
    assert not (bench.place / "a.out").exists()
    assert (bench.place / "ledger").stat().st_size == size
    bench.start(bench.job("echo ran", key=JobKey("a", 1, 1, "work", 2)))
    bench.wait()
    assert bench.output() == "ran\n"


REFUSED_ONCE = """
import os, sys, time
from pathlib import Path
from sessionrun.model.errors import StoreError
from sessionrun.keeper.children import Children
from sessionrun.keeper.wire import JobOrder
from sessionrun.store.logs import AppendLog

class Refusing(AppendLog):
    def append(self, payloads):
        for kind in [payload[:2] for payload in payloads if payload[:2] in (b"X ", b"Z ")]:
            ends.append(kind)
            if ends.count(kind) == 2:
                raise StoreError("full")
        return super().append(payloads)

place, ends, told = sys.argv[1], [], []
children = Children(Refusing(Path(sys.argv[1]) / "ledger"), "session", lambda *fields: told.append(fields[0]))
null = os.devnull
children.start([JobOrder(f"{name}/1/1/work/1", 0.3, place, "", null, null, ["/bin/true"], {}) for name in "ab"])
for child in children.by_key.values():
    os.waitid(os.P_PID, child.leader.pid, os.WEXITED | os.WNOWAIT)
children.reap()
assert told.count("X") == 1, told
until = children.next_time()
assert until is not None, "it would sleep for ever"
time.sleep(max(0.0, until - time.monotonic()))
children.reap()
assert told.count("X") == 2, told
assert children.next_time() is not None, "the last record waits"
children.reap()
assert children.next_time() is None
assert b" Z b/1/1/work/1\\n" in Path(place, "ledger").read_bytes()
"""


@pytest.mark.skipif(not hasattr(os, "waitid"), reason="without waitid an end is reaped before it is recorded")
def test_the_second_of_two_ends_that_the_disk_refused_is_recorded_later(tmp_path: Path) -> None:
    """The first one's records that follow are written, so nothing else waits for the disk; at last one does."""
    subprocess.run([sys.executable, "-c", REFUSED_ONCE, tmp_path], check=True)


def test_a_job_of_an_earlier_keeper_that_is_a_zombie_which_nobody_reaps_is_lost(tmp_path: Path) -> None:
    """In a container without an init orphans go to a process that knows nothing of them; the root never tells."""
    read_fd, write_fd = os.pipe()
    os.write(write_fd, b"end\n")
    told: list[object] = []
    children = Children(AppendLog(tmp_path / "ledger"), SESSION, lambda *fields: told.append(fields[0]))
    adopted = Adopted(children, RootCodes(read_fd))
    with subprocess.Popen(["sleep", "600"]) as process:
        key, started = "a/1/1/work/1", start_time(process.pid)
        process.kill()
        eventually(lambda: start_time(process.pid) is None)
        assert start_time(process.pid, zombie=True) == started, "it is there still"
        began = make_record(logs.BEGAN, 1, 1, boot_id() or "-", pid_namespace() or "-")
        claimed, tried = make_record(logs.CLAIMED, key), make_record(logs.TRIED, key, 0.3)
        spawned = make_record(logs.SPAWNED, key, process.pid, started)
        adopted.find(fold_ledger([began, claimed, tried, spawned]), SESSION)
        assert adopted.next_time() is None, "it would wait for ever"

        def is_over() -> bool:
            children.go_on_stopping()
            return told == ["L"]

        eventually(is_over)
    for fd in (read_fd, write_fd):
        os.close(fd)


# --- supervisors that fail ---

FAILS = """
import os, signal, socket, sys, time
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from sessionrun.session.executor import LocalExecutor
from sessionrun.store.logs import AppendLog
place, kind = Path(sys.argv[2]), sys.argv[3]
with (place / "starts").open("a") as stream:
    stream.write("x")
end = socket.socket(fileno=int(sys.argv[4]))
if kind != "at once":
    executor = LocalExecutor(end)
    journal = AppendLog(place / "journal")
    journal.append([b'{"ev":"SupervisorStarted"}', b'{"ev":"JobClaimed"}', b'{"ev":"JobLost","verdict":"void"}'])
if kind == "late":
    time.sleep(1.1)  # how long it lives is what is tested; a slow machine changes no outcome
if kind.isdigit():
    if (place / "starts").stat().st_size < 12:
        sys.exit(int(kind))
    executor.close()
if kind == "lives":
    time.sleep(0.3)
    if (place / "starts").stat().st_size == 12:
        executor.close()
if kind == "stops what is not there":
    executor._connection.send("T", "none", True)
    executor._connection.flush()
if kind == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
if kind == "does more" or (kind == "does more once" and (place / "starts").stat().st_size == 1):
    journal.append([b'{"ev":"TaskEnded"}'])
    if (place / "starts").stat().st_size == 12:
        executor.close()
sys.exit(1)
"""


def keep_failing(session: Path, *command: str, long_life_s: float = LONG_LIFE_S) -> tuple[list[bytes], int]:
    """Be keeper of a supervisor of this command until it leaves; the words of its last record, and the starts."""
    session.mkdir()
    pid = os.fork()
    if pid == 0:
        keep(session, SupervisorProcess([*command], session, long_life_s), dict(os.environb))
    try:
        eventually(lambda: os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG))
    finally:
        os.kill(pid, signal.SIGKILL)
        assert os.waitpid(pid, 0)[1] == 0
    starts = session / "starts"
    return read_log(session / "ledger").payloads[-1].split(), starts.stat().st_size if starts.exists() else 0


@pytest.mark.parametrize("kind", ["stops what is not there", "does more once", *slow("at once", "killed", "late")])
def test_supervisors_that_do_nothing_are_given_up(tmp_path: Path, kind: str) -> None:
    """One that did something before them is not counted."""
    session = tmp_path / f"session-{SESSION}"
    last, starts = keep_failing(session, sys.executable, "-c", FAILS, PACKAGE_ROOT, str(session), kind)
    counted = starts - (kind == "does more once")
    assert (last, counted) == ([b"G", b"9", b"9" if kind == "killed" else b"256"], 9)


def test_one_that_cannot_be_started_is_given_up(tmp_path: Path) -> None:
    """Its interpreter was removed."""
    assert keep_failing(tmp_path / f"session-{SESSION}", "/no/such/python") == ([b"G", b"9", b"-1"], 0)


@pytest.mark.parametrize(
    ("kind", "long_life_s"),
    [*((kind, LONG_LIFE_S) for kind in ("does more", str(EXIT_NO_ROOM), str(EXIT_TAKEN))), ("lives", 0.3)],
)
def test_those_that_do_something_or_cannot_yet_or_live_long_are_not_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, long_life_s: float
) -> None:
    """A job on a cluster may run for days: the journal says nothing meanwhile, and is no job of the keeper's."""
    monkeypatch.setattr(loop, "RETRY_S", 0.01)
    session = tmp_path / f"session-{SESSION}"
    command = sys.executable, "-c", FAILS, PACKAGE_ROOT, str(session), kind
    last, starts = keep_failing(session, *command, long_life_s=long_life_s)
    assert (last[0], starts) == (b"K", 12)


# --- frames between supervisor and keeper: whole or not at all, with any byte, however long ---

Ends = tuple[socket.socket, Connection]


@pytest.fixture
def ends() -> Iterator[Ends]:
    ours, theirs = socket.socketpair()
    with closing(ours), closing(Connection(theirs)) as connection:
        yield ours, connection


def test_an_order_may_hold_any_byte(ends: Ends) -> None:
    ours, connection = ends
    argv = ["/bin/\udcff", "a\nb", "\udcf0\udc9f\udc98\udc80", "\U0001f600", ""]
    order = JobOrder("a/1/1/work/1", 1.5, "/\udc80", "", "/o", "/e", argv, {"A\udcfe": "\x01\udcc3"}, keeps=True)
    ours.sendall(pack(("J", *order)))
    kind, *fields = connection.receive()[0]
    assert kind == "J" and JobOrder(*fields) == order


def test_half_a_frame_is_none_also_at_the_end(ends: Ends) -> None:
    ours, connection = ends
    content = pack(("T", "a", True)) + pack(("Q",)) + pack(("T", "b", False))
    heard = []
    for place in range(len(content) - 1):
        ours.sendall(content[place : place + 1])
        heard += connection.receive()
    assert heard == [["T", "a", True], ["Q"]]
    ours.sendall(content[-1:] + b'["T", "c')
    ours.close()
    assert connection.receive() == [["T", "b", False]]
    with pytest.raises(EOFError):
        connection.receive()


def test_a_frame_may_be_longer_than_what_the_socket_takes(ends: Ends) -> None:
    ours, connection = ends
    sender, heard = Connection(ours), list[list[str]]()
    sender.send("x" * (3 << 20))
    while not heard:
        sender.flush()
        heard = connection.receive()
    assert heard == [["x" * (3 << 20)]]


def test_a_refusal_that_names_a_path_of_other_bytes_can_be_recorded(ends: Ends) -> None:
    ours, connection = ends
    key = JobKey("a", 1, 1, "work", 1)
    ours.sendall(pack(("R", key.text(), "cannot write /\udcff/ledger: No space left on device")))
    hold, lost = read_frame(connection.receive()[0], key)
    assert isinstance(hold, HoldPlaced) and isinstance(lost, JobLost)
    assert hold.reason == lost.reason == "cannot write /\ufffd/ledger: No space left on device"
