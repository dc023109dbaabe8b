"""What an agent has inside of walls in the place of its folders, and what becomes of its log-ins.

The last tests run programs with the names of agents, which renew a log-in the way in which the real ones do:
`codex` renames a new file over it, `claude` too, and writes into the old one if that fails, `gemini` writes.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import orjson
import pytest
from conftest import Command
from stages import make_program
from test_prove import make_repository
from test_supervisor import instead
from walled import need_walls

from sessionrun.agents import table
from sessionrun.agents.programs import PROGRAMS, find_program, find_seed, find_state_folder
from sessionrun.model.asked import Policy, Sandbox
from sessionrun.walls import agent_state
from sessionrun.walls.agent_state import add_state, copy_logins, locate_state, take_back
from sessionrun.walls.argv import Walls
from sessionrun.walls.programs import find_folders, find_masks, list_rules
from sessionrun.walls.proxy.request import make_rule

OLD: Final = b'{"token": "old", "account": "a"}'
NEW: Final = b'{"token": "new", "renewed": 1}'
NEWER: Final = b'{"token": "newer", "account": "a"}'


@pytest.fixture
def home(own_place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home directory in which no variable leads elsewhere."""
    for state in PROGRAMS.values():
        monkeypatch.delenv(state.folder_variable or "NONE", raising=False)
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    return own_place.parent / "home"


def test_all_agents_have_a_state() -> None:
    for name in table.FIRST_FOUND:
        state = PROGRAMS[name]
        assert state.hosts and state.prefixes, name
        inside = (*state.credentials, *(name for _, settings in state.folders for name in settings))
        assert not any("/" in name for name in inside), "a mount needs a place in the task's folder"
        assert not set(state.settings) & set(state.credentials)
    assert {name for name, state in PROGRAMS.items() if state.renames} == {"codex", "qwen"}


@pytest.mark.parametrize(
    ("agent", "variable", "value", "folder"),
    [
        ("claude", "CLAUDE_CONFIG_DIR", "/srv/c/", "/srv/c"),
        ("codex", "CODEX_HOME", "/srv/c", "/srv/c"),
        ("qwen", "QWEN_HOME", "/srv/q", "/srv/q"),
        ("gemini", "GEMINI_CLI_HOME", "/srv", "/srv/.gemini"),
        ("opencode", "XDG_DATA_HOME", "/srv", "/srv/opencode"),
        ("aider", "AIDER_HOME", "/srv", None),
    ],
)
def test_variables_that_name_a_folder(
    home: Path, monkeypatch: pytest.MonkeyPatch, agent: str, variable: str, value: str, folder: str | None
) -> None:
    state = PROGRAMS[agent]
    usual = str(home / state.folder)
    assert find_state_folder(state, str(home), os.environ) == usual
    monkeypatch.setenv(variable, value)
    assert find_state_folder(state, str(home), os.environ) == (folder or usual)
    named = locate_state(str(home), state, os.environ)
    if state.folder_variable is not None:
        assert named[variable] == value.rstrip("/")
        assert find_state_folder(state, str(home), {variable: "/other"}).startswith("/other")
    else:
        assert variable not in named


def test_the_seed_lies_in_the_folder_that_a_variable_names_if_it_names_the_usual_one_too(home: Path) -> None:
    found = {
        named: find_seed(PROGRAMS["claude"], str(home), {"CLAUDE_CONFIG_DIR": named} if named else {})
        for named in ("", "/other", str(home / ".claude"))
    }
    assert found == {named: f"{named or home}/.claude.json" for named in found}


def test_masks_cover_other_agents(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (".claude", ".codex", ".config/opencode", ".local/share/opencode", "x/opencode", "c"):
        (home / name).mkdir(parents=True)
    for name in (".claude.json", ".env", ".aider.conf.yml"):
        (home / name).touch()
    monkeypatch.setenv("XDG_DATA_HOME", str(home / "x"))
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(home / "c"))
    folders, files = find_masks(str(home), PROGRAMS["codex"], as_root=False)
    assert set(folders) >= {str(home / name) for name in (".codex", "c", ".config/opencode", "x/opencode")}
    assert set(files) == {str(home / name) for name in (".claude.json", ".env", ".aider.conf.yml")}
    folders, files = find_masks(str(home), PROGRAMS["aider"], as_root=False)
    assert set(files) == {str(home / ".claude.json")}
    assert str(home / ".claude.json") in find_masks(str(home), PROGRAMS["claude"], as_root=False)[1]


@pytest.mark.parametrize(
    ("program", "leads_to", "shown"),
    [
        (".nvm/v22/bin/claude", ".nvm/v22/lib/node_modules/c/cli.js", {".nvm/v22", ".nvm/v22/lib/node_modules"}),
        # what pip has installed there needs the library beside it
        (".local/bin/aider", None, {".local/bin", ".local/lib"}),
        (
            ".local/bin/claude",
            ".local/share/claude/versions/2.1",
            {".local/bin", ".local/lib", ".local/share/claude/versions"},
        ),
        (".local/bin/aider", "tools/aider/bin/aider", {".local/bin", ".local/lib", "tools/aider"}),
        (".pyenv/shims/aider", None, {".pyenv"}),
        (".volta/bin/claude", ".volta/bin/volta-shim", {".volta"}),
        ("bin/codex", None, {"bin"}),
        ("codex", None, {"codex"}),
    ],
)
def test_what_is_shown_of_a_program(home: Path, program: str, leads_to: str | None, shown: set[str]) -> None:
    for name in (".nvm/v22/lib", "tools/aider/lib", ".volta/tools/image", ".local/lib", ".local/share"):
        (home / name).mkdir(parents=True)
    real = home / (leads_to or program)
    for path in (real, home / program):
        path.parent.mkdir(parents=True, exist_ok=True)
    real.touch()
    if leads_to:
        (home / program).symlink_to(real)
    found = {os.path.relpath(folder, home) for folder in find_folders(str(home / program))}
    assert shown <= found and found - shown <= {os.path.dirname(leads_to or "")}
    assert find_folders("/bin/sh") == ()
    assert find_program(program) is PROGRAMS.get(os.path.basename(program)) and find_program("/bin/sh") is None


def make_walls(home: Path, place: Path, agent: str, policy: Policy = "project") -> Walls:
    """Walls with the state of an agent; what is the task's own lies in a place."""
    walls = Walls("bwrap", Sandbox(policy), as_root=False, home=str(home), python="p", tmp="/t")
    return add_state(walls, PROGRAMS[agent], place / "own", os.environ, record=place / "record")


def test_an_agent_that_was_never_used_has_an_empty_folder(home: Path, tmp_path: Path) -> None:
    for name, state in PROGRAMS.items():
        walls = make_walls(home, tmp_path / name, name)
        inside = [place for _, place in walls.binds]
        assert inside == [str(home / folder) for folder, _ in state.folders]
        assert all(os.path.isdir(place) for place in inside), "a mount needs a place"
        assert walls.ro_binds == ()
    assert list(tmp_path.rglob("record")) == []


def test_settings_are_read_only_and_log_ins_shared(home: Path, tmp_path: Path) -> None:
    users = home / ".claude"
    users.mkdir()
    for name in ("settings.json", ".credentials.json", "history.jsonl"):
        (users / name).write_bytes(OLD)
    (home / "dotfiles").mkdir()
    (users / "CLAUDE.md").symlink_to(home / "dotfiles")
    (home / ".claude.json").write_text('{"primaryApiKey": "k", "projects": {"/secret": {}}, "mcpServers": {}}')
    walls = make_walls(home, tmp_path, "claude")
    key, settings, notes = (str(users / name) for name in (".credentials.json", "settings.json", "CLAUDE.md"))
    assert walls.binds == ((str(tmp_path / "own"), str(users)), (key, key))
    assert walls.ro_binds == ((settings, settings), (str(home / "dotfiles"), notes))
    seed = tmp_path / "own" / ".claude.json"
    assert json.loads(seed.read_text()) == {"primaryApiKey": "k", "mcpServers": {}}
    seed.write_text("{}")  # what the agent wrote stays for the next round
    make_walls(home, tmp_path, "claude")
    assert seed.read_text() == "{}"


def test_a_folder_that_is_a_link_is_mounted_where_it_leads(home: Path, tmp_path: Path) -> None:
    (home / "dotfiles").mkdir()
    (home / ".codex").symlink_to(home / "dotfiles")
    walls = make_walls(home, tmp_path, "codex")
    assert walls.binds == ((str(tmp_path / "own"), str(home / "dotfiles")),)
    walls = make_walls(home, tmp_path, "codex", "strict")  # here the link is not there
    assert walls.binds == ((str(tmp_path / "own"), str(home / ".codex")),)


def test_folders_of_opencode_and_files_of_aider(home: Path, tmp_path: Path) -> None:
    (home / ".config/opencode/agents").mkdir(parents=True)
    (home / ".config/opencode/opencode.json").touch()
    walls = make_walls(home, tmp_path, "opencode")
    assert [place for place, _ in walls.binds] == [str(tmp_path / "own"), str(tmp_path / "own+1")]
    config = home / ".config/opencode"
    assert walls.ro_binds == tuple((str(config / name),) * 2 for name in ("agents", "opencode.json"))
    (home / ".aider.conf.yml").touch()
    (config / "opencode.json").write_text('{"options": {"baseURL": "http://10.0.0.1:8000/v1"}}')
    (home / ".aider.conf.yml").write_text("openai-api-base: http://10.0.0.2:8000/v1\n")
    for agent, host in (("opencode", "10.0.0.1"), ("aider", "10.0.0.2")):
        assert make_rule(host, [8000], private=True) in list_rules((), PROGRAMS[agent], {}, ())
    assert make_walls(home, tmp_path, "aider").ro_binds == ()
    assert make_walls(home, tmp_path, "aider", "strict").ro_binds == ((str(home / ".aider.conf.yml"),) * 2,)


@pytest.fixture
def login(tmp_path: Path) -> tuple[Path, Path, Path]:
    """The user's log-in, a job's copy of it, and the record."""
    (tmp_path / "users").mkdir()
    (tmp_path / "own").mkdir()
    users, copy, record = tmp_path / "users/auth.json", tmp_path / "own/auth.json", tmp_path / "record"
    users.write_bytes(OLD)
    copy_logins(str(users.parent), copy.parent, ["auth.json"], record)
    assert copy.read_bytes() == OLD
    return users, copy, record


def test_a_renewed_log_in_is_taken_back(login: tuple[Path, Path, Path]) -> None:
    """The file of the agent's own lock stays: one that waits for it would else hold nothing."""
    users, copy, record = login
    lock = Path(f"{users}.lock")
    lock.write_text("of codex")
    lock.chmod(0o644)
    before = lock.stat().st_ino
    copy.write_bytes(NEW)
    kept = record.read_bytes()
    take_back(record)
    assert users.read_bytes() == NEW and users.stat().st_mode & 0o777 == 0o600
    assert (lock.stat().st_ino, lock.read_text(), lock.stat().st_mode & 0o777) == (before, "of codex", 0o644)
    assert not record.exists()
    # as if this process had been killed before the record was gone, and the user had renewed
    users.write_bytes(NEWER)
    record.write_bytes(kept)
    take_back(record)
    assert users.read_bytes() == NEWER


def test_where_the_users_file_cannot_be_replaced_the_log_says_where_the_new_one_is(
    login: tuple[Path, Path, Path], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    users, copy, record = login
    copy.write_bytes(NEW)
    with monkeypatch.context() as full, open("/dev/full", "wb") as device:
        full.setattr(agent_state, "replace_file", lambda *_, **__: os.write(device.fileno(), b"x"))
        take_back(record)
    assert f"{users} cannot be replaced: No space left" in (log := capfd.readouterr().err) and str(copy) in log
    assert users.read_bytes() == OLD and record.exists()
    take_back(record)
    assert users.read_bytes() == NEW and not record.exists()


DAMAGES: Final[dict[str, Callable[[Path], object]]] = {
    "nothing": lambda copy: copy.write_bytes(OLD),
    "text": lambda copy: copy.write_bytes(b"no JSON"),
    "other keys": lambda copy: copy.write_bytes(b'{"hello": "new"}'),
    "a list": lambda copy: copy.write_bytes(b"[1]"),
    "its size": lambda copy: copy.write_bytes(b'{"token": "new", "account": "%s"}' % (b"a" * (1 << 20))),
    "a link": instead(lambda copy: copy.symlink_to("elsewhere")),
    "a FIFO": instead(os.mkfifo),
    "a directory": instead(os.mkdir),
    "gone": Path.unlink,
}


@pytest.mark.parametrize("kind", [*DAMAGES, "renewed by the user", "a link of the user's"])
def test_what_is_no_log_in_or_has_no_place_outside_stays_inside(login: tuple[Path, Path, Path], kind: str) -> None:
    users, copy, record = login
    copy.with_name("elsewhere").write_bytes(NEW)
    copy.write_bytes(NEW)
    if kind in DAMAGES:
        DAMAGES[kind](copy)
    elif kind == "renewed by the user":
        users.write_bytes(NEWER)
    else:
        users.symlink_to(users.rename(users.with_name("victim")))
    before = users.read_bytes(), users.lstat().st_ino, users.stat().st_ino
    take_back(record)
    assert (users.read_bytes(), users.lstat().st_ino, users.stat().st_ino) == before


def test_a_link_of_the_users_stays_one(login: tuple[Path, Path, Path]) -> None:
    users, copy, record = login
    real = users.rename(users.with_name("dotfile"))
    users.symlink_to(real)
    copy_logins(str(users.parent), copy.parent, ["auth.json"], record)
    copy.write_bytes(NEW)
    take_back(record)
    assert real.read_bytes() == NEW and users.is_symlink()


def test_a_log_in_that_is_being_renewed_is_left_alone(login: tuple[Path, Path, Path]) -> None:
    users, copy, record = login
    copy.write_bytes(NEW)
    with open(f"{users}.lock", "w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        take_back(record)
    assert users.read_bytes() == OLD


WRONG_TYPES: Final = b'[{"users": 1, "copy": 2, "digest": 3}]'


@pytest.mark.parametrize("content", [b"", b"[", b"{}", b'[{"users": 1}]', b"[[]]", b"null", WRONG_TYPES])
def test_a_damaged_record_means_nothing(tmp_path: Path, content: bytes) -> None:
    (record := tmp_path / "record").write_bytes(content)
    take_back(record)
    take_back(tmp_path / "none")


def test_a_path_that_no_file_can_have_means_nothing(tmp_path: Path) -> None:
    (copy := tmp_path / "copy").write_bytes(NEW)
    (record := tmp_path / "record").write_text(
        json.dumps([{"users": f"/{'x' * 300}", "copy": str(copy), "digest": ""}])
    )
    take_back(record)
    assert not record.exists()


PROGRAM: Final = """#!{python}
import errno, json, os, sys
way, path = {way!r}, os.path.expanduser({path!r})
old = json.load(open(path))
new = json.dumps({{**old, "token": "renewed from " + old["token"]}})
try:
    if way == "write":
        raise OSError(errno.EBUSY, "it writes in place")
    with open(path + ".tmp", "w") as stream:
        stream.write(new)
    os.rename(path + ".tmp", path)
except OSError as error:
    if error.errno != errno.EBUSY or way == "rename":
        raise
    with open(path, "w") as stream:
        stream.write(new)
assert json.load(open(path)) == json.loads(new)
print("renewed", old["token"])
"""


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["project", "strict"])
@pytest.mark.parametrize(
    ("agent", "way", "path"),
    [
        ("codex", "rename", ".codex/auth.json"),
        ("qwen", "rename", ".qwen/oauth_creds.json"),
        ("claude", "either", ".claude/.credentials.json"),
        ("gemini", "write", ".gemini/oauth_creds.json"),
        ("opencode", "write", ".local/share/opencode/auth.json"),
    ],
)
def test_an_agent_renews_its_log_in_inside(
    sessionrun: Command, own_place: Path, home: Path, agent: str, way: str, path: str, policy: Policy
) -> None:
    need_walls()
    script = PROGRAM.format(python=sys.executable, way=way, path=f"~/{path}")
    program = make_program(own_place.parent / "bin" / agent, script)
    (home / path).parent.mkdir(parents=True)
    (home / path).write_bytes(OLD)
    (own_place / "repo").mkdir()
    make_repository(own_place / "repo")
    check = {"check": "test -e /tmp/seen || { touch /tmp/seen; exit 1; }", "rounds": 2}
    task = {"id": "a", "prompt": "renew", "agent": "own", "sandbox": policy, **check}
    (home / ".config/sessionrun").mkdir(parents=True)
    settings = f'[agents.own]\nargv = ["{program}"]\noutput = "text"\n'
    (home / ".config/sessionrun/config.toml").write_text(settings)
    (own_place / "plan.json").write_text(json.dumps({"prompts": [task]}))
    command = Command(own_place / "repo", sessionrun.results)
    done = command("--sync", "-q", "--worktree", str(own_place / "plan.json"))
    assert done.returncode == 0, (done.stdout, done.stderr)
    token = orjson.loads((home / path).read_bytes())["token"]
    assert token == "renewed from renewed from old", "each round goes on from what the one before renewed"
    assert not list((home / path).parent.glob("*.tmp"))
