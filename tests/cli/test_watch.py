"""A session on the whole screen: what is drawn, what keys do, and that the terminal is as it was before."""

from __future__ import annotations

import os
import re
import shlex
import signal
import termios
from pathlib import Path
from typing import Any

import pytest
from conftest import Command, eventually
from terminal import Terminal
from test_looks import BEGAN, NOW, check_screen, make_task, make_view

from sessionrun.cli import render
from sessionrun.cli.board import ALL_KEYS, Choice, choose_tasks, draw, tell_keys
from sessionrun.cli.watch import Watcher
from sessionrun.model.wording import columns
from sessionrun.store.session import SessionDir

ALTERNATE, MAIN, CURSOR = b"\x1b[?1049h", b"\x1b[?1049l", b"\x1b[?25h"


def make_session(count: int) -> dict[str, Any]:
    """A view with tasks of all kinds."""
    usage = {"cost_usd": 0.257}
    tasks = [
        make_task(1, title="Write the parser of the new format", usage=usage),
        make_task(2, outcome="failed", reason="exit_code: exit code 3", usage=None),
        make_task(3, "running", usage=None, started_at=BEGAN),
        make_task(4, "pending", reason_class="held", reason="held: wait", usage=None),
        make_task(5, landing={"status": "bounced", "reason": None}, usage=None),
        *(make_task(num, "pending", usage=None) for num in range(6, count + 1)),
    ]
    return make_view(tasks)


def shown_of(view: dict[str, Any], size: tuple[int, int], **choice: Any) -> list[tuple[str, str]]:
    chosen = Choice(**choice)
    return draw(
        view, choose_tasks(view, chosen), {"t3": "halfway\x1b[31m", "t2": "No such file"}, chosen, NOW, size
    )


@pytest.mark.parametrize("size", [(80, 24), (200, 50), (40, 12), (120, 40), (40, 20)])
def test_what_is_drawn(size: tuple[int, int]) -> None:
    view = make_session(100)
    lines = shown_of(view, size, selected="t5")
    assert len(lines) == size[1] and max(columns(text) for text, _ in lines) <= size[0]
    (place,) = (number for number, (_, style) in enumerate(lines) if style == "reverse")
    assert "t5" in lines[place][0]
    assert lines[0][0].startswith("nightly (abc123): running") and lines[0][0].endswith("3/100")
    assert (
        lines[-1][0] == tell_keys(size[0])
        and lines[-1][0].startswith("q quit  ? keys")
        and "95 waiting: next t6 t7" in lines[-2][0]
    )


def test_what_runs_stands_first_then_what_needs_a_person_then_what_is_done() -> None:
    top = [text for text, _ in shown_of(make_session(100), (120, 24))]
    assert re.fullmatch("[█▓▒░·]{120}", top[1]) and (top[1][0], top[1][1], top[1][2]) == ("█", "▓", "▒")
    assert top[3] == "1 held: wait"
    assert "running" in top[4] and "4.0 s" in top[4] and top[4].endswith("halfway\\x1b[31m")
    assert set(top[5]) == {"─"} == set(top[9])
    needy = {line.split()[1]: line for line in top[6:9]}
    assert needy.keys() == {"failed", "held", "bounced"} and needy["failed"].endswith("exit code 3 - No such file")
    assert "Write the parser of the" in top[10] and "10.0 s" in top[10] and "$0.26" in top[10]


@pytest.mark.parametrize(("running", "bad", "rows"), [(300, 9, (9, 8)), (2, 300, (2, 15)), (300, 0, (17, 0))])
def test_what_runs_gets_half_and_what_needs_a_person_the_rest(
    running: int, bad: int, rows: tuple[int, int]
) -> None:
    """At 80x24, with 20 lines below the head; a block that does not fit ends with how many more there are."""
    tasks = [make_task(num, "running", usage=None, started_at=BEGAN) for num in range(1, running + 1)]
    tasks += [
        make_task(num, outcome="failed", reason="exit_code: exit code 3", usage=None)
        for num in range(running + 1, running + bad + 1)
    ]
    lines = [text for text, _ in shown_of(make_view(tasks), (80, 24))]
    counts = tuple(
        sum(text[1:].split()[:1] == [word] and text[0] in "▶✗" for text in lines) for word in ("running", "failed")
    )
    assert counts[0] >= rows[0] and counts[1] >= min(rows[1], bad) and len(lines) == 24
    more = [int(text.split()[1]) for text in lines if text.endswith(" more")]
    assert sum(more) + sum(counts) == running + bad


@pytest.mark.parametrize("size", [(40, 20), (80, 24)])
def test_what_is_asked_and_all_keys_are_shown_whole(size: tuple[int, int]) -> None:
    """However narrow the screen: with a question that is cut nobody knows what to answer."""
    asked = f"sessionrun cancel {'n' * 60} task?  y: yes, any other key: no"
    for message in (asked, ALL_KEYS):
        lines = shown_of(make_session(100), size, message=message)
        shown = "".join(text for text, style in lines[1:] if style == "bold").replace(" ", "")
        assert shown == message.replace(" ", "") and len(lines) == size[1]
    assert len(tell_keys(80)) <= 80 < len(tell_keys(200)) and tell_keys(5) == "q quit"


def test_a_bar_without_its_signs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "C")
    render._choose_sign.cache_clear()
    lines = [text for text, _ in shown_of(make_session(10), (80, 24))]
    assert re.fullmatch("[#x~>.]{80}", lines[1]) and all(text.isascii() for text in lines)
    render._choose_sign.cache_clear()


def test_what_is_chosen() -> None:
    view = make_session(100)
    assert [task["id"] for task in choose_tasks(view, Choice(only_attention=True)).tasks] == [
        "t3",
        "t2",
        "t4",
        "t5",
    ]
    assert [task["id"] for task in choose_tasks(view, Choice(find="PARSER")).tasks] == ["t1"]
    assert ("nothing to show", "dim") in shown_of(make_view([]), (80, 24))


def test_keys(sessionrun: Command) -> None:
    prompt = "echo begun; while ! [ -e go ]; do sleep 0.02; done"
    plan = {"prompts": [{"id": "a", "prompt": prompt}, {"id": "bad", "prompt": "exit 3"}]}
    session_id = sessionrun.start(plan)
    sessionrun.until(session_id, lambda view: view["failed"] == 1 and view["running"] == 1)
    watcher = Watcher(SessionDir(sessionrun.directory(session_id)))

    def screen() -> list[str]:
        return [text for text, _ in watcher.draw((100, 12))]

    eventually(lambda: "begun" in screen()[3] and "running" in screen()[3])
    watcher.press("down")
    watcher.press("j")
    watcher.press("r")
    assert screen()[-1] == "retry of bad is done"
    watcher.press("up")
    watcher.press("c")
    assert f"sessionrun cancel {session_id[:8]} a?" in screen()[-1]
    watcher.press("x")
    assert screen()[-1] == tell_keys(100)
    watcher.press("c")
    watcher.press("y")
    assert screen()[-1] == "cancel of a is done"
    view = sessionrun.wait(session_id)
    assert [(task["outcome"], task["attempt"]) for task in view["tasks"]] == [("cancelled", 1), ("failed", 2)]
    assert watcher.press("l") is not None and watcher.press("z") is None


@pytest.mark.parametrize("end", ["key", "signal"])
def test_the_terminal_is_as_before(sessionrun: Command, end: str) -> None:
    session_id = sessionrun.finished(["true", "exit 3"])
    with Terminal([*sessionrun.argv, "watch", session_id], sessionrun.cwd, {"TERM": "xterm"}) as terminal:
        before = termios.tcgetattr(terminal.fd)
        terminal.read_until(b"q quit")
        if end == "key":
            terminal.type(b"q")
        else:
            os.kill(terminal.pid, signal.SIGTERM)
        assert terminal.finish() == (0 if end == "key" else 130)
        assert termios.tcgetattr(terminal.fd) == before
    assert terminal.output.count(ALTERNATE) == terminal.output.count(MAIN) == 1
    assert terminal.output.rindex(CURSOR) > terminal.output.index(ALTERNATE)


def test_off_a_terminal_it_is_one_look(sessionrun: Command) -> None:
    session_id = sessionrun.finished(["true", "exit 3"])
    done = sessionrun("watch", session_id)
    assert (done.returncode, done.stdout) == (0, sessionrun("status", session_id).stdout)


@pytest.mark.slow
@pytest.mark.parametrize("screen", ["80x24", "120x40", "200x50", "40x20", "80x24-c"])
def test_the_screen(sessionrun: Command, tmp_path: Path, screen: str) -> None:
    locale = "C" if screen.endswith("-c") else "C.UTF-8"
    # the variables would win over what the terminal says itself
    script = f"env -u COLUMNS -u LINES TZ=UTC LC_ALL={locale} {shlex.join(sessionrun.argv)} watch; exec cat"
    check_screen(sessionrun, tmp_path, f"watch-{screen}", script, "q quit")


def test_what_is_held_and_what_lands_is_said() -> None:
    def fourth(*tasks: dict[str, Any]) -> str:
        return shown_of(make_view(list(tasks)), (120, 20))[3][0]

    limit = {"held_until": "2026-11-23T19:30:12.000Z", "reason_class": "held", "reason": "held: usage limit"}
    held = [make_task(num, "pending", **limit) for num in (1, 2)]
    landed, waits = (
        make_task(3, landing={"status": "landed", "reason": None}),
        make_task(4, landing={"status": "waiting", "reason": None}),
    )
    asked = make_task(5, "pending", reason_class="held", reason="held: on request")
    told = fourth(*held, landed, waits, asked)
    assert re.fullmatch(
        r"2 held: usage limit, until 2026-11-2\d \d\d:\d\d \(in 325 days\); 1 held: on request", told
    )
    assert "succeeded" in fourth(make_task(1))
    landing = make_task(6, landing={"status": "mending", "reason": None})
    assert fourth(landing) == "landing: t6 mending"


@pytest.mark.parametrize("height", [24, 14])
def test_a_matrix_stands_on_top_and_its_cells_have_names(height: int) -> None:
    """On a screen that is too low for its rows it is left out; what stands below them may be cut."""
    cells = [(row, model) for row in ("easy", "medium", "hard") for model in ("m1", "m2")]
    tasks = [
        make_task(num, outcome="failed", usage=None, labels={"task": row, "model": model, "agent": "alpha"})
        for num, (row, model) in enumerate(cells, 1)
    ]
    for task in tasks:
        task |= {"id": f"00000000-0000-4000-8000-00000000000{task['num']}", "check": None, "diff_stat": None}
    chosen = Choice()
    view = make_view(tasks)
    shown = draw(view, choose_tasks(view, chosen), {tasks[0]["id"]: "why it failed"}, chosen, NOW, (100, height))
    lines = [text for text, _ in shown]
    assert any(line.startswith("solved") for line in lines) is (height == 24)
    assert any("easy · m1" in line and line.endswith("why it failed") for line in lines)
    assert not any("00000000" in line for line in lines)
