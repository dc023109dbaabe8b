"""What all tests share: a place of their own, the real command, and waiting without sleeping blindly."""

from __future__ import annotations

import gc
import itertools
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Final

import output_schemas
import psutil
import pytest
from browser import Browser, find_browser
from recorded import Recorded
from stages import live_in
from warm import Warm

EVENTUALLY_S = 60.0
"""How long `eventually` waits for anything: far longer than it takes, for machines that are busy."""

FIRST_PAUSE_S = 0.005
LAST_PAUSE_S = 0.05

LEAVING_S = 0.5
"""So long the processes of a session that has ended may leave by themselves; then they are killed."""

_COMPILED: Final = pytest.StashKey[bool]()

_NUMBERS: Final = itertools.count()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Switches for the tiers that the test command leaves out."""
    parser.addoption("--slow", action="store_true", help="also run tests that take more than a few seconds")
    parser.addoption("--check", action="store_true", help="also run what few changes break: see make check")
    parser.addoption("--agents", action="store_true", help="also run tests that need the real agent CLIs")


def pytest_configure(config: pytest.Config) -> None:
    """The fast tier draws the same examples each time, the slow one more of them, and others.

    A script's background job inherits that SIGINT and SIGQUIT are ignored, what `nohup` starts the same of SIGHUP,
    and so would all that is started here.
    """
    # the machine's own settings, such as those of Git LFS, are no part of a test
    os.environ["GIT_CONFIG_NOSYSTEM"] = "1"
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGHUP, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    os.environ.pop("PYTEST_ADDOPTS", None)  # these options are for this pytest, not for those that tests start
    if os.environ.pop("PYTHONDONTWRITEBYTECODE", None):
        # Python may write none beside our code, and else each of thousands of processes would compile all of ours
        os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix = str(
            config.rootpath / ".pytest_cache" / "bytecode"
        )
        sys.dont_write_bytecode = False
    _load_profile("slow" if config.getoption("--slow") else "fast")


def _load_profile(name: str) -> None:
    """Say how many examples hypothesis draws.

    Hypothesis is imported here, after the place for byte code is known: pytest rewrites all of it.
    """
    from hypothesis import HealthCheck, settings

    for tier, count, same in (("fast", 20, True), ("slow", 500, False)):
        settings.register_profile(
            tier, max_examples=count, derandomize=same, deadline=None, suppress_health_check=[HealthCheck.too_slow]
        )
    settings.load_profile(name)
    if name == "fast":
        _draw_no_constants()


def _draw_no_constants() -> None:
    """Let hypothesis draw none of the constants of our modules: a test has the same examples after they change.

    It reads all modules for them, which costs each process of the tests seconds.  It has no setting for that
    (HypothesisWorks/hypothesis, issue 4627); where its insides have other names, this does nothing.
    """
    from hypothesis.internal.conjecture import providers

    found = getattr(providers, "_local_constants", None)
    if found is not None:
        setattr(providers, "_get_local_constants", lambda: found)  # noqa: B010


@pytest.hookimpl(tryfirst=True)
def pytest_collect_file(parent: pytest.Collector) -> None:
    """In a run of all tests, every other process compiles from the last module on: each compiles half of them."""
    config = parent.config
    if config.stash.get(_COMPILED, False):
        return
    config.stash[_COMPILED] = True
    worker = getattr(config, "workerinput", {}).get("workerid", "gw0")
    tests = Path(__file__).parent
    if int(worker.removeprefix("gw")) % 2 and any(tests == config.rootpath / word for word in config.args):
        for module in sorted(tests.rglob("test_*.py"), reverse=True):
            with suppress(Exception, pytest.skip.Exception):  # pytest imports it again, and says what is wrong
                import_module(module.stem)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """Look for no garbage while thousands of objects come to stay, and never at these again: forks copy less."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip, with a reason that is printed, what was not asked for; begin with what waits for long."""
    items.sort(key=lambda item: item.get_closest_marker("long") is None)
    for item in items:
        for tier in ("slow", "check", "agents"):
            asked = config.getoption(f"--{tier}") or (tier == "check" and config.getoption("--slow"))
            if item.get_closest_marker(tier) and not asked:
                item.add_marker(pytest.mark.skip(reason=f"{tier} tier: run pytest with --{tier}"))


IGNORING = """\
import os, signal, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
os.execv(sys.argv[1], sys.argv[1:])
"""
"""Becomes the program that its words name, started as by a caller that ignores the ends of its children."""


def slow_seed() -> int:
    """Where the random choices of a test of the slow tier begin: `make slow` says it, and takes it as SEED."""
    return int(os.environ.get("SLOW_SEED") or random.SystemRandom().getrandbits(32))


def slow(*values: Any) -> list[Any]:
    """Parameters of the slow tier: those beside them have the same behaviour in the fast one."""
    return [pytest.param(value, marks=pytest.mark.slow) for value in values]


@pytest.fixture
def say(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Print something at the end of the run, whether the test fails or not, and in whichever process it ran."""
    return lambda text: request.node.user_properties.append(("said", text))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what tests wanted to say."""
    every = [report for reports in terminalreporter.stats.values() for report in reports]
    for report in (one for one in every if getattr(one, "when", "") == "call"):
        for name, text in report.user_properties:
            if name == "said":
                terminalreporter.write_line(f"{report.nodeid}: {text}")


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As pytest's own, but removed only when the whole run has ended, and only if no test failed.

    On ext4 a new file looks first at every inode that was freed in the last minutes: to remove each test's files
    as soon as it has passed made the kernel's part of the tests half as dear again.
    """
    name = re.sub(r"\W", "_", request.node.name)[:30]
    return tmp_path_factory.mktemp(f"{name}{next(_NUMBERS)}", numbered=False)


@pytest.fixture(autouse=True)
def own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home, state and working directory of the test's own: the default results directory is in there too.

    Whatever is started with a `Command` that is made from now on is ended with the test.
    """
    before = len(Command.made)
    for name in [name for name in os.environ if name.startswith("SESSIONRUN_")]:
        monkeypatch.delenv(name)
    for name, value in {"LC_ALL": "C.UTF-8", "TZ": "UTC", "NO_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)
    live_in(tmp_path, monkeypatch)
    yield tmp_path / "work"
    for results in dict.fromkeys(Command.made[before:]):
        kill_sessions(results)
    del Command.made[before:]


@pytest.fixture
def small_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A file system of its own with little room; its parameter is the size, as mount(8) spells it."""
    place = tmp_path / "disk"
    place.mkdir()
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("needs root, to mount a small tmpfs")
    mount = ["mount", "-t", "tmpfs", "-o", f"size={getattr(request, 'param', '1m')}", "tmpfs", str(place)]
    if subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("mounting a tmpfs is not allowed here")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(disk: Path) -> Path:
    """Leave no room at all; the file that takes it."""
    filler = disk / "filler"
    with filler.open("ab", buffering=0) as stream:
        for size in (4096, 1):
            with suppress(OSError):
                while stream.write(b"x" * size):
                    pass
    return filler


def eventually(condition: Callable[[], Any], *, timeout_s: float = EVENTUALLY_S) -> Any:
    """Call until the answer is true, and return it; fail when it never becomes so."""
    answer = wait_until(condition, timeout_s)
    assert answer, f"not within {timeout_s} s: {condition}"
    return answer


def wait_until(condition: Callable[[], Any], timeout_s: float) -> Any:
    """Call until the answer is true or the time is over; the last answer.

    The pauses in between grow: to look at a session costs processor time, and a long wait may be a bit longer.
    """
    deadline, pause_s = time.monotonic() + timeout_s, FIRST_PAUSE_S
    while not (answer := condition()) and time.monotonic() < deadline:
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.2, LAST_PAUSE_S)
    return answer


@pytest.fixture(autouse=True, scope="session")
def temporary(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A directory for temporary files, which is empty when the tests have ended; real agents may leave some.

    No session runs then.
    """
    place = tmp_path_factory.mktemp("temporary")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(place))
        patch.setattr(tempfile, "tempdir", None)
        yield
    assert pytestconfig.getoption("--agents") or os.listdir(place) == []
    below = f"{tmp_path_factory.getbasetemp()}/"

    def has_left() -> bool:
        found = (process.info["cmdline"] or () for process in psutil.process_iter(["cmdline"]))
        return not any(word.startswith(below) for words in found for word in words)

    eventually(has_left)


@pytest.fixture(autouse=True, scope="session")
def warm(temporary: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warm]:
    """What starts the command without a new interpreter, and where ended sessions are kept."""
    Command.recorded = Recorded(tmp_path_factory.mktemp("recorded"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LC_ALL", "C.UTF-8")
        Command.warm = Warm()
    yield Command.warm
    Command.warm.close()


@dataclass
class Command:
    """The `sessionrun` command, and the sessions started with it."""

    cwd: Path
    results: Path
    warm: ClassVar[Warm]
    recorded: ClassVar[Recorded]
    made: ClassVar[list[Path]] = []
    sessions: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Let its sessions be known."""
        self.made.append(self.results)

    @property
    def argv(self) -> list[str]:
        """How to start it: the code under test, with the interpreter of the tests."""
        return [sys.executable, "-m", "sessionrun"]

    def __call__(
        self,
        *words: str,
        stdin: str | bytes | None = None,
        env: Mapping[str, str] | None = None,
        real: bool = False,
    ) -> subprocess.CompletedProcess[str]:
        """Run it to its end; both outputs as text.  JSON is held against its schema.

        With `real` it is started as users start it: with an interpreter of its own, and pipes that are read to
        their ends.
        """
        content = stdin.encode() if isinstance(stdin, str) else stdin
        environ = {**os.environ, **(env or {})}
        argv = [*self.argv, *words]
        if not real and self.warm.serves(environ):
            called = self.warm.popen(words, cwd=self.cwd, environ=environ, stdin=content or b"")
            try:
                out, error = called.communicate(timeout=120)
            finally:
                called.kill()
            code = called.wait()
        else:
            source: dict[str, Any] = {"stdin": subprocess.DEVNULL} if content is None else {"input": content}
            done = subprocess.run(argv, cwd=self.cwd, env=environ, capture_output=True, timeout=120, **source)
            out, error = (said.decode("utf-8", "surrogateescape") for said in (done.stdout, done.stderr))
            code = done.returncode
        output_schemas.check_output(words, out)
        return subprocess.CompletedProcess(argv, code, out, error)

    def popen(self, *words: str, **options: Any) -> Any:
        """Run it beside the test, with an interpreter of its own."""
        return subprocess.Popen([*self.argv, *words], cwd=self.cwd, **options)

    def load(self, *words: str) -> Any:
        """Run it to success with `--json`; the value that it printed."""
        done = self(*words, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def start(self, plan: object, *words: str) -> str:
        """Start a session of a plan on the shell agent; return its id."""
        file = self.cwd / f"plan-{len(self.sessions)}.json"
        file.write_text(json.dumps(plan))
        done = self("-q", "--agent", "shell", *words, str(file))
        assert done.returncode == 0, done.stderr
        self.sessions.append(done.stdout.strip())
        return self.sessions[-1]

    def to_end(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a verb that starts a session or lets one go on, and wait until nobody runs that one any more."""
        from sessionrun.store.session import SessionDir, iterate_sessions

        def find() -> list[SessionDir]:
            return [
                session for place in {self.results, self.cwd / "results"} for session in iterate_sessions(place)
            ]

        others = {session.path for session in find() if session.is_alive()}
        done = self(*words)
        ours = [session for session in find() if session.path not in others]
        eventually(lambda: not any(session.is_alive() for session in ours))
        return done

    def waiting(self, *names: str) -> list[dict[str, Any]]:
        """Tasks that say `up`, go on until `let_go` names them, and then say `down`."""
        script = f"echo up; while [ ! -e {self.cwd}/go-{{}} ]; do sleep 0.05; done; echo down; exit 0"
        return [{"id": name, "prompt": script.format(name)} for name in names]

    def let_go(self, *names: str) -> None:
        for name in names:
            (self.cwd / f"go-{name}").touch()

    def output(self, session_id: str, name: str) -> str:
        """What a task has printed, as far as it has come."""
        path = self.directory(session_id) / f"task-{name}.txt"
        return path.read_text() if path.is_file() else ""

    def is_up(self, session_id: str, *names: str) -> bool:
        return all(self.output(session_id, name).startswith("up\n") for name in names)

    def finished(self, plan: object, *words: str) -> str:
        """A session of a plan that has ended, for readers: run by the first who asks, and copied from then on."""
        from sessionrun.store.session import SessionDir

        key = json.dumps([plan, *words])
        session_id = self.recorded.copy(key, self.results, self.cwd)
        if session_id is None:
            session_id = self.start(plan, *words)
            self.wait(session_id)
            session = SessionDir(self.directory(session_id))
            eventually(lambda: not session.is_alive())
            self.recorded.keep(key, session.path, self.cwd)
        return session_id

    def status(self, session_id: str) -> dict[str, Any]:
        status: dict[str, Any] = self.load("status", session_id)
        return status

    def until(
        self, session_id: str, condition: Callable[[dict[str, Any]], Any], *, timeout_s: float = EVENTUALLY_S
    ) -> dict[str, Any]:
        """Wait until the session's status is so; return it.  It is read here: a command for each look is dear."""
        from sessionrun.client.reading.view import load_view
        from sessionrun.store.session import SessionDir

        session = SessionDir(self.directory(session_id))
        seen: list[dict[str, Any]] = []

        def check() -> Any:
            seen[:] = [json.loads(json.dumps(load_view(session)))]
            return condition(seen[0])

        eventually(check, timeout_s=timeout_s)
        return seen[0]

    def wait(self, session_id: str) -> dict[str, Any]:
        """Wait for the end; return the status."""
        return self.until(session_id, lambda view: view["ended_at"], timeout_s=60)

    def supervisor(self, session_id: str) -> int:
        """The pid of the process that decides, as the session's journal names it."""

        def find() -> int:
            lines = (self.directory(session_id) / "journal").read_bytes().splitlines()
            started = [record for line in lines if (record := json.loads(line[9:]))["ev"] == "SupervisorStarted"]
            return int(started[-1]["pid"]) if started else 0

        return int(eventually(find))

    def chain(self, session_id: str) -> tuple[int, int, int]:
        """The pids of root, keeper and supervisor."""
        supervisor = psutil.Process(self.supervisor(session_id))
        keeper = supervisor.parent()
        root = keeper.parent() if keeper else None
        assert keeper is not None
        assert root is not None
        assert all(str(self.directory(session_id)) in process.cmdline() for process in (keeper, root))
        return root.pid, keeper.pid, supervisor.pid

    def kill_chain(self, session_id: str) -> None:
        """kill -9 of all three at once, so that none is left to start another; the jobs live on."""
        from sessionrun.store.session import SessionDir

        kill_together([psutil.Process(pid) for pid in self.chain(session_id)])
        session = SessionDir(self.directory(session_id))
        eventually(lambda: not session.is_alive())

    def directory(self, session_id: str) -> Path:
        return self.results / f"session-{session_id}"


@pytest.fixture
def sessionrun(own_place: Path) -> Command:
    return Command(own_place, own_place / "results")


@pytest.fixture
def browser() -> Iterator[Browser]:
    program = find_browser()
    if program is None:
        pytest.skip("no Chromium is installed")
    opened = Browser(program)
    yield opened
    opened.close()


def kill_sessions(results: Path) -> None:
    """End every process that carries the marker of a session in `results`, and its supervisor.

    To look at all processes takes longer than many a test, and is needed for few sessions: most have ended, their
    locks are free, and by the ledger no job is left.
    """
    ids = {path.name.removeprefix("session-") for path in results.glob("session-*") if not _is_over(path)}
    while ids and (victims := find_processes(results, ids)):  # a root that still lives starts another keeper
        kill_together(victims)


def kill_together(victims: Collection[psutil.Process]) -> None:
    """End processes, so that none sees another one's end."""
    for end in (psutil.Process.suspend, psutil.Process.kill):
        for process in victims:
            with suppress(psutil.Error):
                end(process)
    for process in victims:
        eventually(partial(is_gone, process))


def find_processes(results: Path, ids: set[str]) -> list[psutil.Process]:
    """The processes of these sessions: by their command line, and those of jobs by their marker."""
    found = []
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
            ours = any(str(results / f"session-{one}") in words for one in ids)
            if ours or process.environ().get("SESSIONRUN_JOB", "").split("/")[0] in ids:
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


def _is_over(path: Path) -> bool:
    """Whether a session has ended, nobody runs it, and no process of its jobs is left by its ledger.

    Of one that has not ended a test may have cut the ledger while its jobs live.
    """
    from sessionrun.store.logs import fold_ledger, read_log
    from sessionrun.store.session import SessionDir

    session = SessionDir(path)
    try:
        if (session.load_summary() or {}).get("ended_at") is None:
            return False
        deadline = time.monotonic() + LEAVING_S
        while session.is_alive():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        ledger = read_log(session.ledger_path)
        jobs = fold_ledger(ledger.payloads).jobs.values()
    except Exception:
        return False
    return ledger.damage_at is None and not any(job.is_open for job in jobs)


@pytest.fixture
def make_deep(own_place: Path) -> Iterator[Callable[[Path, int], None]]:
    """Makes so many directories below each other.  All of the place goes: pytest could not remove it."""

    def make(folder: Path, depth: int) -> None:
        fd = os.open(folder, os.O_RDONLY)
        for _ in range(depth):
            os.mkdir("d", dir_fd=fd)
            inner = os.open("d", os.O_RDONLY, dir_fd=fd)
            os.close(fd)
            fd = inner
        os.close(fd)

    yield make
    subprocess.run(["rm", "-rf", *own_place.iterdir()], check=False)


def rests(*pids: int) -> Callable[[], bool]:
    """Whether these processes have rested for a moment, to be asked again and again: none of them was woken up."""
    processes = [psutil.Process(pid) for pid in pids]
    seen: list[tuple[int, float]] = [(-1, 0.0)]

    def has_rested() -> bool:
        switches = sum(int(process.num_ctx_switches().voluntary) for process in processes)
        now = time.monotonic()
        if switches != seen[-1][0]:
            seen.append((switches, now))
        return now - seen[-1][1] > 0.6

    return has_rested


def is_gone(process: psutil.Process) -> bool:
    """Whether a process has ended; that nobody reaped it yet does not matter.

    While another thread of it still ends, its locks are held.
    """
    try:
        if process.is_running() and process.status() == psutil.STATUS_ZOMBIE:
            return process.num_threads() <= 1
        return not process.is_running()
    except psutil.NoSuchProcess:
        return True


@pytest.fixture
def utc(own_place: Path) -> None:
    """The local time zone of this process is UTC: `own_place` says so, and here it comes into force."""
    time.tzset()
