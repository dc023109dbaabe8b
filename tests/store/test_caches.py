"""status.json and summary: believed whole or not at all; damage of logs and spec: one error, with its place."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zlib import crc32

import orjson
import pytest
from conftest import Command
from faults.damaged import call
from forging import damage, forge

from sessionrun.client.reading.view import load_view
from sessionrun.model.errors import SessionrunError, StoreError
from sessionrun.model.shown import FileStatus, Status, Summary
from sessionrun.session.launch import resume
from sessionrun.session.main import _load
from sessionrun.store import seal
from sessionrun.store.logs import read_log
from sessionrun.store.session import SessionDir

PLAN = {"prompts": [{"id": "a", "prompt": "echo a"}, {"id": "b", "prompt": "exit 7", "needs": ["a"]}]}


@pytest.fixture
def ended(sessionrun: Command) -> SessionDir:
    return SessionDir(sessionrun.directory(sessionrun.finished(PLAN, "--name", "mine")))


def run(*words: str) -> subprocess.CompletedProcess[str]:
    """The command, run in this process: to start Python for each look is dear."""
    return subprocess.CompletedProcess(words, *call(list(words)))


def test_every_wrong_byte_is_seen_and_that_there_is_no_checksum(ended: SessionDir) -> None:
    for path in (ended.status_path, ended.summary_path):
        content = path.read_bytes()
        assert seal.parse_sealed(content) is not None
        for place in range(len(content)):
            for kind in ("flip", "cut"):
                assert seal.parse_sealed(damage(content, kind, place)) is None, place
        record = orjson.loads(content)
        del record["checksum"]
        assert seal.parse_sealed(seal.seal(record)) == record
        assert seal.parse_sealed(orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE)) is None


def test_the_tasks_of_a_feed_are_not_taken_for_those_of_the_session(ended: SessionDir) -> None:
    record = orjson.loads(ended.status_path.read_bytes())
    del record["checksum"]
    record["feed"] = {"open": True, "tasks": ["q1"], "held": None}
    content = seal.seal(record)
    found = seal.parse_head(content)
    assert found is not None and {**found[0], "tasks": orjson.loads(found[1])} == record
    assert seal.parse_head(damage(content, "flip", 9)) is None


def test_a_file_of_another_version_is_as_if_it_were_absent(
    ended: SessionDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One key more or less: the polls, which do not parse, do not print it either."""
    before = run("status", ended.session_id, "--json").stdout
    with monkeypatch.context() as patch:
        patch.setattr(seal, "_OF_KEYS", seal.sum_up_keys((FileStatus, Summary, Status)))
        for path in (ended.status_path, ended.summary_path):
            record = orjson.loads(path.read_bytes())
            record["total"] = 99
            path.write_bytes(seal.seal({key: value for key, value in record.items() if key != "checksum"}))
    assert ended.load_status() is None and ended.load_summary() is None
    assert run("status", ended.session_id, "--json").stdout == before


def change_status(session: SessionDir, old: bytes, new: bytes) -> None:
    """Other words in the first task of status.json, which has its seal."""
    body = seal.find_body(session.status_path.read_bytes())
    assert body is not None and old in bytes(body)
    changed = bytes(body).replace(old, new, 1)
    session.status_path.write_bytes(changed + seal._SEAL % crc32(changed, seal._OF_KEYS))


def test_a_poll_passes_tasks_on_as_they_are(ended: SessionDir) -> None:
    """To parse those of a large session takes longer than all else that a poll does."""
    view = load_view(ended)
    change_status(ended, b'"tasks":[{"num":1,', b'"tasks":[{"num": 1,')
    shown = run("status", ended.session_id, "--json").stdout
    assert '"num": 1,' in shown and json.loads(shown) == {**view, "schema_version": 2}
    assert '"num": 1,' not in run("status", ended.session_id, "a", "--json").stdout


def test_a_poll_parses_what_is_shown_otherwise(ended: SessionDir) -> None:
    change_status(ended, b'"worktree":null', b'"worktree":"/no/such/place"')
    assert json.loads(run("status", ended.session_id, "--json").stdout)["tasks"][0]["worktree"] is None
    odd = Path(os.fsdecode(bytes(ended.path.parent) + b"\xff"))
    ended.path.parent.rename(odd)
    change_status(SessionDir(odd / ended.path.name), b'"worktree":"/no/such/place"', b'"worktree":null')
    done = run("status", ended.session_id, "--json", "--results-dir", str(odd))
    assert (done.returncode, json.loads(done.stdout)["results_dir"]) == (0, str(odd / ended.path.name))


def test_of_a_damaged_journal_and_status_what_is_ahead_counts(ended: SessionDir) -> None:
    """So a session that has ended is known to have, and what cannot be done is told."""
    content = ended.journal_path.read_bytes()
    ended.journal_path.write_bytes(damage(content, "flip", len(content) // 2))
    done = run("cancel", ended.session_id)
    assert (done.returncode, done.stdout) == (0, f"mine ({ended.session_id[:8]}): 2 had ended before\n")
    done = run("retry", ended.session_id, "--failed", "--timeout", "5")
    assert done.returncode == 4 and "is damaged at byte" in done.stderr, done


def change_record(session: SessionDir, change: Callable[[dict[str, Any]], None], place: int) -> None:
    """Change a record of the journal; its checksum is right again."""
    wanted = read_log(session.journal_path).payloads[place]

    def changed(payload: bytes) -> bytes:
        record = json.loads(payload)
        if payload == wanted:
            change(record)
        return orjson.dumps(record)

    forge(session.journal_path, changed)


FORGED: dict[str, tuple[Callable[[dict[str, Any]], None], int]] = {
    "a time that no calendar has": (lambda one: one.update(at=9e15), 2),
    "a time that is a word": (lambda one: one.update(at="now"), 1),
    "a task that is not there": (lambda one: one.update(key="nobody/1/1/work/1"), 2),
    "a key of other words": (lambda one: one.update(key="a/1/1/work"), 2),
    "another type": (lambda one: one.update(key=["a"]), 3),
    "no number": (lambda one: one.pop("seq"), 0),
    "an event that is a list": (lambda one: one.update(ev=[]), 0),
    "an event of a later version": (lambda one: one.update(ev="Landed"), 1),
}


def check_refused(session: SessionDir, path: Path, said: str) -> None:
    """Readers say it in one line; with the caches as good as gone `resume` and a supervisor refuse."""
    for words in (
        ["status"],
        ["results", "--json"],
        ["explain"],
        ["wait"],
        ["resume"],
        ["retry", "--timeout", "0"],
    ):
        done = run(*words[:1], session.session_id, *words[1:])
        told = done.stdout + done.stderr
        assert (done.returncode, told.count("\n")) == (3, 1), told
        assert f"{path.parent.name}/{path.name} is damaged{said}: " in told
    for start in (resume, _load):
        with pytest.raises(StoreError, match="is damaged"):
            start(session)
    assert not session.is_alive()


def test_a_record_that_cannot_be_is_damage(sessionrun: Command, ended: SessionDir) -> None:
    content = ended.journal_path.read_bytes()
    ended.status_path.unlink()
    ended.summary_path.unlink()
    whole = sessionrun.finished({"prompts": ["true"]})
    for change, place in FORGED.values():
        ended.journal_path.write_bytes(content)
        change_record(ended, change, place)
        number = place + 1
        with pytest.raises(StoreError, match=f"journal is damaged at record {number}"):
            load_view(ended)
    check_refused(ended, ended.journal_path, f" at record {number}")
    assert "was it written by a newer version?" in run("status", ended.session_id).stderr
    for words in (["list"], ["overview"], ["cost", "--all"], ["clean", "--older-than", "0s", "--dry-run"]):
        done = run(*words, "--json")
        assert (done.returncode, done.stderr.count("\n")) == (0, 1), done.stderr
        assert ended.path.name in done.stderr
    assert [view["session_id"] for view in json.loads(run("list", "--json").stdout)["sessions"]] == [whole]
    told = json.loads(run("doctor", "--json").stdout)
    assert [(one["session_id"], one["check"]) for one in told["findings"] if one["session_id"]] == [
        (ended.session_id, check) for check in ("records", "status", "summary", "interrupted")
    ]


def test_a_spec_of_other_types_is_damage(ended: SessionDir) -> None:
    spec = orjson.loads(ended.spec_path.read_bytes())
    ended.status_path.unlink()
    ended.summary_path.unlink()
    first, second = spec["tasks"]
    for wrong in (
        {**spec, "tasks": [{**first, "retries": "3"}, second]},
        {**spec, "tasks": [{**first, "id": "../x"}, second]},
        {**spec, "tasks": [{**first, "labels": ["x"]}, second]},
        {**spec, "agents": {"shell": {"name": "shell", "argv": "sh"}}},
        {**spec, "created_at": "yesterday"},
        {key: value for key, value in spec.items() if key != "cwd"},
        [spec],
    ):
        ended.spec_path.write_bytes(orjson.dumps(wrong))
        with pytest.raises(StoreError, match=r"spec\.json is damaged: "):
            load_view(ended)
    for content in (b"", b"{", b'{"schema_version": 2}'):
        ended.spec_path.write_bytes(content)
        assert run("status", ended.session_id).returncode in (2, 3)
        with pytest.raises(SessionrunError):
            load_view(ended)
    ended.spec_path.write_bytes(orjson.dumps({**spec, "tasks": [first, {**second, "retries": "3"}]}))
    place = (
        r"spec\.json is damaged: tasks\[1\]\.retries has a value that does not belong there: expected `int`, got"
    )
    with pytest.raises(StoreError, match=place):
        load_view(ended)
    ended.spec_path.write_bytes(
        orjson.dumps({**spec, "of a later version": 1, "tasks": [{**first, "x": 1}, second]})
    )
    assert load_view(ended)["status"] == "completed"
    ended.spec_path.write_bytes(orjson.dumps(wrong))
    check_refused(ended, ended.spec_path, "")
