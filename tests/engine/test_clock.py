"""Readers bear any time that the wall clock may have shown."""

from __future__ import annotations

import json

from conftest import Command, eventually
from test_removal import left, make_older, reseal

from sessionrun.store.session import SessionDir


def test_readers_bear_times_in_the_future(sessionrun: Command) -> None:
    """The clock was set back after the session: nothing is old enough to go, and nothing fails."""
    session_id = sessionrun.start({"prompts": ["exit 3"]})
    sessionrun.wait(session_id)
    eventually(lambda: not SessionDir(sessionrun.directory(session_id)).is_alive())
    for at in ("2099-01-01T00:00:00.000Z", "1970-01-01T00:00:00.000Z"):
        make_older(sessionrun, session_id, at)
        for name in ("status.json", "summary"):
            path = sessionrun.directory(session_id) / name
            record = json.loads(path.read_bytes())
            path.write_bytes(reseal({**record, "started_at": "2098-12-31T00:00:00.000Z"}))
        for words in ("status", "list", "overview", "results", "explain last", "wait"):
            done = sessionrun(*words.split())
            assert (done.returncode, done.stderr) == (1 if words == "wait" else 0, ""), words
        old = at.startswith("1970")
        done = sessionrun("clean", "--older-than", "1s")
        assert done.returncode == 0
        assert left(sessionrun) == (set() if old else {session_id})
