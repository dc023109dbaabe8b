"""What a person sees at a terminal: names, durations, time left; the golden screens are in data/looks."""

from __future__ import annotations

import heapq
import io
import os
import random
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from conftest import Command, eventually
from shown import with_state, with_word

from sessionrun.cli.progress import describe, draw_bar
from sessionrun.cli.standing import add_details, choose_shown, clock, head_line
from sessionrun.cli.status import format_status
from sessionrun.client.reading.eta import estimate_left, is_overtaken

RECORDED = Path(__file__).parent / "data" / "recorded" / "before-rooms" / "sessions"
BEGAN = "2026-01-02T03:00:00.000Z"
NOW = 1767322804.0
"""4 seconds after `BEGAN`."""

SCREENS = [
    ("80x24", {}),
    ("200x50", {}),
    ("40x20", {}),
    ("80x24-dumb", {"TERM": "dumb"}),
    ("80x24-c", {"LC_ALL": "C"}),
]


def make_task(
    num: int, status: str = "completed", outcome: str | None = "succeeded", **values: Any
) -> dict[str, Any]:
    """A task as status.json has it, with what people see of it."""
    task: dict[str, Any] = {"num": num, "id": f"t{num}", "title": f"Part {num}", "agent": "claude", "model": None}
    task |= {"status": status, "outcome": outcome if status == "completed" else None, "reason": None}
    task |= {"phase": "running" if status == "running" else None, "reason_class": None, "held_until": None}
    task |= {"started_at": None if status == "pending" else BEGAN, "needs": []}
    return with_word(task | {"duration_s": 10.0 if status == "completed" else None} | values)


def make_view(tasks: list[dict[str, Any]], **values: Any) -> dict[str, Any]:
    """A status object with these tasks, which runs."""
    view: dict[str, Any] = {"session_id": "abc123", "name": "nightly", "status": "running", "outcome": None}
    view |= {
        "started_at": BEGAN,
        "total": len(tasks),
        "tasks": tasks,
        "max_parallel": None,
        "dialect": "prompts",
        "results_dir": "/nowhere/session-abc123",
    }
    return with_state(view | values)


def simulate(
    durations: list[float], slots: int, at: float
) -> tuple[list[dict[str, Any]], dict[str, float], float]:
    """What is to be seen at a moment of a run with these durations; and how much time is really left."""
    free_at = [0.0] * slots
    tasks: list[dict[str, Any]] = []
    elapsed: dict[str, float] = {}
    for num, seconds in enumerate(durations):
        began = heapq.heappop(free_at)
        heapq.heappush(free_at, began + seconds)
        status = "completed" if began + seconds <= at else "running" if began <= at else "pending"
        tasks.append(make_task(num, status, duration_s=seconds if status == "completed" else None))
        if status == "running":
            elapsed[f"t{num}"] = at - began
    return tasks, elapsed, max(free_at) - at


@pytest.mark.parametrize("slots", [1, 4, 16])
def test_the_time_left_is_about_right(slots: int) -> None:
    """From a quarter of the run on, until what is left is less than a task takes."""
    chance = random.Random(slots)
    durations = [chance.uniform(5.0, 15.0) for _ in range(slots * 8)]
    whole = simulate(durations, slots, 0.0)[2]
    moments = [whole * share / 40 for share in range(10, 40)]
    seen = [simulate(durations, slots, at) for at in moments]
    judged = [(estimate_left(tasks, elapsed), left) for tasks, elapsed, left in seen if left >= 10.0]
    assert len(judged) >= 20
    for told, left in judged:
        assert told is not None
        assert left / 1.5 <= told <= left * 1.5


def test_the_time_left_knows_what_waits_for_what() -> None:
    """Tasks of 10 seconds each: a chain of 5; then one, 20 that need only that, and one that needs them all."""
    chain = [
        make_task(1),
        make_task(2, "running"),
        *(make_task(num, "pending", needs=[f"t{num - 1}"]) for num in (3, 4, 5)),
    ]
    assert estimate_left(chain, {"t2": 4.0}, 8) == pytest.approx(36.0)
    middle = [make_task(num, "pending", needs=["t2"]) for num in range(3, 23)]
    last = make_task(23, "pending", needs=[task["id"] for task in middle])
    fan = [make_task(1), make_task(2, "running"), *middle, last]
    for slots, left in ((None, 6.0 + 10 + 10), (10, 6.0 + 20 + 10), (1, 6.0 + 200 + 10)):
        assert estimate_left(fan, {"t2": 4.0}, slots) == pytest.approx(left), slots


def test_no_guess_without_knowledge() -> None:
    assert estimate_left([make_task(1, "running")], {"t1": 5.0}) is None
    assert estimate_left([make_task(1)], {}) is None
    assert estimate_left([make_task(1), make_task(2, "running")], {"t2": 4.0}) == 6.0
    assert estimate_left([make_task(1), make_task(2, "running")], {"t2": 40.0}) == pytest.approx(10.0)
    for ran, says in ((4.0, False), (40.0, True)):
        assert is_overtaken([make_task(1), make_task(2, "running")], {"t2": ran}) is says
    assert not is_overtaken([make_task(1, "running")], {"t1": 40.0})


def test_the_head_says_what_one_wants_to_know() -> None:
    tasks = [make_task(1), make_task(2, outcome="failed"), make_task(3, "running"), make_task(4, "pending")]
    view = make_view(tasks)
    assert (
        head_line(view, tasks, NOW)
        == "4 tasks: 1 succeeded, 1 failed, 1 running, 1 waiting, 00:00:04, ~00:00:16 left"
    )
    ended = make_view(tasks[:2], ended_at="2026-01-02T04:01:02.400Z")
    assert head_line(ended, tasks[:2], NOW) == "2 tasks: 1 succeeded, 1 failed, 01:01:02"
    assert clock(250) == "00:04:10"


def test_a_large_session_shows_what_needs_attention() -> None:
    tasks = [make_task(num) for num in range(1, 21)]
    assert choose_shown(tasks) == (tasks, None)
    bad, held = make_task(21, outcome="failed"), make_task(22, "pending", reason_class="held", reason="held: wait")
    tasks += [bad, held, make_task(23, outcome="skipped"), make_task(24, "pending")]
    assert choose_shown(tasks) == ([bad, held], "  and 20 succeeded, 1 skipped, 1 waiting (--tasks shows all)")
    lines = format_status(make_view(tasks), tasks, width=80, show_all=False).split("\n")
    assert lines[1] == "Name: nightly"
    assert lines[-4:-1] == [
        "  \u274c Task 21 (ID: t21): failed  Part 21  10.0s  claude",
        "  \u270b Task 22 (ID: t22): held  Part 22  claude",
        "     held: wait",
    ]


def test_signs_are_only_red_for_failures() -> None:
    outcomes = ["succeeded", "failed", "timed_out", "skipped", "cancelled"]
    tasks = [make_task(num, outcome=outcome) for num, outcome in enumerate(outcomes, 1)]
    tasks.append(make_task(6, "running", phase="releasing"))
    tasks.append(
        make_task(7, landing={"status": "bounced", **dict.fromkeys(("commit", "target", "output", "mend"))})
    )
    tasks[6]["landing"]["reason"] = "it conflicts"
    tasks.append(make_task(8, diff_stat={"files": 0, "insertions": 0, "deletions": 0}))
    lines = format_status(make_view(tasks), tasks).split("\n")[6:]
    signs = [*"\u2705\u274c\u274c\u2796\U0001f6ab\u23f3", "\u21a9\ufe0f", "bounced:", "\u2205"]
    assert [line.split()[0] for line in lines] == signs
    assert lines[5].endswith(": saving its work") and lines[8].endswith(": changed nothing")


def test_a_long_line_keeps_its_title() -> None:
    task = make_task(1, title="Write the parser of the new format", model="opus")
    line = "  x Task 1 (ID: f5b6fa3a-0000-0000-0000-000000000000): completed"
    details = "     Write the parser of the new format  10.0s  claude/opus"
    assert add_details(line, task, 80, "     ") == [line, details]
    assert add_details(line, task, 40, "     ")[1] == "     Write the pa...  10.0s  claude/opus"


def test_a_line_of_progress() -> None:
    view = make_view([make_task(1), make_task(2, "running")])
    assert describe(view, 4.0, "6.0s") == "1/2 done: 1 succeeded, 1 running, 4.0s, ETA 6.0s"
    ascii_stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    assert draw_bar(view, 80, ascii_stream) == "[##########----------] "
    assert draw_bar(view, 40, ascii_stream) == ""


@pytest.mark.slow
@pytest.mark.parametrize(("screen", "env"), SCREENS, ids=[screen for screen, _ in SCREENS])
def test_the_screen(sessionrun: Command, tmp_path: Path, screen: str, env: dict[str, str]) -> None:
    """`status` and `list` of a recorded session."""
    settings = shlex.join(f"{key}={value}" for key, value in ({"TZ": "UTC", "LC_ALL": "C.UTF-8"} | env).items())
    program = shlex.join(sessionrun.argv)
    script = f"clear; env {settings} {program} status; env {settings} {program} list; echo END; exec cat"
    check_screen(sessionrun, tmp_path, screen, script, "END")


def check_screen(sessionrun: Command, folder: Path, name: str, script: str, end: str) -> None:
    """Compare what tmux shows of a recorded session, once `end` is there; GOLDEN=write renews the files."""
    if shutil.which("tmux") is None:
        pytest.skip("tmux is not installed")
    shutil.copytree(RECORDED, sessionrun.results)
    width, height = name.removeprefix("watch-").split("-")[0].split("x")
    tmux = ["tmux", "-S", str(folder / "s"), "-f", "/dev/null"]
    subprocess.run(
        [*tmux, "-u", "new-session", "-d", "-x", width, "-y", height, script], cwd=sessionrun.cwd, check=True
    )

    def capture() -> str | None:
        text = subprocess.run([*tmux, "capture-pane", "-p"], check=True, capture_output=True, text=True).stdout
        return text.rstrip("\n") + "\n" if end in text else None

    try:
        text = eventually(capture)
    finally:
        subprocess.run([*tmux, "kill-server"], check=True)
    golden = Path(__file__).parent / "data" / "looks" / f"{name}.txt"
    if os.environ.get("GOLDEN") == "write":
        golden.write_text(text)
    assert text == golden.read_text()
