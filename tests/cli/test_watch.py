"""A session on the whole screen: what is drawn, what keys do, and that the terminal is as it was before."""

from __future__ import annotations

import os
import signal
import termios
from typing import Any

import pytest
from conftest import Command, eventually
from shown import check_golden
from terminal import Terminal
from test_looks import BEGAN, NOW, make_task, make_view

from sessionrun.cli.board import ALL_KEYS, Choice, choose_tasks, draw
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


def make_landing() -> dict[str, Any]:
    """Some tasks that are held, each for another reason, and some whose work lands."""
    limit = {"held_until": "2026-11-23T19:30:12.000Z", "reason_class": "held", "reason": "held: usage limit"}
    tasks = [make_task(num, "pending", **limit) for num in (1, 2)]
    tasks += [make_task(3, "pending", reason_class="held", reason="held: on request")]
    states = enumerate(("landed", "waiting", "mending"), 4)
    return make_view([*tasks, *(make_task(num, landing={"status": word, "reason": None}) for num, word in states)])


def make_matrix() -> dict[str, Any]:
    """Tasks that have UUIDs, and are called by their rows and columns."""
    cells = [(row, model) for row in ("easy", "medium", "hard") for model in ("m1", "m2")]
    tasks = []
    for num, (row, model) in enumerate(cells, 1):
        known: dict[str, Any] = dict.fromkeys(("usage", "check", "diff_stat"))
        known["id"] = f"00000000-0000-4000-8000-00000000000{num}"
        labels = {"task": row, "model": model, "agent": "alpha"}
        tasks.append(make_task(num, outcome="failed", labels=labels, **known))
    return make_view(tasks)


BOARDS = {
    "many": make_session(100),
    "landing": make_landing(),
    "matrix": make_matrix(),
    "fine": make_view([make_task(1)]),
}


def shown_of(view: dict[str, Any], size: tuple[int, int], **choice: Any) -> list[tuple[str, str]]:
    chosen = Choice(**choice)
    tails = {
        "t3": "halfway\x1b[31m",
        "t2": "No such file",
        str(view["tasks"][:1] and view["tasks"][0]["id"]): "why",
    }
    return draw(view, choose_tasks(view, chosen), tails, chosen, NOW, size)


@pytest.mark.parametrize("size", ["120x40", "80x24", "80x24-c", "40x12"])
def test_what_is_drawn(size: str, monkeypatch: pytest.MonkeyPatch, utc: None) -> None:
    """What runs stands first, then what needs a person; a matrix stands on top of a screen that is high enough."""
    monkeypatch.setenv("LC_ALL", "C" if size.endswith("-c") else "C.UTF-8")
    width, height = map(int, size.removesuffix("-c").split("x"))
    text = ""
    for name, view in BOARDS.items():
        lines = shown_of(view, (width, height), selected=view["tasks"][-1]["id"] if name == "landing" else "t5")
        assert len(lines) == height and max(columns(line) for line, _ in lines) <= width
        text += "".join([f"== {name}\n", *(f"{style[:4]:4}|{line.rstrip()}\n" for line, style in lines)])
    assert text.isascii() or not size.endswith("-c")
    check_golden(f"board-{size}", text)


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
    feet = [shown_of(make_session(1), (width, 24))[-1][0] for width in (5, 80, 200)]
    assert feet[0] == "q ..." and len(feet[1]) <= 80 < len(feet[2])


def test_what_is_chosen() -> None:
    view = make_session(100)
    expected = ["t3", "t2", "t4", "t5"]
    assert [task["id"] for task in choose_tasks(view, Choice(only_attention=True)).tasks] == expected
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
    assert screen()[-1].startswith("q quit")
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
