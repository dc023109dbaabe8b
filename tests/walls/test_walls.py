"""Walls around tasks without a session: words, variables, records, refusals; and programs of ours inside."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any
from unittest.mock import Mock

import orjson
import pytest
from conftest import Command, eventually
from stages import make_program
from test_store import make_spec
from test_workspaces import make_repository
from uv import find_uv_bin
from walled import bare_path, need_walls

from sessionrun.input.fields import as_sandbox
from sessionrun.model.asked import Sandbox
from sessionrun.model.keys import JobKey
from sessionrun.model.places import GitSettings, Place, Repository
from sessionrun.model.spec import CacheSite, Environment, TaskSpec
from sessionrun.session.shared import Site
from sessionrun.store.jobfiles import FOLDERS
from sessionrun.store.processes import scan
from sessionrun.store.session import SessionDir
from sessionrun.store.space import measure
from sessionrun.walls.argv import REPORT_FD, Walls, list_mounts
from sessionrun.walls.build import list_writable, raise_if_any
from sessionrun.walls.disk import DiskLook
from sessionrun.walls.enclosing import settle, wish_walls
from sessionrun.walls.groups import GROUPS
from sessionrun.walls.inner import CALLS
from sessionrun.walls.inside import Inside
from sessionrun.walls.policy import VARIABLES, filter_environment
from sessionrun.walls.programs import find_masks, find_named, find_python, is_device, make_walls
from sessionrun.walls.steps import find_filter
from sessionrun.walls.trial import build_trial, find_open_keys
from sessionrun.walls.wish import REPORT, Report, WallsWish, agree, parse_report
from sessionrun.worktrees.environments import build as env_build
from sessionrun.worktrees.environments.build import Builder, find_digest, make_environment
from sessionrun.worktrees.environments.inputs import find_programs
from sessionrun.worktrees.request import EnvironmentProblem, EnvironmentRequest, find_environment

PROJECT = Sandbox("project", devices=("/dev/fuse",))
STRICT = replace(PROJECT, policy="strict")
WALLS = Walls(
    bwrap="/usr/bin/bwrap",
    sandbox=PROJECT,
    as_root=False,
    home="/home/ann",
    python="/usr/bin/python3",
    tmp="/res/session-1/jobs/t/a1-walls/tmp",
    top="/home/ann/repo",
    common_dir="/home/ann/repo/.git",
    own="/res/session-1/jobs/t/a1-walls",
    worktree="/home/ann/trees/t",
    system_links=(("/bin", "usr/bin"),),
    shown=("/home/ann", "/srv/data"),
    masked=("/home/ann/.netrc",),
    hidden=("/home/ann/.ssh", "/home/ann/.docker", "/res", "/home/ann/trees"),
    binds=(("/res/state", "/home/ann/.claude"), ("/home/ann/.claude/.credentials.json", "/home/ann/.claude/c")),
    ro_binds=(
        ("/home/ann/.docker/bin", "/home/ann/.docker/bin"),
        ("/home/ann/.claude/settings.json", "/home/ann/.claude/settings.json"),
    ),
)

_ONE = frozenset(("--tmpfs", "--dev", "--proc", "--remount-ro", "--chdir", "--cap-drop"))
_TWO = frozenset(("--ro-bind", "--ro-bind-try", "--bind", "--dev-bind", "--symlink"))


def read_words(argv: Sequence[str]) -> list[tuple[str, ...]]:
    """The options of bubblewrap, each with its words, in their order; a word that is none fails the test."""
    found, rest = [], list(argv[1 : argv.index("--")])
    while rest:
        word = rest.pop(0)
        count = 1 if word in _ONE else 2 if word in _TWO else 0
        assert word.startswith("--"), word
        found.append((word, *rest[:count]))
        del rest[:count]
    return found


def places(options: Sequence[tuple[str, ...]]) -> dict[str, int]:
    """The last mount of each place inside: what counts."""
    return {option[-1]: number for number, option in enumerate(options) if option[0] in (*_TWO, "--tmpfs")}


@pytest.mark.parametrize("sandbox", [PROJECT, STRICT])
def test_a_mask_comes_after_all_that_is_shown_and_before_what_is_the_tasks_own(sandbox: Sandbox) -> None:
    options = read_words(replace(WALLS, sandbox=sandbox, reports=True).wrap("/home/ann/trees/t"))
    at = places(options)
    shown = [at[path] for path in ("/home/ann/repo", "/srv/data", "/home/ann/repo/.git")]
    masks = [at[path] for path in (*WALLS.masked, *WALLS.hidden)]
    own = [at[path] for path in ("/home/ann/trees/t", "/home/ann/trees/t/.git", "/home/ann/.claude")]
    assert max(shown) < min(masks) and max(masks) < min(own)
    assert at["/home/ann/repo"] < at["/home/ann/repo/.git"] < at["/home/ann/repo/.git/objects"]
    assert at["/home/ann/trees/t"] < at["/home/ann/trees/t/.git"]
    assert at["/home/ann/.docker"] < at["/home/ann/.docker/bin"]
    assert at["/home/ann/.claude"] < at["/home/ann/.claude/settings.json"]
    assert options[at["/home/ann/trees/t/.git"]][:2] == ("--ro-bind", f"{WALLS.own}/gitfile")
    assert options[at["/home/ann/repo/.git"]][0] == "--tmpfs", "nothing of the repository is there but objects"
    assert options[at["/home/ann/.netrc"]] == ("--ro-bind", "/dev/null", "/home/ann/.netrc")
    assert options[at["/home/ann/repo/.git/objects"]][0] == "--ro-bind"
    assert options[at["/run"]] == ("--tmpfs", "/run")


@pytest.mark.parametrize("sandbox", [PROJECT, STRICT])
@pytest.mark.parametrize(
    ("top", "common_dir"),
    [
        ("/home/ann/.docker/repo", "/home/ann/.docker/repo/.git"),
        ("/home/ann/.docker", "/home/ann/.docker/.git"),
        ("/home/ann", "/home/ann/.docker/git"),
    ],
)
def test_a_repository_in_a_masked_folder_can_be_used_and_its_neighbours_not_be_seen(
    sandbox: Sandbox, top: str, common_dir: str
) -> None:
    """Neither is the checkout seen if it is what is masked; then its git is."""
    at = places(read_words(replace(WALLS, sandbox=sandbox, top=top, common_dir=common_dir).wrap("/")))
    assert at["/home/ann"] < at["/home/ann/.docker"] < at[common_dir] < at["/home/ann/trees/t"]
    assert at["/home/ann/.docker"] <= at[top] or top == "/home/ann"


@pytest.mark.parametrize("home", ["/tmp/ann", "/", "/tmp", "/home/ann"])
def test_strict_has_an_empty_home_wherever_it_is(home: str) -> None:
    options = read_words(replace(WALLS, sandbox=STRICT, top=None, shown=(), home=home).wrap("/"))
    at = places(options)
    assert at["/tmp"] <= at.get(home, 0) or not home.startswith("/tmp")
    assert options[at["/tmp"]][0] == "--bind"
    assert (("--tmpfs", home) in options) is (home not in ("/", "/tmp"))


def test_nothing_can_be_written_but_what_is_the_tasks_own() -> None:
    options = read_words(WALLS.wrap("/"))
    writable = {option[2] for option in options if option[0] == "--bind"}
    assert writable == {"/tmp", "/run/git", "/home/ann/trees/t", "/home/ann/.claude", "/home/ann/.claude/c"}
    assert [option for option in options if option[0] == "--dev-bind"] == [
        ("--dev-bind", "/dev/fuse", "/dev/fuse")
    ]
    assert options[places(options)["/"]] == ("--ro-bind", "/", "/")
    without_view = read_words(replace(WALLS, own=None).wrap("/"))
    assert ("--ro-bind", "/home/ann/repo/.git", "/home/ann/repo/.git") in without_view


@pytest.mark.parametrize("sandbox", [PROJECT, STRICT])
@pytest.mark.parametrize("as_root", [False, True])
@pytest.mark.parametrize("dies", [False, True])
def test_the_program_has_no_capability_and_sees_no_process_outside(
    sandbox: Sandbox, *, as_root: bool, dies: bool
) -> None:
    argv = replace(WALLS, sandbox=sandbox, as_root=as_root, reports=True, outlives_us=not dies).wrap("/")
    flags = {option[0] for option in read_words(argv)}
    assert ("--cap-drop", "ALL") in read_words(argv)
    assert {"--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"} <= flags
    assert not flags & {"--setenv", "--as-pid-1", "--new-session", "--clearenv", "--unsetenv", "--share-net"}
    assert ("--die-with-parent" in flags) is dies, "a job outlives the keeper"
    assert ("--disable-userns" in flags) is (sandbox is STRICT and not as_root)
    assert ("--ro-bind-try", "/proc/sys", "/proc/sys") in read_words(argv) or not as_root
    assert argv[argv.index("--") + 1 :][:4] == ("/usr/bin/python3", "-I", "-S", "/run/inner.py")


SECRETS = {
    "SSH_AUTH_SOCK": "/run/agent",
    "AWS_PROFILE": "me",
    "GH_TOKEN": "key",
    "GIT_CONFIG_PARAMETERS": "'http.extraheader=key'",
    "LD_PRELOAD": "/home/ann/x.so",
    "ANTHROPIC_API_KEY": "key",
    "SESSIONRUN_JOB": "s/t/1/1/work",
    "LCXX": "1",
    "PATHS": "1",
}
PASSING = {**{name: f"of {name}" for name in VARIABLES}, "LC_ALL": "C", "LC_TIME": "C", "SESSIONRUN_DEPTH": "1"}


def test_variables_come_in_by_the_list_by_name_by_the_agents_prefix_and_as_the_jobs_own() -> None:
    inside = filter_environment({**SECRETS, **PASSING}, {"OWN": "1"})
    assert not set(inside) & set(SECRETS)
    assert inside == {**inside, **PASSING, "OWN": "1", "TMPDIR": "/tmp"}
    assert set(inside) - set(PASSING) == {"OWN", "TMPDIR", "XDG_CACHE_HOME", "npm_config_cache"}
    inside = filter_environment(SECRETS, {"GH_TOKEN": "own"}, prefixes=("ANTHROPIC_",), names=("AWS_PROFILE",))
    named = {name: inside[name] for name in SECRETS if name in inside}
    assert named == {"ANTHROPIC_API_KEY": "key", "AWS_PROFILE": "me", "GH_TOKEN": "own"}


def test_behind_a_proxy_all_names_of_proxies_lead_to_it() -> None:
    outer = {"HTTPS_PROXY": "http://ann:key@corp:1", "no_proxy": "corp", "NO_PROXY": "corp"}
    inside = filter_environment(outer, {}, proxied=True)
    names = [name for kind in ("HTTP", "HTTPS", "ALL") for name in (f"{kind}_PROXY", f"{kind}_PROXY".lower())]
    assert {inside[name] for name in names} == {"http://127.0.0.1:3128"}
    assert inside["NO_PROXY"] == inside["no_proxy"] == ""
    assert filter_environment(outer, {})["HTTPS_PROXY"] == "http://ann:key@corp:1"


@pytest.mark.parametrize(
    ("content", "report"),
    [
        (b"", Report()),
        (b"started\n", Report(started=True)),
        (b"started\nended 0 0.250000\n", Report(True, None, 0, 0.25)),
        (b"started\nfailed 2\n", Report(True, 2)),
        (b"ended 9 1\nended 0 1\n", Report(False, None, 9, 1.0)),
        (b"started\nended -1 1\n", Report(True)),
        (b"started\nended 0 nan\n", Report(True, None, 0, None)),
        (b"started\nended 0 -1\n", Report(True, None, 0, None)),
        (b"started\nended 0 inf\n", Report(True, None, 0, None)),
        (b"started\nended 0 200000000\n", Report(True, None, 0, None)),  # the journal could not be read again
        (b"started\nended 0 x\n", Report(True, None, 0, None)),
        (b"started\nended 0\nfailed\nfailed x\n", Report(True)),
        (b"\xff\xfe started\0\nended \xb2 1\n", Report()),
        (b"x" * 4096 + b"\nstarted\n", Report()),
    ],
)
def test_a_report_is_read_and_what_is_forged_passed_over(content: bytes, report: Report) -> None:
    assert parse_report(content) == report


def test_a_report_counts_only_if_it_says_what_was_seen() -> None:
    """A signal inside is 128 and its number outside."""
    for code in (0, 1, 127, 137, 143, 255):
        assert agree(code << 8, code << 8)
        assert not agree((code ^ 1) << 8, code << 8)
        assert not agree(code << 8, signal.SIGTERM), "bubblewrap itself was killed"
    for number in (1, 2, 3, 6, 9, 11, 15, 31):
        assert agree(number, (128 + number) << 8)
        assert agree(number | 0x80, (128 + number) << 8), "with a core dump"
        assert not agree(number, 1 << 8) and not agree(number, number)


@pytest.mark.parametrize(
    ("value", "sandbox"),
    [
        ("none", Sandbox("none")),
        ({"policy": "none", "network": None, "disk": 0}, Sandbox("none")),
        ("project", Sandbox("project")),
        ("strict", Sandbox("strict", "proxy")),
        ({"policy": "strict", "network": "none"}, Sandbox("strict", "none")),
        ({"policy": "project", "network": None}, Sandbox("project")),
        ({"policy": "project", "cpus": 1.5, "memory": "1M"}, Sandbox("project", memory=1 << 20, cpus=1.5)),
        ({"policy": "project", "cpus": 0, "memory": 0, "disk": 0}, Sandbox("project")),
        ({"policy": "project", "disk": "2G"}, Sandbox("project", disk=2 << 30)),
        ({"policy": "project", "network": ["Example.org"]}, Sandbox("project", "proxy", ("example.org",))),
        ({"policy": "strict", "network": ["*.a.b"]}, Sandbox("strict", "proxy", ("*.a.b",))),
        (
            {"policy": "project", "env": "A", "read": ["/a/../b"], "devices": "/dev/kvm", "processes": 3},
            Sandbox("project", env=("A",), read=("/b",), devices=("/dev/kvm",), processes=3),
        ),
    ],
)
def test_a_sandbox_is_a_policy_or_an_object(value: object, sandbox: Sandbox) -> None:
    assert as_sandbox(value) == sandbox


@pytest.mark.parametrize(
    "name",
    [
        *(".oci/config", ".pg_service.conf", ".terraformrc", ".curlrc", ".sqlite_history", ".lesshst", ".viminfo"),
        *(".config/rclone/rclone.conf", ".config/containers/auth.json", ".config/glab-cli/config.yml"),
        *(".config/sops/age/keys.txt", ".config/sessionrun/cluster/key.pem", ".local/share/uv/credentials/c"),
        *(".cache/huggingface/token", ".config/opera/x", ".var/app/org.mozilla.firefox/x"),
        "snap/firefox/common/.mozilla/firefox/p/logins.json",
    ],
)
def test_the_usual_places_of_keys_log_ins_profiles_and_histories_have_masks(own_place: Path, name: str) -> None:
    """Also those of what a variable could name elsewhere."""
    path = own_place / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    folders, files = find_masks(str(own_place), None, as_root=False)
    assert any(f"{path}/".startswith(f"{mask}/") for mask in (*folders, *files))


def test_only_devices_below_dev_and_folders_of_them_are_devices(own_place: Path) -> None:
    (own_place / "link").symlink_to("/dev/null")
    (own_place / "file").touch()
    with suppress(PermissionError):
        os.mknod(own_place / "node", stat.S_IFCHR | 0o600, os.makedev(1, 3))
    assert is_device("/dev/null") and is_device(str(own_place / "link"))
    folders = [entry.path for entry in os.scandir("/dev") if entry.is_dir(follow_symlinks=False)]
    holds = {path: {stat.S_IFMT(os.lstat(one).st_mode) for one in Path(path).rglob("*")} for path in folders}
    devices = {stat.S_IFCHR, stat.S_IFBLK}
    for path, kinds in holds.items():
        expected = bool(kinds & devices) and kinds <= {*devices, stat.S_IFDIR, stat.S_IFLNK}
        assert is_device(path) == expected, (path, kinds)
    others = ["/", "/dev", "/dev/", "/dev/..", "/dev/shm", "/dev/none", "/etc", "/etc/passwd", "/proc/self"]
    assert [path for path in (*others, *map(str, own_place.iterdir())) if is_device(path)] == [f"{own_place}/link"]


def test_where_variables_say_that_secrets_are(own_place: Path) -> None:
    kept, home = own_place / "kept", Path(os.environ["HOME"])
    (kept / "keys").mkdir(parents=True)
    for name in ("one", "two", "credentials"):
        (kept / name).write_text("key")
    (kept / "link").symlink_to("one")
    (home / "mine").write_text("key")
    agent = socket.socket(socket.AF_UNIX)
    agent.bind(str(kept / "agent"))
    environ = {
        "KUBECONFIG": f"{kept}/one:two:{kept}/none",
        "GNUPGHOME": f"{kept}/keys",
        "NETRC": f"{kept}/link",
        "CARGO_HOME": str(kept),
        "PGPASSFILE": "~/mine",
        "SSH_AUTH_SOCK": f"{kept}/agent",
        "DOCKER_CONFIG": "/",
        "AWS_CONFIG_FILE": "/etc/passwd",
        "GIT_ASKPASS": "/bin/sh",
        "CLOUDSDK_CONFIG": "/usr",
        "HISTFILE": "/dev/null",
        "PIP_CONFIG_FILE": "",
        "PASSWORD_STORE_DIR": str(kept / "keys"),
    }
    found = find_named(environ, ("PASSWORD_STORE_DIR",), str(kept))
    places = [
        *(str(kept / name) for name in ("one", "two", "keys", "one", "credentials", "agent")),
        str(home / "mine"),
    ]
    assert sorted(found) == sorted(places)
    agent.close()


def test_what_folders_take_of_the_disk(own_place: Path, make_deep: Callable[[Path, int], None]) -> None:
    (own_place / "a" / "deep").mkdir(parents=True)
    (own_place / "b").mkdir()
    content = os.urandom(1 << 20)
    (own_place / "a" / "deep" / "file").write_bytes(content)
    os.link(own_place / "a" / "deep" / "file", own_place / "b" / "name")  # another name takes no more
    (own_place / "b" / "link").symlink_to(own_place / "a")
    with open(own_place / "b" / "holes", "wb") as stream:
        stream.truncate(1 << 30)  # nor do holes
    folders = [str(own_place / name) for name in ("a", "b", "none")]
    assert 1 << 20 < measure(*folders) < 3 << 19
    (own_place / "b" / "more").write_bytes(content)
    assert measure(*folders, most=3 << 19) > 3 << 19
    make_deep(own_place / "b", 2500)
    assert measure(*folders, most=1 << 40) > 1 << 40, "what is in there cannot be said"
    assert measure(*folders) < 1 << 40


def test_what_another_task_has_written_about_a_job_breaks_no_other(own_place: Path) -> None:
    """Which folders it can write, and the name of its control groups."""
    listed = {
        "a number": b"[1]",
        "no path": b'["/\\u0000"]',
        "damaged": b"{",
        "full": orjson.dumps([str(own_place)]),
    }
    for name, content in listed.items():
        (own_place / name).mkdir()
        (own_place / name / FOLDERS).write_bytes(content)
    look, limited = DiskLook(), {name: (own_place / name, 4096) for name in (*listed, "not begun")}
    assert eventually(lambda: look.look(limited, time.monotonic())) == ["full"]
    (own_place / GROUPS).write_bytes(b"no\0name")
    settle(own_place)
    assert not (own_place / GROUPS).exists()


def test_a_report_is_open_inside_whatever_its_descriptor_was(own_place: Path) -> None:
    report = own_place / REPORT
    program = f"""
import os, pathlib
from sessionrun.walls.build import open_report
while os.open("/dev/null", os.O_RDONLY) < {REPORT_FD - 1}:
    pass
open_report(pathlib.Path({str(report)!r}))
os.execl("/bin/sh", "sh", "-c", "echo started >&{REPORT_FD}")
"""
    subprocess.run([sys.executable, "-c", program], check=True, cwd=Path(__file__).parents[2])
    assert report.read_text() == "started\n"


def wish_of(place: Path, top: Path, trees: Path, worktree: Path, **asked: Any) -> WallsWish:
    """The wish of a WORK job of a task whose session lies in a place."""
    repository = Repository(str(top), str(top / ".git"), str(trees), "main", "1")
    task = TaskSpec("t", ("true",), agent="shell", sandbox=Sandbox("project", disk=1), **asked)
    cache = CacheSite("/cache") if asked else None
    spec = replace(make_spec(), session_id="s", tasks=(task,), repository=repository, cache=cache)
    site = Site(SessionDir(place / "session-s"), lambda: spec)
    wish = wish_walls(site, task, JobKey("t", 1, 1, "work", 1), Place(worktree=str(worktree), branch="t"))
    assert wish is not None
    return wish


def test_all_that_a_task_can_write_counts(own_place: Path) -> None:
    (own_place / "repo").mkdir()
    worktree = own_place / "trees" / "t"
    jobs = own_place / "session-s" / "jobs" / "t"
    jobs.parents[1].mkdir()
    work = wish_of(own_place, own_place / "repo", worktree.parent, worktree, environment=Environment())
    all_phases = {str(jobs / "a1-walls"), str(jobs / "walls-state"), str(jobs / "agent"), str(worktree)}
    assert set(list_writable(work)) == {*all_phases, find_environment(worktree)}
    assert list_writable(replace(work, room="/room")) == [*list_writable(work), "/room"]


@pytest.mark.parametrize("layout", ["around the checkout", "inside of it", "beside it"])
def test_neighbours_are_hidden_wherever_worktrees_are(own_place: Path, layout: str) -> None:
    """Worktrees, environments and rooms, also where they cannot be hidden as a whole, and the books of a node."""
    need_walls()
    top = own_place / "home" / "repo"
    folder = top / "worktrees" if layout == "inside of it" else top.parent
    usual = folder if layout == "around the checkout" else own_place / "trees"
    mine, other = folder / "w1", folder / "w2"
    rooms = [folder / name for name in (".env-w2", ".room-1", ".env-room-1", ".gate-1-2")]
    books = own_place / "books"
    for path in (top / ".git", mine, other, *rooms, own_place / "session-s", books):
        path.mkdir(parents=True)
    for tree in (mine, other):
        (tree / ".git").write_text("gitdir: x")
    walls = raise_if_any(replace(wish_of(own_place, top, usual, mine), hidden=(str(books),)))
    assert walls is not None
    assert {str(path) for path in (other, *rooms, books)} <= {*walls.hidden}
    at = places(list_mounts(walls))
    assert at[str(top)] < at[str(other)] < at[str(mine)]


# --- what the command refuses, before anything is there ---


@pytest.fixture
def repository(own_place: Path) -> Path:
    top = own_place / "repo"
    top.mkdir()
    make_repository(top)
    return top


def test_a_preview_shows_which_walls_a_task_would_have(repository: Path) -> None:
    strict = {"policy": "strict", "network": ["a.example.org"]}
    plan = [{"id": "t", "prompt": "true", "sandbox": strict}, {"id": "u", "prompt": "true", "sandbox": "none"}]
    run = Command(repository, repository.parent / "results")
    words = ("--dry-run", "--worktree", "--agent", "shell", "--sandbox", "project")
    assert "    sandbox: strict, network proxy, a.example.org\n" in run(*words, stdin=json.dumps(plan)).stdout
    tasks = json.loads(run(*words, "--json", stdin=json.dumps([*plan, "x"])).stdout)["tasks"]
    shown = [(task["sandbox"], task["network"]) for task in tasks]
    assert shown == [("strict", "proxy, a.example.org"), (None, None), ("project", "allow")]


@pytest.mark.parametrize("programs", [("claude", "bwrap"), ("claude",)])
def test_a_launch_says_that_agents_could_have_walls(repository: Path, programs: tuple[str, ...]) -> None:
    path = bare_path(repository.parent / "programs")
    for name in programs:
        make_program(Path(path, name), "exit 1")
    results = repository.parent / "results"
    words = ("--results-dir", str(results), "--worktree", "--agent", "claude", "-")
    # claude is not signed in, so nothing starts
    env = {"PATH": path, "HOME": str(repository.parent), "IS_SANDBOX": "1"}
    said = Command(repository, results)(*words, env=env, stdin='["do it"]').stderr.splitlines()
    walls = "walls: none (--sandbox project builds them: bubblewrap is installed)"
    assert (walls in said) is ("bwrap" in programs)
    assert "not signed in" in said[-1] and not results.exists()


def test_a_bubblewrap_that_cannot_build_walls_starts_nothing(repository: Path) -> None:
    line = "setting up uid map: Permission denied"
    path = bare_path(repository.parent / "programs")
    make_program(Path(path, "bwrap"), f'echo "bwrap: {line}" >&2\nexit 1')
    results, words = repository.parent / "results", ("--worktree", "--agent", "shell", "--sandbox", "project")
    done = Command(repository, results)("-q", *words, "-p", "true", env={"PATH": path})
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"sessionrun: error: sandbox project: bwrap cannot build walls here: {line}\n"
    assert not results.exists() and not (repository.parent / "repo-worktrees").exists()


@pytest.mark.parametrize(
    ("name", "command", "refused"),
    [
        ("filter.dat.clean", "python3 -m nbstripout", True),
        ("filter.dat.clean", "unclosed '", True),
        ("filter.dat.clean", "cat README", True),
        ("filter.dat.clean", "git-lfs clean -- %f", False),
        ("filter.dat.clean", "git lfs clean -- %f", False),
        ("filter.dat.clean", "cat", False),
        ("merge.dat.driver", "{top}/tools/merge.sh %A", True),
        ("merge.dat.driver", "tools/merge.sh %A", True),
        ("merge.dat.driver", "/usr/bin/nbmerge %A", False),
    ],
)
def test_walls_are_refused_with_a_filter_that_could_run_what_a_task_planted(
    repository: Path, name: str, command: str, refused: bool
) -> None:
    (repository / "README").touch()
    (repository / "tools").mkdir()
    (repository / "tools" / "merge.sh").touch()
    settings = GitSettings(((name, command.replace("{top}", str(repository))),), "", "", "")
    made = Repository(str(repository), "", "main", "", "", settings=settings)
    assert find_filter(made) == (name if refused else None)


# --- what walls hide of the kernel ---


@pytest.mark.parametrize("policy", ["project", "strict"])
def test_the_kernels_keys_of_the_caller_are_closed(policy: Any) -> None:
    need_walls()
    calls = CALLS.get(os.uname().machine)
    if calls is None:
        pytest.skip("the numbers of these system calls are not known here")
    add_key = calls[0][1]
    asks = (
        "import ctypes, os, sys\nlibrary = ctypes.CDLL(None, use_errno=True)\n"
        f"key = library.syscall({add_key + 2}, 10, -3, b'user', b'sessionrun-test', 0)\n"
    )
    look = f"{asks}print(key, os.strerror(ctypes.get_errno()))\n"
    words = build_trial(policy, program=(find_python()[0], "-c", look))
    caller = (
        f"import ctypes, os\nctypes.CDLL(None).syscall({add_key + 2}, 1, None)\n"
        f"assert ctypes.CDLL(None).syscall({add_key}, b'user', b'sessionrun-test', b'x', 1, -3) > 0\n"
        f"{asks}assert key > 0\nos.execv({words[0]!r}, {words!r})\n"
    )
    done = subprocess.run([sys.executable, "-c", caller], capture_output=True, text=True, timeout=60)
    assert done.stdout == f"-1 {os.strerror(errno.ENOSYS)}\n", done.stderr
    assert find_open_keys() is None


# --- programs of ours one after another in the same walls: what one leaves is dead before the next one ---


LIMIT_S = 60.0
Run = Callable[..., subprocess.CompletedProcess[bytes]]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    need_walls()
    return tmp_path


@pytest.fixture
def inside(place: Path) -> Inside:
    return Inside(replace(make_walls(Sandbox("strict", "none"), ""), binds=((str(place), str(place)),)), place)


@pytest.fixture
def run(inside: Inside, place: Path) -> Run:
    def call(*argv: str, **more: object) -> subprocess.CompletedProcess[bytes]:
        words = {"environ": {"PATH": os.environ["PATH"]}, "limit_s": LIMIT_S, "cwd": place, **more}
        return inside.run(argv, **words)  # type: ignore[arg-type]

    return call


def test_a_program_reads_prints_and_ends_as_anywhere(run: Run, place: Path) -> None:
    environ = {"A": "b", "PATH": os.environ["PATH"]}
    done = run("sh", "-c", "cat; pwd; echo $A >&2; exit 3", stdin=b"in\0put\n", environ=environ)
    assert (done.returncode, done.stdout, done.stderr) == (3, f"in\0put\n{place}\n".encode(), b"b\n")
    with (place / "out").open("w+b") as stream:
        assert run("echo", "to a file", stdout=stream.fileno()).stdout == b""
    assert (place / "out").read_bytes() == b"to a file\n"
    with (place / "out").open("rb") as stream:
        assert run("cat", stdin=stream.fileno()).stdout == b"to a file\n"
    assert run("sh", "-c", "kill -9 $$").returncode == 128 + 9
    assert run("true", cwd=place / "none").returncode == run("not-there").returncode == 127
    assert run("not-there").stderr == b"not-there: No such file or directory\n"
    big = b"x" * 300_000
    assert run("cat", stdin=big).stdout == big
    with pytest.raises(ValueError, match="null byte"):
        run("echo", "a\0b=c")


def test_what_a_program_leaves_is_dead_before_the_next_one(run: Run, place: Path) -> None:
    """However it hides: else it could change a file between two looks of ours at it."""
    grow = "while :; do echo x >> grown; done"
    hide = f"setsid sh -c '(trap \"\" TERM; {grow}) & {grow}' &"
    run("sh", "-c", f"for i in 1 2 3; do {hide} done; until [ -s grown ]; do :; done")
    size = (place / "grown").stat().st_size
    names = "for p in 1 2 /proc/[0-9]*; do cat /proc/${p#/proc/}/comm; done"  # a list has 10 before 2
    alive = run("sh", "-c", names).stdout.split()
    assert alive[0] == b"bwrap" and alive[1].startswith(b"python") and {*alive[2:]} <= {*alive[:2], b"sh", b"cat"}
    assert (place / "grown").stat().st_size == size


def test_whatever_a_program_does_to_what_asks_for_it_others_run(run: Run) -> None:
    """It reads nothing of that; its time may be up, or it ends that, or lowers its limits: only one run fails."""
    done = run("sh", "-c", "readlink /proc/2/fd/*; cat /proc/2/environ; head -c 1 /proc/2/mem; echo done")
    assert done.stdout == b"done\n" and b"Permission denied" in done.stderr
    with pytest.raises(subprocess.TimeoutExpired):
        run("sh", "-c", "echo > begun; sleep 600", limit_s=1.0)
    assert run("echo", "next").stdout == b"next\n"
    assert run("sh", "-c", "echo said > /proc/1/fd/2; kill -9 2; sleep 600").returncode == 128 + 9
    done = run("false")
    assert (done.returncode, done.stderr) == (1, b""), "what bubblewrap says is of the program that was asked for"
    # limits of its user's processes: then not all files of the next one would come in, and output would be lost
    script = "import resource; resource.prlimit(2, resource.RLIMIT_NOFILE, (5, 4096))"
    assert run(find_python()[0], "-I", "-c", script).returncode == 0
    assert [run("echo", "some").returncode for _ in range(2)] == [1, 0]


def test_walls_that_ended_meanwhile_are_built_anew(run: Run, inside: Inside) -> None:
    """A thread that has ended takes with it what it started."""
    thread = Thread(target=run, args=("true",))
    thread.start()
    thread.join()
    assert inside._running is not None
    inside._running[0].wait(LIMIT_S)
    assert run("echo", "next").stdout == b"next\n"


def test_they_are_built_once_and_go_with_what_had_them(place: Path) -> None:
    """Or it is said why they cannot be built."""
    broken = replace(make_walls(Sandbox("strict", "none"), ""), binds=((str(place / "none"), str(place)),))
    done = Inside(broken, place).run(["true"], environ={}, limit_s=LIMIT_S, cwd=place)
    assert done.returncode == 1 and b"none: No such file or directory" in done.stderr
    inside = Inside(make_walls(Sandbox("strict", "none"), ""), place)
    before = {*scan().children.get(os.getpid(), ())}
    ask = ["readlink", "/proc/self/ns/mnt"]
    names = {inside.run(ask, environ={}, limit_s=LIMIT_S, cwd=Path("/")).stdout for _ in range(3)}
    assert len(names) == len({*scan().children[os.getpid()]} - before) == 1
    del inside
    assert {*scan().children.get(os.getpid(), ())} == before


# --- environments of walled tasks ---


def test_no_program_of_the_checkout_is_asked_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_program(tmp_path / "bin" / "python", f"touch {tmp_path}/ran")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(EnvironmentProblem):
        find_programs("bin/python", {"PATH": os.defpath}, "/")
    assert not (tmp_path / "ran").exists()
    path = os.pathsep.join((os.path.dirname(find_uv_bin()), os.environ["PATH"]))
    assert find_programs(None, {"PATH": path}, "/").about


def test_an_entry_that_is_gone_is_not_made_anew_from_the_work_of_a_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be removed between the look and the copy."""
    (tmp_path / "top").mkdir()
    (tmp_path / "top" / "setup.py").write_text("import tools.helper\n")
    top = str(tmp_path / "top")
    request = EnvironmentRequest(top, top, str(tmp_path / "cache"))
    path = os.pathsep.join((os.path.dirname(find_uv_bin()), os.environ["PATH"]))
    walls = Walls("", Sandbox("project"), as_root=False, home="", python="", tmp="", env={"PATH": path})
    usual = find_digest(replace(request, pristine=True), tmp_path, walls)
    built: list[str] = []

    def build(builder: Builder) -> None:
        built.append(builder.folder.name)
        raise EnvironmentProblem("not now")

    monkeypatch.setattr(env_build, "load_manifest", lambda entry: Mock() if entry.name == usual else None)
    monkeypatch.setattr(Builder, "build", build)
    assert make_environment(request, tmp_path, walls).problem == "not now"
    assert len(built) == 1 and usual not in built[0]
