"""Environments of tasks: built once for the same inputs, copied for each, with paths of their own."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path

import orjson
import pytest
from calls import each_call, needs_calls, run_program
from conftest import eventually
from python_projects import lay_out_project, make_uv, make_wheels
from stages import git, make_repository_of, refs_are_files
from test_mirrors import Origin, git_at, upstream

from sessionrun.git.clone import make_excerpt
from sessionrun.git.repository import find_repository
from sessionrun.store.files import replace_file
from sessionrun.store.jobfiles import load_record
from sessionrun.store.trees import hold_entry
from sessionrun.worktrees import request as asked
from sessionrun.worktrees.environments import build as env_build
from sessionrun.worktrees.environments import inputs
from sessionrun.worktrees.environments.build import (
    ENV,
    LEFT,
    Manifest,
    copy_entry,
    find_digest,
    find_texts,
    load_manifest,
    make_environment,
)
from sessionrun.worktrees.environments.inputs import Way, collect_inputs, make_digest, order_ways
from sessionrun.worktrees.request import EnvironmentProblem, EnvironmentReport, EnvironmentRequest

__all__ = ["upstream"]

MAKER = """
import sys
from pathlib import Path
from sessionrun.worktrees.environments.build import make_first
folder = Path(sys.argv[1])
sys.exit(make_first(folder).problem)
"""


class Shop:
    """A cache, a uv without a network, and checkouts of one project for which environments are made.

    All have long names with spaces: no first line of a script could hold them, and a URL spells them otherwise.
    """

    def __init__(self, place: Path) -> None:
        self.wheels = make_wheels(place / "wheels")
        self.log = make_uv(place / "bin", self.wheels)
        self.root = Path(os.path.realpath(place)) / "with space" / ("x" * 120)
        self.cache = self.root / "cache"
        self.project = lay_out_project(self.root / "project")
        make_repository_of(self.project, {})

    def request(self, name: str, **changes: object) -> EnvironmentRequest:
        checkout = self.root / f"checkout-{name}"
        if not checkout.exists():
            shutil.copytree(self.project, checkout)
        words = {"top": str(checkout), "directory": str(checkout), "cache": str(self.cache), **changes}
        return EnvironmentRequest(**words)  # type: ignore[arg-type]

    def folder(self, name: str) -> Path:
        folder = self.root / "jobs" / name / "a1-r1-setup"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def make(self, name: str, **changes: object) -> EnvironmentReport:
        report = make_environment(self.request(name, **changes), self.folder(name))
        assert report == load_record(self.folder(name) / asked.REPORT, EnvironmentReport)
        return report

    def good(self, name: str, **changes: object) -> Path:
        """An environment that was made."""
        report = self.make(name, **changes)
        assert report.problem is None
        assert report.made.path is not None
        return Path(report.made.path)

    def builds(self) -> int:
        return self.log.read_text().count("venv")

    def entry(self) -> Path:
        (found,) = (path for path in self.cache.iterdir() if (path / asked.MANIFEST).exists())
        return found


def test_a_file_in_the_place_of_an_environment_stays(ready: Shop) -> None:
    """Beside a worktree that a person has moved it may be that person's; all else is made anew."""
    env = ready.good("t")
    shutil.rmtree(env)
    env.symlink_to(ready.project)
    assert ready.good("t").is_dir() and not env.is_symlink()
    shutil.rmtree(env)
    env.write_text("KEY=1")
    assert "is a file, where its environment has its place" in str(ready.make("t").problem)
    assert env.read_text() == "KEY=1"


@refs_are_files
@pytest.mark.slow
def test_a_task_that_spoils_git_settings_changes_no_digest(shop: Shop) -> None:
    """The tags before the commit decide, as git shows them with the settings of the launch."""
    top = Path(shop.request("a").top)
    (top / "setup.cfg").write_text("[options]\nsetup_requires = setuptools_scm\n")
    repository, _ = find_repository(top, base=None, worktree_dir=None, keep="never")
    request = shop.request("a", repository=repository, commit=repository.base_commit)
    before = find_digest(request, shop.folder("a"))
    (top / ".git" / "config").unlink()
    os.mkfifo(top / ".git" / "config")
    assert find_digest(request, shop.folder("a")) == before
    (top / ".git" / "refs" / "tags" / "v1").write_text(f"{repository.base_commit}\n")
    assert find_digest(request, shop.folder("a")) != before


@pytest.fixture(scope="module")
def open_shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    return Shop(tmp_path_factory.mktemp("shop"))


@pytest.fixture
def ready(open_shop: Shop, monkeypatch: pytest.MonkeyPatch) -> Shop:
    """One whose entry is made by the first test that asks: for tests that only copy it, each for other tasks."""
    monkeypatch.setenv("PATH", os.pathsep.join((str(open_shop.log.parent), os.environ["PATH"])))
    if not open_shop.builds():
        open_shop.good("first")
    return open_shop


@pytest.fixture
def shop(own_place: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    monkeypatch.setenv("PATH", os.pathsep.join((str(own_place / "bin"), os.environ["PATH"])))
    return Shop(own_place)


def say(program: Path, *words: str) -> str:
    """What a program of an environment prints, in an environment of no other variables."""
    done = subprocess.run([program, *words], capture_output=True, text=True, env={"LC_ALL": "C.UTF-8"}, check=True)
    return done.stdout.strip()


def site_of(env: Path) -> Path:
    (found,) = env.glob("lib/python*/site-packages")
    return found


def texts_with(path: str, *places: Path) -> list[Path]:
    """The files in which a path stands, but for compiled ones."""
    files = (file for place in places for file in place.rglob("*") if file.is_file() and not file.is_symlink())
    return [file for file in files if file.suffix != ".pyc" and path.encode() in file.read_bytes()]


@pytest.mark.slow
def test_each_checkout_has_its_own_of_one_build_and_what_is_written_there_changes_no_other(ready: Shop) -> None:
    built, copied = load_record(ready.folder("first") / asked.REPORT, EnvironmentReport), ready.make("one")
    one, two = Path(copied.made.path or ""), ready.good("two")
    for name, env in (("one", one), ("two", two)):
        checkout = ready.root / f"checkout-{name}"
        assert say(env / "bin" / "demo") == f"demo at {checkout}/src/demo/__init__.py"
        assert say(env / "bin" / "pytest") == f"pytest in {env}"
        url = json.loads((site_of(env) / "demo-1.0.dist-info" / "direct_url.json").read_text())["url"]
        assert url == f"file://{checkout}".replace(" ", "%20")
        assert texts_with(".new-", env, checkout) == texts_with(str(env), env) == []
    assert (one / "bin" / "python").is_symlink()
    assert stat.S_IMODE((one / "bin" / "demo").stat().st_mode) & 0o111
    assert (one / "lib64").is_symlink() == (ready.entry() / "env" / "lib64").is_symlink()
    for file in [path for path in one.rglob("*") if path.is_file() and not path.is_symlink()]:
        assert file.stat().st_nlink == 1
        with open(file, "r+b") as stream:
            stream.write(b"#changed#")
    for env in (two, ready.good("three")):
        assert say(env / "bin" / "pytest") == f"pytest in {env}"
    assert ready.builds() == 1
    assert (built.made.cached, copied.made.cached) == (False, True)
    assert built.made.digest == copied.made.digest and built.made.choice == "editable with [test]"
    assert copied.made.choice == built.made.choice
    assert built.packages == copied.packages == ("demo==1.0", "pytest==1.0")
    names = [step.name for step in built.made.steps]
    assert names == ["interpreter", "inputs", "checkout", "venv", "editable with [test]", "keep", "copy"]
    assert [step.name for step in copied.made.steps] == ["interpreter", "inputs", "copy"]
    log = (ready.folder("first") / asked.LOG).read_text()
    assert " -e '.[test]'\n" in log and " + demo==1.0 (from file:" in log, "what uv said"


@pytest.mark.slow
def test_what_the_install_leaves_in_the_checkout_comes_with_the_environment(ready: Shop) -> None:
    """And is not put over what is there, nor through a link that leads out."""
    outside = ready.root / "outside"
    outside.mkdir()
    names = ("left-one", "left-two", "left-three")
    one, two, three = (Path(ready.request(name).top, "src") for name in names)
    (two / "demo" / "_fast.so").write_bytes(b"mine")
    (three / "demo.egg-info").symlink_to(outside)
    for name in names:
        ready.good(name)
    assert (one / "demo" / "_fast.so").read_bytes() == b"\0compiled"
    assert (one / "demo.egg-info" / "PKG-INFO").read_text() == f"Name: demo\nfrom: {one.parent}\n"
    assert (two / "demo" / "_fast.so").read_bytes() == b"mine"
    assert (two / "demo.egg-info" / "PKG-INFO").exists()
    assert list(outside.iterdir()) == []
    assert ready.builds() == 1


@pytest.mark.slow
def test_an_entry_whose_manifest_does_not_hold_is_built_anew(shop: Shop) -> None:
    shop.good("one")
    entry = shop.entry()
    (entry / asked.MANIFEST).write_bytes((entry / asked.MANIFEST).read_bytes()[:-20])
    report = shop.make("two")
    assert (report.problem, report.made.cached, shop.builds()) == (None, False, 2)
    assert say(Path(report.made.path or "") / "bin" / "pytest") == f"pytest in {report.made.path}"
    assert not [path for path in shop.cache.iterdir() if path.name.startswith((".new", ".old"))]


@pytest.mark.slow
def test_an_entry_is_not_removed_while_it_is_copied(ready: Shop) -> None:
    folder = ready.folder("copies")
    replace_file(folder / asked.WISH, orjson.dumps(ready.request("copies")), durable=False)
    remove = f"""
import sys
from pathlib import Path
from sessionrun.store.trees import remove_unused
def look(event, args):
    if event == "subprocess.Popen" and args[1][0] == "cp":
        print("said:", remove_unused(Path({str(ready.entry())!r})))
sys.addaudithook(look)
"""
    done = run_program(remove + MAKER, str(folder))
    assert (done.returncode, done.stdout) == (0, "said: it is in use\n"), done.stderr
    assert ready.entry().is_dir()


@pytest.mark.slow
def test_one_process_builds_and_the_others_wait(shop: Shop) -> None:
    names = [f"t{number}" for number in range(4)]
    for name in names:
        shop.request(name)
    reports: dict[str, EnvironmentReport] = {}
    threads = [threading.Thread(target=lambda n=name: reports.update({n: shop.make(n)})) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert shop.builds() == 1
    assert [reports[name].problem for name in names] == [None] * 4
    assert sorted(reports[name].made.cached for name in names) == [False, True, True, True]


@pytest.mark.slow
def test_a_wait_for_another_process_is_said_and_has_an_end(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    digest = shop.make("one", require_cache=True).made.digest
    monkeypatch.setattr(env_build, "LIMIT_S", 0.3)
    with hold_entry(shop.cache / digest, None):
        report = shop.make("two")
    assert report.problem == f"{shop.cache}/{digest}.lock was held for 0.3 s by another process"
    assert "another process builds it" in capfd.readouterr().out


@pytest.mark.slow
def test_an_environment_without_pytest_says_so(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    (shop.wheels / "pytest-1.0-py3-none-any.whl").unlink()
    make_other = shop.project / "pyproject.toml"
    make_other.write_text(make_other.read_text().replace('test = ["pytest"]', "dev = []"))
    report = shop.make("one")
    assert report.made.choice == "editable with [dev]"
    assert "the project does not ask for pytest, and it cannot be had\n" in capsys.readouterr().out


def test_a_build_that_takes_too_long_is_ended_with_all_it_started(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = shop.root / "pid"
    (shop.log.parent / "uv").write_text(
        f"#!/bin/sh\n[ $1 = --version ] && echo 1 && exit\nsleep 600 & echo $! > '{mark}'\nsleep 600\n"
    )
    monkeypatch.setattr(env_build, "LIMIT_S", 1.0)
    report = shop.make("one")
    assert report.problem == "venv: not done in time, see environment.log"
    eventually(lambda: not Path(f"/proc/{mark.read_text().strip()}").exists())


def test_the_digest_is_of_what_an_install_reads(shop: Shop) -> None:
    def digest() -> str:
        return make_digest(collect_inputs(shop.project), python="3")

    first = digest()
    for name in ("src/demo/core.py", "README.md", "tests/test_a.py", "docs/x.txt"):
        (shop.project / name).parent.mkdir(exist_ok=True)
        (shop.project / name).write_text("1")
        assert digest() == first, name
    seen = {first}
    changes = [
        "pyproject.toml", "setup.py", "setup.cfg", "uv.lock", "poetry.lock", "Pipfile.lock", "requirements.txt",
        "requirements-dev.txt", "requirements/test.txt", "src/demo/fast.c",
    ]  # fmt: skip
    for name in changes:
        (shop.project / name).parent.mkdir(exist_ok=True)
        with open(shop.project / name, "a") as stream:
            stream.write("\n# more\n")
        assert digest() not in seen, name
        seen.add(digest())
    (shop.project / "src" / "second").mkdir()
    (shop.project / "src" / "second" / "__init__.py").write_text("")
    assert digest() not in seen
    assert make_digest({}, python="3.11") != make_digest({}, python="3.12")


def test_of_a_package_only_what_says_its_version_changes_the_digest(shop: Shop) -> None:
    module = shop.project / "src" / "demo" / "__init__.py"

    def digest(text: str) -> str:
        module.write_text(text)
        return make_digest(collect_inputs(shop.project))

    text = 'VERSION = "1"\nVERSION_INFO = (\n    1,\n)\n\ndef f(a,\n      b):\n    return a\nLAST = 2\n'
    first = digest(text)
    for old, new in (("return a", "x = 1\n\n    return x"), ("def f", "async def g"), ("LAST", "NEXT")):
        assert digest(text.replace(old, new)) == first, new
    for old, new in (('"1"', '"2"'), ("    1,", "    2,"), ("return a", "global __version__"), ("f(", "version(")):
        assert digest(text.replace(old, new)) != first, new


def test_inputs_that_are_no_files_do_not_hang_or_lead_astray(own_place: Path) -> None:
    (own_place / "requirements.txt").symlink_to("/dev/zero")
    os.mkfifo(own_place / "setup.py")
    found = collect_inputs(own_place)
    assert found["requirements.txt"] == "link /dev/zero"
    assert found["setup.py"].startswith("error")


def test_the_project_is_the_nearest_one(own_place: Path) -> None:
    inner = own_place / "services" / "api"
    (inner / "deep").mkdir(parents=True)
    assert inputs.find_project(inner / "deep", own_place) == own_place
    (inner / "requirements.txt").write_text("")
    assert inputs.find_project(inner / "deep", own_place) == inner


def test_what_names_a_place_of_the_build_is_found(tmp_path: Path) -> None:
    """Links are not followed, and what no program could read is not read."""
    folder, outside = tmp_path / "entry" / LEFT, tmp_path / "outside"
    for name in (ENV, LEFT):
        folder.with_name(name).mkdir(parents=True)
    contents = {"text": b"at /b/uild", "url": b"file:///b/uild", "so": b"\0/b/uild", "other": b"x"}
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    outside.write_text("/b/uild")
    (folder / "link").symlink_to(outside)
    os.mkfifo(folder / "waits.py")
    assert find_texts(tmp_path / "entry", "/b/uild") == (f"{LEFT}/text", f"{LEFT}/url")


@pytest.mark.parametrize("path", ["/a'b", '/a"b', "/a$b", "/a`b", "/a\\b", "/a\nb", "/a%b", "/a:b"])
def test_a_path_that_scripts_would_read_as_something_else_is_refused(tmp_path: Path, path: str) -> None:
    manifest = Manifest("/made", "pytest", (), ())
    for target, checkout in (("/a b/ü-1.2_x+y", path), (path, "/")):
        with pytest.raises(EnvironmentProblem, match="a character to which scripts or PATH give a meaning"):
            copy_entry(tmp_path, manifest, Path(target), Path(checkout))


OLD = {"setup.py": "setup(extras_require={'test': ['x']})", "setup.cfg": "[options.extras_require]\ntesting = y\n"}
EXTRAS = "[project]\n[project.optional-dependencies]\ndev=['x']\ndocs=['y']\n"


@pytest.mark.parametrize(
    ("texts", "requirements", "ways"),
    [
        ({}, [], "pytest"),
        ({}, ["requirements.txt"], "requirement files"),
        ({"pyproject.toml": "[tool.ruff]\n"}, [], "pytest"),
        ({"pyproject.toml": "[project]\n"}, [], "editable and pytest"),
        ({"pyproject.toml": "[project"}, [], "pytest"),
        (
            OLD,
            ["requirements-dev.txt", "requirements.txt"],
            "editable with [test,testing] | editable with test requirements | "
            "editable and pytest | requirement files",
        ),
        ({"pyproject.toml": EXTRAS, "uv.lock": ""}, [], "uv.lock | editable with [dev] | editable and pytest"),
    ],
)
def test_ways_in_their_order(texts: dict[str, str], requirements: list[str], ways: str) -> None:
    found = [*order_ways(texts, requirements)]
    assert " | ".join(way.name for way in found) == ways
    words = [word for way in found for word in way.words]
    assert all(words[words.index(name) - 1] == "-r" for name in requirements)


def test_dependency_groups_are_asked_for() -> None:
    groups = "[dependency-groups]\ndev = [{include-group = 'Test_ing'}, 'ruff']\ntest-ing = ['pytest']\n"
    first, *_ = order_ways({"pyproject.toml": f"[project]\n{groups}"}, [])
    assert first == Way("editable with dev", ("-e", ".", "--group", "dev"))


# --- a process that makes one is killed: nothing half made is trusted afterwards ---


@needs_calls
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["rename", "sync", "unlink"])
def test_killed_at_each_step_of_a_build_and_of_a_copy(shop: Shop, kind: str) -> None:
    def build(environ: Mapping[str, str]) -> str:
        name = f"t{shop.project.joinpath('pyproject.toml').stat().st_size}"
        with open(shop.project / "pyproject.toml", "a") as stream:
            stream.write(f"# {environ['CALLS_AT']}\n")  # another digest: it is built anew
        folder = shop.folder(name)
        (folder / asked.WISH).write_bytes(orjson.dumps(shop.request(name)))
        run_program(MAKER, str(folder), environ=environ)
        return name

    for _, name in each_call(build, shop.log.with_name("calls"), "maker", kind=kind):
        env = shop.good(name)
        checkout = shop.root / f"checkout-{name}"
        assert say(env / "bin" / "demo") == f"demo at {checkout}/src/demo/__init__.py"
        assert say(env / "bin" / "pytest") == f"pytest in {env}"
        assert texts_with(".new-", env, checkout) == []
        assert (site_of(env) / "pytest" / "__init__.py").exists()
        assert not [path.name for path in shop.cache.iterdir() if path.name.startswith((".new", ".old"))]
        for entry in shop.cache.iterdir():
            if len(entry.name) == 40:
                assert load_manifest(entry) is not None


# --- the version of a project that makes it from tags ---

SCM = {"pyproject.toml": 'requires = ["setuptools", "setuptools_scm[toml]>=6"]'}


@pytest.mark.parametrize(
    ("base", "history", "knows", "tag", "seen"),
    [
        (3, 0, "mirror", "v1", "v1-0"),
        (3, 0, "node", "v1", "v1-0"),
        (3, 0, "gone", "", None),
        (4, 1, "mirror", "v2", "v2-0"),
        (9, 1, "mirror", "v9", "v9-1"),
        (1, 1, "mirror", "", None),
    ],
)
def test_a_build_sees_the_last_tag_before_its_commit(
    upstream: Origin, tmp_path: Path, base: int, history: int, knows: str, tag: str, seen: str | None
) -> None:
    """One that is out of reach marks the first commit that is there; a later one never does, nor in the task."""
    top, build, commit = tmp_path / "top", tmp_path / "build", upstream.commits[base]
    make_excerpt(top / ".git", upstream.mirror, commit, history)
    git_at(top, "config", "core.bare", "false")
    git_at(top, "checkout", "-q", "--detach", commit)
    before = git_at(top, "for-each-ref")
    mirror = {"mirror": str(upstream.mirror), "gone": str(tmp_path / "gone"), "node": None}[knows]
    behind = inputs.find_tag_behind(str(upstream.mirror), commit) if knows == "node" else None
    request = EnvironmentRequest(str(top), str(top), str(tmp_path), commit=commit, mirror=mirror, tag=behind)
    assert inputs.find_tag(request, top, SCM) == tag
    assert inputs.find_tag(request, top, {"pyproject.toml": 'requires = ["setuptools"]'}) is None
    shutil.copytree(top, build, ignore=shutil.ignore_patterns(".git"))
    inputs.make_build_repository(request, top, build)
    described = git_at(build, *["describe", "--tags", "--long", "--dirty", "--always", "--match", "*[0-9]*"])
    assert described == (commit[:7] if seen is None else f"{seen}-g{commit[:7]}")
    assert git_at(top, "for-each-ref") == before


@pytest.mark.slow
def test_an_installer_works_in_a_repository_of_its_own(shop: Shop) -> None:
    """It can ask for the version, and changes nothing of the user's."""
    git(shop.project, "tag", "v1")
    top, program, seen = Path(shop.request("a").top), shop.log.with_name("uv"), shop.log.with_name("seen")
    asks = f"git describe --tags --long --dirty > {seen}; git tag planted; git config planted.key 1"
    program.write_text(program.read_text().replace("exec ", f'[ "$1" != pip ] || {{ {asks}; }}\nexec ', 1))
    repository, _ = find_repository(top, base=None, worktree_dir=shop.root / "w", keep="never")
    before = git(top, "config", "--list"), git(top, "for-each-ref")
    report = shop.make("a", repository=repository, commit=repository.base_commit, copy=False)
    assert report.problem is None and seen.read_text() == f"v1-0-g{repository.base_commit[:7]}\n"
    assert (git(top, "config", "--list"), git(top, "for-each-ref")) == before
