"""A check in a clean room: its files and environment, then the setup, then the commands."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import field, replace
from pathlib import Path
from typing import IO, Final

from sessionrun.checks.crossing import TITLES, State
from sessionrun.checks.requests import OBJECTS, ProveRequest
from sessionrun.checks.runners import RanTests, Tests, find_contradiction, find_runners, read_junit
from sessionrun.checks.running import run_counted, word_counts
from sessionrun.checks.testing import TEST_FILES, compile_patterns
from sessionrun.git.git import Git
from sessionrun.git.private import Fence
from sessionrun.git.rooms import open_clean_room
from sessionrun.model.checks import Counts
from sessionrun.model.frozen import frozen
from sessionrun.model.places import Place
from sessionrun.model.spec import AND_THEN
from sessionrun.store.files import make_directories, open_regular, read_regular
from sessionrun.store.jobfiles import read_tail
from sessionrun.walls.argv import Walls
from sessionrun.walls.shell import Shell
from sessionrun.worktrees.environments.build import provide_environment
from sessionrun.worktrees.request import EnvironmentProblem, drop_environment
from sessionrun.worktrees.site import bring_files

_TOLD_BYTES: Final = 4096
MAX_OUTPUT: Final = 32 * 1024 * 1024
"""Of the output of a check, so much is searched for the words of runners."""

JAVA_BUILDS: Final = ("pom.xml", "build.gradle", "build.gradle.kts")
JAVA_REPORTS: Final = ("**/target/surefire-reports/TEST-*.xml", "**/build/test-results/*/TEST-*.xml")


@frozen
class Ran:
    """How a check ended in a room: whether it passed; in one line what did not; the tests, if counted.

    `tests` says which ones, `canaries` which planted tests failed, by file.
    """

    passed: bool
    why: str | None = None
    counts: Counts | None = None
    tests: RanTests = RanTests()
    canaries: Mapping[str, bool] = field(default_factory=dict)


@frozen
class Trials:
    """Where the checks of one proof are done.

    `umask` is the user's; `build` are the walls around the making of an environment.
    `done` is how checks ended, by commit and time: trees may be equal.
    """

    fence: Fence
    request: ProveRequest
    folder: Path
    umask: int
    walls: Walls | None
    build: Walls | None
    done: dict[tuple[str, int], Ran] = field(default_factory=dict)

    @property
    def place(self) -> Place:
        """The task's, with the work."""
        assert self.request.workspace.place is not None
        return self.request.workspace.place

    def open_git(self) -> Git:
        """The repository's git; what it makes lies in `OBJECTS`, and goes with the proof."""
        common = Path(self.request.workspace.repository.common_dir)
        return self.fence.main().on_trial(self.folder / OBJECTS, common)

    def find(self, state: State, commit: str, time: int) -> Ran:
        """How the check ends on the commit of a state, for the time of that number, from 1; it is printed, too.

        Raises:
            SessionrunError, OSError: it cannot be done; that of the work is then one that fails.
        """
        try:
            if (commit, time) not in self.done:
                with self.open_room(commit) as room:
                    self.done[commit, time] = self._try(f"{state}{'' if time == 1 else f'-{time}'}", room)
            ran = self.done[commit, time]
        except EnvironmentProblem as error:
            if state != "result":
                raise
            ran = Ran(False, f"its environment: {error}")
        end = "passes" if ran.passed else f"fails: {ran.why}"
        print(f"{TITLES[state]}: {end}{'' if ran.counts is None else f' ({word_counts(ran.counts)})'}", flush=True)
        return ran

    def plant(self, state: State, commit: str, found: RanTests) -> Ran:
        """How the check ends with tests in place that have to fail; see `word_canary`."""
        with self.open_room(commit) as room:
            planted = plant(room / self.request.directory, found, self.request.prove.test_files)
            if not planted:
                return Ran(True)
            ran = self._try(f"{state}-canary", room, planted)
        end = f"{'passes' if ran.passed else 'fails'}, {sum(ran.canaries.values())} failed"
        print(f"{TITLES[state]}, with {len(planted)} planted tests that have to fail: {end}", flush=True)
        return ran

    @contextmanager
    def open_room(self, commit: str, *, is_bare: bool = False) -> Iterator[Path]:
        """A clean room with a commit, and with what the task's worktree was given beside that unless it `is_bare`.

        The environment that is made for it goes with it.
        """
        workspace = self.request.workspace
        with ExitStack() as stack:
            with self.as_user():
                clean = open_clean_room(self.fence, workspace.owner, commit, self.folder / OBJECTS)
                room = stack.enter_context(clean)
                if not is_bare:
                    bring_files(self.fence.main(), workspace, room, in_room=True)
            if self.request.environment is not None:
                stack.callback(drop_environment, Path(self.request.environment.top))
            yield room

    @contextmanager
    def as_user(self) -> Iterator[None]:
        """What lies in the session is for its user alone; a room is as the user would have it."""
        mine = os.umask(self.umask)
        try:
            yield
        finally:
            os.umask(mine)

    def _try(self, name: str, room: Path, planted: Mapping[str, str] | None = None) -> Ran:
        output = self.folder / f"{name}.txt"
        with output.open("wb") as stream, self.as_user():
            shell, why = self.begin(room, self.folder / f"{name}-environment", stream)
            junit = self.folder.absolute() / f"{name}-junit"
            ran = Ran(False, why) if shell is None else _run_all(self.request, shell, output, stream, junit)
        if planted is not None:
            return replace(ran, canaries=find_seen(planted, _read_from(output, 0), ran.tests.words))
        if not ran.passed:
            tell_end(output)
        return ran

    def begin(self, room: Path, folder: Path, stream: IO[bytes]) -> tuple[Shell | None, str | None]:
        """The shell of a room whose set-up is done, or in one line why there is none.

        `folder` gets the files of the making of its environment.

        Raises:
            EnvironmentProblem: it cannot be made.
        """
        request, outer = self.request, os.environ if self.walls is None else self.walls.env
        environ = {**outer, "SESSIONRUN_WORKTREE": str(room), "SESSIONRUN_BRANCH": ""}
        if request.environment is not None:
            make_directories(folder, 0o700)
            environ |= provide_environment(request.environment, folder, self.build)
        shell = Shell(room / request.directory, environ, self.walls)
        if not shell.directory.is_dir():
            return None, f"there is no directory {request.directory}"
        if request.setup:
            ended = shell.run(AND_THEN.join(request.setup), stream, request.setup_timeout_s)
            if ended.why is not None:
                return None, f"its setup: {ended.why}"
        return shell, None


def tell_end(output: Path) -> None:
    print(read_tail(output)[-_TOLD_BYTES:].decode("utf-8", "replace"), flush=True)


def _run_all(request: ProveRequest, shell: Shell, output: Path, stream: IO[bytes], junit: Path) -> Ran:
    why, counts, ran = None, None, RanTests()
    printed, begun = output.stat().st_size, _date_reports(shell.directory)
    for number, command in enumerate(request.check.commands, 1):
        place = junit.with_name(f"{junit.name}-{number}.xml")
        (_, why), own_tests = run_counted(shell, command, stream, request.check.timeout_s, place)
        now = _date_reports(shell.directory)
        java = [("surefire", read_junit(path)) for path in now if now[path] != begun.get(path)]
        reports = [(runner, report) for runner, report in (("pytest", own_tests), *java) if report is not None]
        for runner, report in reports:
            counts = report.counts if counts is None else counts.plus(report.counts)
            ran = ran.plus(_name(runner, report, shell.directory))
        if why is None and request.check.report == "read":
            why = find_contradiction([report for _, report in reports])
        if why is not None:
            why = f"{why} of: {' '.join(command.split())}"[:200]
            break
        begun = now
    ran = ran.plus(RanTests({}, find_runners(_read_from(output, printed))))
    return Ran(why is None, why, counts, ran)


def _date_reports(directory: Path) -> dict[Path, tuple[int, int]]:
    """The reports that builds of Java leave, each with its number on the disk and its time."""
    if not any((directory / name).exists() for name in JAVA_BUILDS):
        return {}
    found = (path for pattern in JAVA_REPORTS for path in directory.glob(pattern))
    return {path: (about.st_ino, about.st_mtime_ns) for path in found for about in (path.lstat(),)}


def _read_from(path: Path, begin: int) -> str:
    """What was printed from there on, without the beginning of what is very long."""
    with open(path, "rb", opener=open_regular) as stream:  # one that the work put in its place proves nothing
        stream.seek(max(begin, os.fstat(stream.fileno()).st_size - MAX_OUTPUT))
        return stream.read(MAX_OUTPUT).decode("utf-8", "replace")


def _name(runner: str, report: Tests, directory: Path) -> RanTests:
    """The tests of a report by ids as pytest prints them; that a module could not be loaded is no test."""
    places = {case.place: _find_file(case.place, directory) for case in report.cases if case.place}
    words = {f"{places[case.place]}::{case.name}": case.word for case in report.cases if case.place}
    return RanTests(words, frozenset((runner,)))


def _find_file(place: str, directory: Path) -> str:
    """``tests/test_a.py::TestB`` for ``tests.test_a.TestB``, if there is such a file."""
    parts = place.split(".")
    for end in range(len(parts), 0, -1):
        if (directory / (name := "/".join(parts[:end]) + ".py")).is_file():
            return "::".join([name, *parts[end:]])
    return place


MOST: Final = 40
"""So many files get one."""

_MAX_BYTES: Final = 4 * 1024 * 1024
_LEFT_OUT: Final = frozenset(
    (".git", "node_modules", "target", "build", "dist", "vendor", ".venv", "venv", ".tox")
)
_SUFFIXES: Final[Mapping[str, Collection[str]]] = {
    **dict.fromkeys(("pytest", "unittest"), (".py",)),
    **dict.fromkeys(("jest", "vitest", "node"), (".js", ".mjs", ".cjs", ".jsx", ".ts", ".mts", ".cts", ".tsx")),
    "cargo": (".rs",),
    "go": (".go",),
    "surefire": (".java",),
}
"""By runner, the files that its tests are in."""

_PYTHON: Final = '\n\ndef test_{0}():\n    raise AssertionError("canary")\n'
_UNITTEST: Final = (
    "\n\nimport unittest as _{0}\n\n\nclass Test_{0}(_{0}.TestCase):\n"
    '    def test_{0}(self):\n        self.fail("canary")\n'
)
_RUST: Final = (
    '\n#[cfg(test)]\nmod test_{0} {{\n    #[test]\n    fn fails() {{\n        panic!("canary");\n    }}\n}}\n'
)
_GO: Final = '\nfunc Test_{0}(t *testing.T) {{\n\tt.Fatal("canary")\n}}\n'
_SCRIPT: Final = '\n;{1}("test_{0}", () => {{\n  throw new Error("canary");\n}});\n'
_JAVA: Final = (
    '\n    @{1}.Test\n    public void test_{0}() {{\n        throw new AssertionError("canary");\n    }}\n'
)
_CALL: Final = re.compile(r"^\s*(test|it)\s*\(", re.MULTILINE)


def plant(directory: Path, found: RanTests, test_files: Collection[str]) -> dict[str, str]:
    """Write tests that fail into test files of the runners that were found; their names, by file."""
    suffixes = {suffix for runner in found.runners for suffix in _SUFFIXES.get(runner, ())}
    known = {name.partition("::")[0] for name in found.words}
    files = sorted(_list_files(directory, suffixes, test_files), key=lambda name: name not in known)
    planted: dict[str, str] = {}
    for name in files:
        path, token = directory / name, secrets.token_hex(8)
        text = read_regular(path, _MAX_BYTES).decode("utf-8", "surrogateescape")
        worded = word_canary(path.suffix, text, token)
        if worded is not None and not (
            path.suffix == ".go" and os.path.dirname(name) in map(os.path.dirname, planted)
        ):
            path.write_text(worded, encoding="utf-8", errors="surrogateescape", newline="")
            planted[name] = token
        if len(planted) == MOST:
            break
    return planted


def _list_files(directory: Path, suffixes: Collection[str], test_files: Collection[str]) -> Iterator[str]:
    tests = compile_patterns(test_files or TEST_FILES)
    for folder, folders, names in os.walk(directory):
        folders[:] = sorted(set(folders) - _LEFT_OUT)  # what is installed there may be large
        for path in (Path(folder, name) for name in sorted(names)):
            name = str(path.relative_to(directory))
            is_test = path.suffix in suffixes and (tests.match(name) or path.suffix == ".rs")
            if is_test and not path.is_symlink():
                yield name


def word_canary(suffix: str, text: str, token: str) -> str | None:
    """The text of a test file with one more test, which fails; None: it has no tests of a known kind."""
    if suffix == ".py":
        canary = _UNITTEST if "TestCase" in text else _PYTHON
        return text + canary.format(token) if "def test" in text else None
    if suffix == ".rs":
        return text + _RUST.format(token) if "#[test]" in text or "#[cfg(test)]" in text else None
    if suffix == ".go":
        return text + _GO.format(token) if '"testing"' in text and "func Test" in text else None
    if suffix == ".java":
        end = text.rfind("}")
        packages = [name for name in ("org.junit.jupiter.api", "org.junit") if f"import {name}." in text]
        return text[:end] + _JAVA.format(token, packages[0]) + text[end:] if packages else None
    call = _CALL.search(text)
    return None if call is None else text + _SCRIPT.format(token, call[1])


def find_seen(planted: Mapping[str, str], output: str, words: Mapping[str, str]) -> dict[str, bool]:
    """Whether each test that was planted ran and failed, by its file: by the reports, else by what was printed."""
    seen = {}
    for file, token in planted.items():
        ends = [word for name, word in words.items() if token in name]
        seen[file] = bool({"failed", "error"}.intersection(ends)) if ends else token in output
    return seen
