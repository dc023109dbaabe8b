"""Time spans as people write them: one reading wherever one may be said; and times that cannot be."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest
from conftest import Command
from test_dialects import load, one, only
from test_leftovers import left, make_older, reseal

from sessionrun.cli.options import Age, Duration, Since
from sessionrun.input.config import load_config
from sessionrun.model.units import MAX_DURATION_S, parse_age, parse_duration

GOOD = {
    "90": 90,
    " 90s ": 90,
    "0": 0,
    "0.5": 0.5,
    ".5s": 0.5,
    "10m": 600,
    "1h30m": 5400,
    "1.5h": 5400,
    "1h0.5m": 3630,
    "2d": 172800,
    "1w": 604800,
    "1w2d3h4m5s": 788645,
}
BAD = (
    *("", "s", "soon", "5 minutes", "-1", "1e3", "inf", "nan", "1h30", "30m1h", "1m1m", "1.5h30m", "1..5", "٣"),
    "9" * 41,
)


@pytest.mark.parametrize(("text", "seconds"), GOOD.items())
def test_everywhere_the_same(text: str, seconds: float, own_place: Path) -> None:
    (own_place / "sessionrun.toml").write_text(f'idle_timeout = "{text}"\n')
    config = load_config(own_place, {"SESSIONRUN_TIMEOUT": text})
    task = only(load(one(setup_timeout=text, idle_timeout=text)))
    assert parse_duration(text) == Duration().convert(text, None, None) == seconds
    assert config.values == {"idle_timeout_s": seconds, "timeout_s": seconds}
    assert task.setup_timeout_s == task.idle_timeout_s == (seconds or None)


@pytest.mark.parametrize("text", BAD)
def test_what_is_none(text: str) -> None:
    with pytest.raises(ValueError, match="must be seconds or text such as"):
        parse_duration(text)
    for kind in (Duration(), Age(), Since()):
        with pytest.raises(click.BadParameter):
            kind.convert(text, None, None)


def test_an_age_says_its_unit() -> None:
    assert parse_age("0") == 0
    assert parse_age("200w") > MAX_DURATION_S
    with pytest.raises(ValueError, match="must lie between 0 and 100000000 seconds"):
        parse_duration("200w")
    with pytest.raises(ValueError, match=r"^7: say the unit: 7d, 7h or 7m$"):
        parse_age("7")


def test_readers_bear_times_in_the_future(sessionrun: Command) -> None:
    """The clock was set back after the session: nothing is old enough to go, and nothing fails."""
    session_id = sessionrun.finished({"prompts": ["exit 3"]})
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
