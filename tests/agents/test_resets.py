"""When a limit ends: what agents and servers write, as a time."""

from __future__ import annotations

import time
from datetime import datetime, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessionrun.agents.verdict import MAX_AHEAD_S, check_reset, find_reset

NOW = datetime(2026, 11, 20, 12, 0, tzinfo=timezone.utc).timestamp()
HOUR = 3600.0
DAY = 24 * HOUR

pytestmark = pytest.mark.usefixtures("utc")


@pytest.mark.parametrize(
    ("text", "ahead"),
    [
        # claude
        (f"Claude AI usage limit reached|{int(NOW + 7200)}", 2 * HOUR),
        (f"Claude AI usage limit reached|{int(NOW + 7200)}000", 2 * HOUR),
        ("You've hit your limit · resets 3pm (Europe/Berlin)", 2 * HOUR),
        ("You've hit your session limit · resets 12:50am (America/Los_Angeles)", 20 * HOUR + 50 * 60),
        ("You've hit your weekly limit · resets Nov 25, 3am (Europe/Dublin)", 4 * DAY + 15 * HOUR),
        ("You've hit your limit · resets Nov 25 at 3:30pm", 5 * DAY + 3.5 * HOUR),
        ("5-hour limit reached ∙ resets 3pm", 3 * HOUR),
        ("resets 12am", 12 * HOUR),
        ("resets 12pm", None),  # this very moment
        ("resets 11:58am (UTC)", None),  # just now, and not tomorrow
        ("resets 11am (UTC)", 23 * HOUR),
        ("resets at 14:00 UTC", 2 * HOUR),
        ("Your limit will reset at 5pm (Europe/Warsaw).", 4 * HOUR),
        ('"rate_limit_info":{"status":"rejected","resetsAt":1795190400}', 4 * HOUR),
        # codex
        ("or try again in 3 days 5 hours 2 minutes.", 3 * DAY + 5 * HOUR + 120),
        ("Try again in 12 minutes.", 720.0),
        ("try again in 1 day, 2 hours and 3 minutes", DAY + 2 * HOUR + 180),
        ("or try again at Nov 25th, 2026 8:19 PM.", 5 * DAY + 8 * HOUR + 19 * 60),
        ("try again at 12:16 PM.", 16 * 60.0),
        ("Please try again in 11.054s.", 11.054),
        ("try again in 250ms", 0.25),
        ('{"error":{"type":"usage_limit_reached","resets_at":1795189872}}', 13872.0),
        (r"{\"error\":{\"resets_in_seconds\":13872}}", 13872.0),
        # gemini
        ('"retryDelay": "34.07s"', 34.07),
        (r"\"retryDelay\": \"34.07s\"", 34.07),
        ("Please retry in 12.5s.", 12.5),
        ("Please retry in 1h2m3s.", 3723.0),
        ("GenerateRequestsPerDayPerProject ... Please retry in 12.5s. retryDelay: 12s", None),
        ("Your quota will reset after 8h44m7s.", 8 * HOUR + 44 * 60 + 7),
        ("quotaResetTimeStamp: '2026-11-20T19:14:08Z'", 7 * HOUR + 14 * 60 + 8),
        ("resets at 2026-11-20T13:00:00+00:00", HOUR),
        ("resets on 2026-11-20 13:00 UTC", HOUR),
        ("You will regain access on 2026-11-24 at 00:00 UTC.", 3 * DAY + 12 * HOUR),
        ("You will regain access on 2026-12-01 at 00:00 UTC.", None),  # too far ahead to be held for
        # headers
        ("retry-after: 30", 30.0),
        ('"retry-after":"30"', 30.0),
        ("retry_after_seconds=1.5", 1.5),
        ("retry after 5 minutes", 300.0),
        ("retrying in 6h16m - attempt #1", 6 * HOUR + 16 * 60),
        # nothing that can be meant
        ("", None),
        ("try again later", None),
        ("resets 3", None),
        ("resets 25:00 (UTC)", None),
        ("resets 13pm (UTC)", None),
        ("resets 3pm (Middle/Earth)", None),
        ("resets Feb 31, 3pm (UTC)", None),
        ("resets Foo 3, 3pm (UTC)", None),
        ("resets Jan 30, 11:30am (Asia/Calcutta)", None),  # more than eight days
        ("try again in 9 days", None),
        (f"usage limit reached|{int(NOW - 5)}", None),
        ("reached|9999999999999", None),
        ("error at 2026-11-20T13:00:00Z", None),
        ("it was 3pm (Europe/Berlin)", None),
        ("try again in 0 s", None),
        ("quotaResetTimeStamp: 2026-13-45T25:61:00Z", None),
        (f"usage limit reached|{int(NOW - 5)}, try again in 5 s", 5.0),
    ],
)
def test_find_reset(text: str, ahead: float | None) -> None:
    found = find_reset(text, NOW)
    assert (None if found is None else found - NOW) == pytest.approx(ahead, abs=1e-3)


def test_a_date_without_a_year_is_the_next_one() -> None:
    end_of_year = datetime(2026, 12, 30, 12, 0, tzinfo=timezone.utc).timestamp()
    assert find_reset("resets Jan 2, 12pm (UTC)", end_of_year) == end_of_year + 3 * DAY


def test_a_clock_time_without_a_zone_is_local(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        found = find_reset("try again at 11:30 PM", NOW)  # it is 21:00 there
    finally:
        monkeypatch.setenv("TZ", "UTC")
        time.tzset()
    assert found == NOW + 2.5 * HOUR


@pytest.mark.parametrize(
    "at", [None, NOW, NOW - 1, NOW + MAX_AHEAD_S + 1, float("nan"), float("inf"), -1.0, 1e300]
)
def test_a_stated_time_that_cannot_be_meant(at: float | None) -> None:
    assert check_reset(at, NOW) is None


def test_milliseconds_are_known_by_their_size() -> None:
    assert check_reset((NOW + 5) * 1000, NOW) == NOW + 5


PIECES = st.sampled_from(
    'resets |try again in |at |3am| (|Europe/Berlin|)|Jan 30, |99|99999999999999| days |retryDelay|"|: |1h|2m|'
    "reached\\|2026-11-20T|13:00|Z|+99:99|UTC|../x|\0".replace("\\|", "\x01").split("|")
).map(lambda piece: piece.replace("\x01", "|"))


@given(st.lists(PIECES | st.text(max_size=5), max_size=12).map("".join), st.floats())
def test_it_never_raises(text: str, now: float) -> None:
    found = find_reset(text, now)
    assert found is None or now < found <= now + MAX_AHEAD_S
