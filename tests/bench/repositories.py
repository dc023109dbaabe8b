"""What worktrees, environments, walls and landings cost, beside git and the plainest programs."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final

from stages import git
from uv import find_uv_bin

from sessionrun.git.git import Git
from sessionrun.git.repository import find_repository
from sessionrun.landing.records import Entry, Gates, LandRequest
from sessionrun.landing.turn import land
from sessionrun.model.places import Place, Seats
from sessionrun.walls.trial import find_problem
from sessionrun.worktrees.environments.build import make_environment
from sessionrun.worktrees.environments.inputs import PROJECT_FILES, find_requirements, order_ways, read_texts
from sessionrun.worktrees.release import release
from sessionrun.worktrees.request import EnvironmentRequest, WorkspaceRequest
from sessionrun.worktrees.worktree import prepare

from .measure import Bench, Case, Row, Spent, clock, compare, compare_figure, interleave, make_bench, middle

_NUMBERS: Final = count()

# --- worktrees ---

FILES: Final = 500
WORKTREES: Final = 32


def measure_worktrees(rounds: int = 3) -> list[Row]:
    """How long worktrees take: 32 through a session against serial `git worktree add`, and the first task's start.

    A round takes some ten seconds.
    """
    serial, case = f"git worktree add, {WORKTREES} one by one", f"run --worktree, {WORKTREES} of {FILES:,} files"
    one, first = "run --worktree, 1 task runs", f"the first of {WORKTREES} tasks runs"
    with make_bench() as bench:
        top = bench.make_repository({f"d{n // 100}/f{n}": f"{n}\n" * 100 for n in range(FILES)})
        cases: dict[str, Case] = {
            serial: lambda: _add_one_by_one(bench, top),
            case: lambda: _await_tasks(bench, top, tasks=WORKTREES, wanted=WORKTREES),
            one: lambda: _await_tasks(bench, top, tasks=1, wanted=1),
            first: lambda: _await_tasks(bench, top, tasks=WORKTREES, wanted=1),
        }
        samples = interleave(cases, rounds)
        return [compare(samples, case, serial, 0.7), compare(samples, first, one, 1.5)]


def _add_one_by_one(bench: Bench, top: Path) -> Spent:
    folder = bench.path / "serial"

    def add() -> None:
        for name in map(str, range(WORKTREES)):
            git(top, "worktree", "add", "-q", "-b", f"serial-{name}", str(folder / name), "main")

    spent = clock(add)
    _forget(top, folder)
    return spent


def _await_tasks(bench: Bench, top: Path, *, tasks: int, wanted: int) -> float:
    """The seconds from the command to the first act of `wanted` of the tasks; then all are ended."""
    marks, folder = bench.path / f"marks-{next(_NUMBERS)}", bench.path / "worktrees"
    marks.mkdir()
    file = bench.write("worktrees.json", [f"touch {marks}/$SESSIONRUN_TASK; sleep 600"] * tasks)
    begun = time.perf_counter()
    _, session = bench.run("--worktree", "--worktree-dir", folder, file, cwd=top)
    while sum(1 for _ in marks.iterdir()) < wanted:
        time.sleep(0.001)
    seconds = time.perf_counter() - begun
    bench.end(session)
    _forget(top, folder)
    shutil.rmtree(session.path)
    return seconds


class Task:
    """A task in a worktree: what its jobs do, without the start of their interpreters."""

    def __init__(self, bench: Bench, top: Path, *, walled: bool = False, stays: bool = False) -> None:
        """The worktree of one that `stays` is the one that the last such task gave back."""
        name = f"task{next(_NUMBERS)}"
        self._jobs, self._cache = bench.path / "jobs" / name, str(bench.path / "cache")
        for phase in ("prepare", "setup", "release"):
            self._job(phase).mkdir(parents=True)
        self._request = WorkspaceRequest(
            find_repository(top, base=None, worktree_dir=bench.path / "worktrees", keep="never")[0],
            "s",
            name,
            "do it",
            patch=str(self._jobs / "patch"),
            walls=str(self._jobs / "a1-walls") if walled else None,
            seats=Seats(str(bench.path / "seats"), placement="sibling") if stays else None,
            seat=1 if stays else None,
            prompt="x",
        )

    def _job(self, phase: str) -> Path:
        return self._jobs / f"a1-r1-{phase}"

    def prepare(self) -> Path:
        place = prepare(self._request, self._job("prepare"))
        self._request = replace(self._request, place=place)
        return Path(place.worktree or "")

    def set_up(self) -> None:
        """The environment of its worktree: the first one is built, the others are copied."""
        found, tree = self._request.repository, (self._request.place or Place()).worktree or ""
        request = EnvironmentRequest(tree, tree, self._cache, repository=found, commit=found.base_commit)
        report = make_environment(request, self._job("setup"))
        assert report.problem is None, report.problem

    def release(self) -> None:
        release(replace(self._request, succeeded=True), self._job("release"))


def measure_task(rounds: int = 3) -> list[Row]:
    """A task's whole way in git, two files changed in 5,000, against five commands of git without any check.

    And its RELEASE with walls against the same without: parking inside, and the way home of what was parked.
    """
    ours, plain = "PREPARE and RELEASE, 5,000 files", "git worktree add, add, commit, diff, remove"
    walled, bare = "RELEASE of a walled task", "the same without walls"
    with make_bench() as bench:
        top = bench.make_repository({f"d{n // 100}/f{n}": f"{n}\n" * 100 for n in range(5000)})
        cases: dict[str, Case] = {
            plain: lambda: clock(partial(_do_plainly, bench, top)),
            ours: lambda: clock(partial(_release, Task(bench, top))),
        }
        rows = [compare(interleave(cases, rounds), ours, plain, 1.15)]
        if find_problem("strict", network=False) is None:
            tasks = {name: partial(Task, bench, top, walled=name == walled) for name in (walled, bare)}
            cases = {name: lambda make=make: _release(make()) for name, make in tasks.items()}  # type: ignore[misc]
            rows.append(compare(interleave(cases, rounds), walled, bare, 1.5))
        return rows


def _do_plainly(bench: Bench, top: Path) -> None:
    number = next(_NUMBERS)
    tree = bench.path / f"plain{number}"
    git(top, "worktree", "add", "-q", "-b", f"plain-{number}", str(tree), "main")
    _work_in(tree)
    git(tree, "add", "-A")
    git(tree, "commit", "-q", "-m", "work")
    (bench.path / f"plain{number}.patch").write_text(git(tree, "diff", "--binary", "main", "HEAD"))
    git(top, "worktree", "remove", "--force", str(tree))


def _release(task: Task) -> Spent:
    """What RELEASE takes, after PREPARE and some work."""
    _work_in(task.prepare())
    return clock(task.release)


def _work_in(tree: Path) -> None:
    (tree / "d0" / "f0").write_text("changed\n")
    (tree / "new").write_text("new\n")


def _forget(top: Path, folder: Path) -> None:
    """Take worktrees and branches away, so that each round finds the same repository."""
    shutil.rmtree(folder, ignore_errors=True)
    git(top, "worktree", "prune")
    for name in git(top, "for-each-ref", "--format=%(refname)", "refs/heads").split():
        if name != "refs/heads/main":
            git(top, "update-ref", "-d", name)


# --- environments ---

SOURCES: Final = 5000
_PROJECT: Final = """
[build-system]
requires = ["setuptools>=64"]
build-backend = "setuptools.build_meta"

[project]
name = "demo"
version = "1.0"

[project.optional-dependencies]
test = ["pytest"]

[tool.setuptools]
package-dir = {"" = "src"}
packages = ["demo"]
"""


def measure_environments(rounds: int = 2) -> list[Row]:
    """How long a task's warm set-up takes: worktree and cached environment, against a clone, venv and pip.

    The project has 5,000 files and pytest with what that needs, from wheels that are fetched once before the
    rounds, from the package index or by pip's settings.  A round takes half a minute.  Nothing is removed between
    the rounds: on ext4 a new file looks first at every inode that was freed in the last minutes.
    """
    warm, stays = f"worktree and cached environment, {SOURCES:,} files", "the same in a worktree that stays"
    cold, floor = "git clone, venv, pip install -e .[test]", "git worktree add"
    least = "git worktree add, cp -a of the environment"
    with make_bench() as bench:
        sources = {f"src/demo/part{n // 100}/file{n}.py": f"VALUE = {n}\n" * 20 for n in range(SOURCES)}
        top = bench.make_repository({**sources, "src/demo/__init__.py": "", "pyproject.toml": _PROJECT})
        wheels = bench.path / "wheels"
        pip = (sys.executable, "-m", "pip")
        subprocess.run([*pip, "download", "-q", "-d", wheels, "pytest", "setuptools", "wheel"], check=True)
        for installer in ("PIP", "UV"):
            os.environ.update({f"{installer}_NO_INDEX": "1", f"{installer}_FIND_LINKS": str(wheels)})
        python = os.path.dirname(os.path.realpath(sys.executable))  # of both: one on PATH may be a slow script
        os.environ["PATH"] = os.pathsep.join((python, os.path.dirname(find_uv_bin()), os.environ["PATH"]))
        for stay in (False, True):
            _set_up(bench, top, stays=stay)
        (env,) = (bench.path / "worktrees").glob(".env-*")
        cases: dict[str, Case] = {
            cold: lambda: clock(partial(_install, bench, top)),
            warm: lambda: _set_up(bench, top),
            stays: lambda: _set_up(bench, top, stays=True),
            floor: lambda: clock(partial(_check_out, bench, top)),
            least: lambda: clock(partial(_check_out, bench, top, env)),
        }
        samples = interleave(cases, rounds)
    pairs = ((warm, cold, 0.05), (stays, cold, 0.05), (warm, floor, 2.0), (warm, least, 1.5))
    rows = [compare(samples, case, against, goal) for case, against, goal in pairs]
    return [*rows, compare_figure(f"{warm} (ms)", 1000 * rows[0].case_s, 1000.0)]


PROJECTS: Final = {"pluggy": "1.5.0", "httpx": "0.27.2", "markupsafe": "2.1.5"}
"""Built by setuptools-scm, by hatchling, and by setuptools with an extension in C."""


def measure_copies(rounds: int = 3) -> list[Row]:
    """How long the copy of a cached environment takes, against uv with all that it needs in its own cache.

    The projects are fetched from the package index.  uv copies files, too: environments of tasks share none.
    """
    rows = []
    for name, version in PROJECTS.items():
        ours, theirs = f"copy of the environment of {name}", "uv venv and install, warm"
        with make_bench() as bench:
            os.environ["PATH"] = os.pathsep.join((os.path.dirname(find_uv_bin()), os.environ["PATH"]))
            os.environ["UV_LINK_MODE"] = "copy"
            top = _fetch_project(bench, f"{name}=={version}")
            git(top, "tag", f"v{version}")
            _copy_environment(bench, top)
            cases: dict[str, Case] = {
                theirs: partial(_install_by_uv, bench, top, _find_words_of_uv(bench, top)),
                ours: partial(_copy_environment, bench, top),
            }
            rows.append(compare(interleave(cases, rounds), ours, theirs, 0.1))
    return rows


def _fetch_project(bench: Bench, wanted: str) -> Path:
    """The sources of a project in a repository with one commit."""
    folder, words = bench.path / "sources", ("--no-deps", "--no-binary", ":all:", wanted)
    subprocess.run([sys.executable, "-m", "pip", "download", "-q", "-d", folder, *words], check=True)
    (archive,) = folder.iterdir()
    subprocess.run(["tar", "-xzf", archive, "--no-same-owner"], cwd=folder, check=True)
    (top,) = (path for path in folder.iterdir() if path.is_dir())
    git(top, "init", "-q", "-b", "main")
    git(top, "add", "-Af")
    git(top, "commit", "-q", "-m", "one")
    return top


def _copy_environment(bench: Bench, top: Path) -> Spent:
    """What the environment of a new worktree takes."""
    task = Task(bench, top)
    task.prepare()
    return clock(task.set_up)


def _find_words_of_uv(bench: Bench, top: Path) -> Sequence[str]:
    """How the project is installed, as for an environment: the first way that works."""
    for way in order_ways(read_texts(top, PROJECT_FILES), find_requirements(top)):
        with suppress(subprocess.CalledProcessError):
            _install_by_uv(bench, top, way.words)
            return way.words
    raise AssertionError(f"{top} cannot be installed")


def _install_by_uv(bench: Bench, top: Path, words: Sequence[str]) -> Spent:
    """What the same takes without the copy, in a worktree of its own."""
    tree = Task(bench, top).prepare()

    def install() -> None:
        subprocess.run(["uv", "venv", "-q", "--python", sys.executable, ".venv"], cwd=tree, check=True)
        words_of_pip = ["uv", "pip", "install", "-q", *words, "pytest"]
        subprocess.run(words_of_pip, cwd=tree, check=True, capture_output=True)

    return clock(install)


def _install(bench: Bench, top: Path) -> None:
    folder = bench.path / f"cold{next(_NUMBERS)}"
    subprocess.run(["git", "clone", "-q", top, folder], check=True)
    subprocess.run([sys.executable, "-m", "venv", folder / ".venv"], check=True)
    install = (folder / ".venv" / "bin" / "python", "-m", "pip", "install", "-q", "-e", ".[test]")
    subprocess.run(install, cwd=folder, check=True)


def _check_out(bench: Bench, top: Path, env: Path | None = None) -> None:
    """What of the set-up is git's own work; with `env`, the same files by the plainest programs."""
    folder = bench.path / f"floor{next(_NUMBERS)}"
    git(top, "worktree", "add", "-q", "--detach", str(folder))
    if env is not None:
        subprocess.run(["cp", "-a", env, bench.path / f"{folder.name}-env"], check=True)


def _set_up(bench: Bench, top: Path, *, stays: bool = False) -> Spent:
    """What PREPARE and the environment take."""
    task = Task(bench, top, stays=stays)

    def set_up() -> None:
        task.prepare()
        task.set_up()

    spent = clock(set_up)
    if stays:
        task.release()
    return spent


# --- walls ---

POLICIES: Final = ("project", "strict")
MORE_MS: Final = 25.0


def measure_walls() -> list[Row]:
    """What walls cost: a program that does nothing, inside of a real task's and bare, as the keeper starts both.

    At most 25 ms more are wanted; the table has it as a figure.  Processor time is no figure here: bubblewrap does
    not wait for what is inside.  Whole sessions of one task each show what git inside costs PREPARE and
    RELEASE.
    """
    problem = find_problem("strict", network=False)
    if problem is not None:
        print(f"walls: {problem}", file=sys.stderr)
        return []
    with make_bench() as bench:
        top = bench.make_repository({"a": "a\n"})
        starts: dict[str, Case] = {"true": partial(_start, ["/bin/true"])}
        starts |= {policy: partial(_start, _find_words(bench, top, policy)) for policy in POLICIES}
        samples = interleave(starts, 30)
        more = {policy: 1000 * (middle(samples[policy]) - middle(samples["true"])) for policy in POLICIES}
        rows = [
            compare_figure(f"a walled no-op, {name}: more than a bare one", ms, MORE_MS)
            for name, ms in more.items()
        ]
        bare, walled = "session of one task", "the same, with walls"
        words = ("--sync", "--worktree", bench.write("one.json", ["true"]))
        sessions: dict[str, Case] = {
            bare: lambda: bench.run(*words, cwd=top)[0],
            walled: lambda: bench.run("--sandbox", "project", *words, cwd=top)[0],
        }
        return [*rows, compare(interleave(sessions, 5), walled, bare, 2.0)]


def _find_words(bench: Bench, top: Path, policy: str) -> list[str]:
    """The words that start a program in the walls of a real task, which stays for that; here they start nothing.

    The task prints them: the first process inside is bubblewrap.
    """
    file = bench.write(f"{policy}.json", ["cat /proc/1/cmdline"])
    words = ("--sync", "--worktree", "--keep-worktree", "always", "--sandbox", policy, file)
    (output,) = bench.run(*words, cwd=top)[1].path.glob("task-*.txt")
    bwrap, _, inside = output.read_text().rstrip("\0").partition("\0--\0")
    python, isolated, bare, inner, _, processes, stdin, proxy, *_ = inside.split("\0")
    report = "-"  # no descriptor of a keeper's is open here
    return [*bwrap.split("\0"), "--", python, isolated, bare, inner, report, processes, stdin, proxy, "/bin/true"]


def _start(argv: Sequence[str]) -> float:
    begun = time.perf_counter()
    pid = os.posix_spawn(argv[0], tuple(argv), os.environ, setsid=True)
    _, status = os.waitpid(pid, 0)
    assert status == 0, argv
    return time.perf_counter() - begun


# --- landing ---

BRANCHES: Final = 60
RED: Final = 9
GATE: Final = "! grep -rqs BAD landing-*.txt"


def measure_landing(rounds: int = 5) -> list[Row]:
    """What landing costs: 60 branches, 15 % of them red, in batches and one by one, and beside its git commands.

    The repository is a clone of the one that this file is in or, without its history, one that is made.  Gate runs
    are counted, not timed: how long a gate takes is the project's business.  A round takes some seconds.
    """
    batched, single = f"gate runs, {BRANCHES} branches, {RED} red, in batches", "one by one"
    own = "landing one branch, ms beside its git commands"
    with make_bench() as bench:
        top = _clone(bench)
        tips = _make_branches(top)
        samples = {
            name: [Spent(_count_runs(top, tips, batch) / 1000)] for name, batch in ((batched, None), (single, 1))
        }
        beside = interleave({own: lambda: _time_beside_git(top, tips)}, rounds)[own]
    return [compare(samples, batched, single, 0.8), compare_figure(own, middle(beside) * 1000, 50.0)]


def _clone(bench: Bench) -> Path:
    top, here = bench.path / "clone", Path(__file__).parents[2]
    words = ["git", "clone", "-q", "--no-local", str(here), str(top)]
    if subprocess.run(words, capture_output=True).returncode:
        top = bench.make_repository({f"file-{n}.txt": f"{n}\n" * 100 for n in range(500)})
    git(top, "checkout", "-q", "--detach")
    git(top, "branch", "-f", "main")
    for key in ("user.name", "user.email"):
        git(top, "config", key, "x@y")
    return top


def _make_branches(top: Path) -> Mapping[str, str]:
    """The tips of the branches, each with one file more than `main`."""
    red = set(random.Random(20261122).sample(range(BRANCHES), RED))
    lines = []
    for number in range(BRANCHES):
        text = "BAD" if number in red else "good"
        lines += [f"commit refs/heads/task-{number}", "committer x <x@y> 1767225600 +0000", "data 4", "work"]
        lines += ["from refs/heads/main^0", f"M 100644 inline landing-{number}.txt", f"data {len(text)}", text]
    fed = "\n".join(lines).encode() + b"\n"
    subprocess.run(["git", "fast-import", "--quiet"], cwd=top, input=fed, check=True)
    return {f"task-{number}": git(top, "rev-parse", f"task-{number}") for number in range(BRANCHES)}


def _ask(top: Path, target: str, tips: Mapping[str, str], **more: Any) -> LandRequest:
    git(top, "branch", "-f", target, "main")
    base = git(top, "rev-parse", "main")
    repository, _ = find_repository(top, base="main", worktree_dir=None, keep="never")
    return LandRequest(
        repository=repository,
        session_id="5e551011-0000-4000-8000-000000000000",
        folder=str(top.parent / "landing" / target),
        target=f"refs/heads/{target}",
        entries=tuple(Entry(task, tip, base, title=task) for task, tip in tips.items()),
        setups=(),
        **more,
    )


def _count_runs(top: Path, tips: Mapping[str, str], batch: int | None) -> int:
    report = land(_ask(top, f"batch-{batch}", tips, gates=Gates((GATE,), 60.0), batch=batch))
    landed = sum(fate.status == "landed" for fate in report.fates)
    assert landed == BRANCHES - RED, f"{landed} of {BRANCHES - RED} landed"
    return report.gate_runs


def _time_beside_git(top: Path, tips: Mapping[str, str]) -> float:
    """The seconds that the landing of one branch takes beside those that its git commands take."""
    task = next(iter(tips))
    request = _ask(top, f"alone-{time.monotonic_ns()}", {task: tips[task]}, gates=Gates((), None))
    with _timing_git() as spent:
        begun = time.perf_counter()
        report = land(request)
        seconds = time.perf_counter() - begun
    assert [fate.status for fate in report.fates] == ["landed"]
    return seconds - sum(spent)


@contextmanager
def _timing_git() -> Iterator[list[float]]:
    """Note what each git command of ours takes."""
    spent: list[float] = []
    run = Git.attempt

    def timed(self: Git, *words: Any, **more: Any) -> subprocess.CompletedProcess[bytes]:
        begun = time.perf_counter()
        try:
            return run(self, *words, **more)
        finally:
            spent.append(time.perf_counter() - begun)

    Git.attempt = timed  # type: ignore[method-assign]
    try:
        yield spent
    finally:
        Git.attempt = run  # type: ignore[method-assign]
