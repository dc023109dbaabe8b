"""The files in which sessions tell each other of limits: their names, and whatever may lie in their place."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from simulated import Fate, SimulatedExecutor
from simulation import Drive, judge, make_session

from sessionrun.agents.table import BUILTIN
from sessionrun.engine.providers import LONGEST_S
from sessionrun.model.spec import AgentSpec, TaskSpec
from sessionrun.session.limits import (
    MAX_BYTES,
    Limit,
    LimitSharing,
    find_files,
    load_limit,
    name_file,
    write_limit,
)
from sessionrun.store.index import limits_path

NOW = 1_800_000_000.0
LIMIT = Limit(1, "claude", "limit", "usage_limit: so", NOW + 600.0, NOW - 5.0, "s1", 1)
LATER = replace(LIMIT, until_at=NOW + 60.0, met_at=NOW - 1.0, session="s2")
GOOD = json.loads('{"version":1,"provider":"claude","effect":"limit","reason":"r","session":"s","strikes":1}')
GOOD |= {"until_at": NOW + 5.0, "met_at": NOW}


@pytest.fixture
def place(own_place: Path) -> Path:
    """An account's file."""
    return limits_path() / "claude-0.json"


def write(path: Path, limit: Limit) -> None:
    write_limit(path, limit, NOW)


def test_what_is_written_is_read_and_the_limit_that_was_met_last_counts(place: Path) -> None:
    for limit, kept in ((LIMIT, LIMIT), (LATER, LATER), (LIMIT, LATER)):
        write(place, limit)
        assert load_limit(place, NOW) == kept
    assert place.stat().st_mode & 0o777 == 0o600
    assert place.parent.stat().st_mode & 0o777 == 0o700
    assert [one.name for one in place.parent.iterdir()] == [place.name]


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"provider": 7},
        {"provider": "x\0"},
        {"effect": "none"},
        {"reason": "r" * 1000},
        {"until_at": "soon"},
        {"until_at": True},
        {"until_at": -1},
        {"until_at": NOW + LONGEST_S + 100.0},
        {"met_at": NOW + 1000.0},
        {"strikes": 0},
        {"strikes": 10**6},
    ],
)
def test_what_does_not_fit_is_as_if_it_were_not_there(place: Path, change: dict[str, object]) -> None:
    write(place, LIMIT)
    place.write_text(json.dumps(GOOD))
    assert load_limit(place, NOW) is not None
    place.write_text(json.dumps({**GOOD, **change}))
    assert load_limit(place, NOW) is None
    place.write_text(json.dumps({name: value for name, value in GOOD.items() if name not in change}))
    assert load_limit(place, NOW) is None


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"null", b"\xff\xfe", b"NaN", b"[" * 5000, b'"x"' + b" " * MAX_BYTES, b"{}" * 3]
)
def test_what_is_no_json_is_as_if_it_were_not_there(place: Path, content: bytes) -> None:
    write(place, LIMIT)
    place.write_bytes(content)
    assert load_limit(place, NOW) is None
    write(place, LATER)
    assert load_limit(place, NOW) == LATER


def plant_link(path: Path) -> None:
    """To a file that would be believed."""
    target = path.with_name("target")
    target.write_text(json.dumps(GOOD))
    target.chmod(0o600)
    path.symlink_to(target)


def plant_readable(path: Path) -> None:
    path.write_text(json.dumps(GOOD))
    path.chmod(0o644)


def plant_foreign(path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to make another user's file")
    path.write_text(json.dumps(GOOD))
    path.chmod(0o600)
    os.chown(path, 12345, 12345)


@pytest.mark.parametrize(
    "plant",
    [plant_link, os.mkfifo, plant_readable, plant_foreign, Path.mkdir, lambda path: path.symlink_to("/dev/zero")],
)
def test_what_is_not_ours_alone_or_no_file_is_as_if_it_were_not_there(
    place: Path, plant: Callable[[Path], None]
) -> None:
    place.parent.mkdir(parents=True, mode=0o700)
    plant(place)
    assert load_limit(place, NOW) is None
    if not place.is_dir():  # what was planted is replaced, and what a link leads to stays
        write(place, LATER)
        assert load_limit(place, NOW) == LATER
        target = place.with_name("target")
        assert not target.exists() or json.loads(target.read_text()) == GOOD


def plant_wide_folder(folder: Path) -> None:
    folder.mkdir(parents=True)
    folder.chmod(0o777)


def plant_file(folder: Path) -> None:
    folder.parent.mkdir(parents=True)
    folder.touch()


def plant_linked_folder(folder: Path) -> None:
    other = folder.parent.with_name("other")
    other.mkdir(parents=True, mode=0o700)
    folder.parent.mkdir(parents=True)
    folder.symlink_to(other)


def plant_directory_for_file(folder: Path) -> None:
    folder.mkdir(parents=True, mode=0o700)
    (find_files(make_session([]), {"HOME": "/h"})["provider:first"] / "x").mkdir(parents=True)


def plant_text(folder: Path) -> None:
    folder.mkdir(parents=True, mode=0o700)
    find_files(make_session([]), {"HOME": "/h"})["provider:first"].write_bytes(b"\0" * 100)


@pytest.mark.parametrize(
    ("plant", "tells"),
    [
        (plant_wide_folder, "it is not a directory that is yours alone"),
        (plant_file, "File exists"),
        (plant_linked_folder, "it is not a directory that is yours alone"),
        (plant_directory_for_file, "Is a directory"),
        (plant_text, None),
    ],
)
def test_a_session_knows_its_own_limits_whatever_lies_there(
    own_place: Path, plant: Callable[[Path], None], tells: str | None
) -> None:
    """It meets a limit, waits, has a canary and ends; what is wrong is told in one line."""
    plant(limits_path())
    spec = make_session([TaskSpec(f"t{number}", ("x",), agent="one") for number in range(3)])
    said: list[str] = []

    def script(job: Any) -> Fate:
        return Fate("exits", 1.0, 75 << 8 if executor.clock() < 100.0 else 0)

    executor = SimulatedExecutor(script)
    sharing = LimitSharing(spec, {"HOME": "/h"}, said.append)
    drive = Drive(spec, executor, judged=judge, sharing=sharing).run()
    assert {task.outcome for task in drive.state.tasks.values()} == {"succeeded"}
    assert len(said) == (tells is not None), said
    assert not tells or (said[0].startswith("limits are not shared with other sessions: ") and tells in said[0])


def test_accounts_are_told_apart_by_what_signs_them_in_and_no_value_is_shown() -> None:
    home = {"HOME": "/home/u"}

    def name(environ: dict[str, str], agent: AgentSpec = BUILTIN["claude"]) -> str:
        return name_file("claude", agent, environ)

    plain = name(home)
    key = name({**home, "ANTHROPIC_API_KEY": "sk-secret"})
    others = [
        {**home, "ANTHROPIC_API_KEY": "sk-other"},
        {**home, "CLAUDE_CONFIG_DIR": "/elsewhere"},
        {**home, "ANTHROPIC_BASE_URL": "http://gateway"},
        {"HOME": "/home/v"},
    ]
    assert len({plain, key, *(name(one) for one in others)}) == 6
    assert name({**home, "LANG": "C", "OPENAI_API_KEY": "x"}) == plain, "another program's key matters"
    assert plain.startswith("claude-") and plain.endswith(".json") and "secret" not in key
    own = replace(BUILTIN["claude"], env={"ANTHROPIC_API_KEY": "sk-secret"})
    assert name(home, own) == key, "the agent's own environment does not count"


def test_agents_of_one_account_have_one_file_whatever_it_is_called() -> None:
    home = {"HOME": "/home/u"}
    mine = AgentSpec("mine", ("claude",), provider="claude")
    assert name_file("claude", mine, home) == name_file("claude", BUILTIN["claude"], home)
    odd = [name_file(name, None, home) for name in ("../../etc/passwd", "a/b", "a_b", "x" * 300, "\n")]
    assert len(set(odd)) == 5
    assert all("/" not in one and "\n" not in one and len(one) < 80 for one in odd)
