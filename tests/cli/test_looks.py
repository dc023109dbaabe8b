"""What people see of sessions, word for word, on terminals and pipes; the golden screens are in data/looks.

`watch` is a session on the whole screen: what is drawn, what keys do, and that the terminal is as it was before.
"""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import termios
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from conftest import Command, eventually
from hypothesis import given
from hypothesis import strategies as st
from shown import check_golden, mask, with_state, with_word
from terminal import Terminal

from sessionrun.cli import standing
from sessionrun.cli.list import _count, _tell_totals, name_all
from sessionrun.cli.render import escape, escape_line, local_time, mark, short_time, table_lines
from sessionrun.cli.watch import ALL_KEYS, Choice, Watcher, choose_tasks, draw
from sessionrun.client.graph import estimate_left
from sessionrun.client.reading.steps import list_steps
from sessionrun.client.reading.view import load_view
from sessionrun.model.wording import clip, columns, fit_counts, tell_result
from sessionrun.store.session import SessionDir

JOURNALS = Path(__file__).parents[1] / "data" / "journals"
RECORDED = Path(__file__).parents[1] / "data" / "recorded" / "before-rooms" / "sessions"
BEGAN = "2026-01-02T03:00:00.000Z"
NOW = 1767322804.0
"""4 seconds after `BEGAN`."""

SCREENS = (
    *("80x24", "120x40", "200x50", "40x20", "80x24-dumb", "80x24-c"),
    *("watch-80x24", "watch-120x40", "watch-200x50", "watch-40x20", "watch-80x24-c"),
)


def make_task(
    num: int, status: str = "completed", outcome: str | None = "succeeded", **values: Any
) -> dict[str, Any]:
    """A task as status.json has it, with what people see of it."""
    task: dict[str, Any] = {"num": num, "id": f"t{num}", "title": f"Part {num}", "agent": "claude", "model": None}
    task |= {"status": status, "outcome": outcome if status == "completed" else None, "reason": None}
    task |= {"phase": "running" if status == "running" else None, "reason_class": None, "held_until": None}
    task |= {"started_at": None if status == "pending" else BEGAN, "ended_at": None, "needs": [], "landing": None}
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
        "seq": 99,
        "view_problems": [],
    }
    return with_state(view | values)


def screen_of(view: dict[str, Any], now: float, width: int) -> list[str]:
    """What `status` shows of a session, but for what to do next."""
    return [*standing.head_lines(view, now), *standing.task_lines(view, view["tasks"], now, width, every=False)]


TEN, RUNS = make_task(1), make_task(2, "running")
CHAIN = [TEN, RUNS, *(make_task(num, "pending", needs=[f"t{num - 1}"]) for num in (3, 4, 5))]
MIDDLE = [make_task(num, "pending", needs=["t2"]) for num in range(3, 23)]
FAN = [TEN, RUNS, *MIDDLE, make_task(23, "pending", needs=[task["id"] for task in MIDDLE])]
MIXED = [*(make_task(num, duration_s=seconds) for num, seconds in enumerate((5.0, 10.0, 30.0), 3)), RUNS]


@pytest.mark.parametrize(
    ("tasks", "elapsed", "slots", "left"),
    [
        ([RUNS], 5.0, None, None),
        ([TEN], None, None, None),
        ([TEN, RUNS], 4.0, None, 6.0),
        ([TEN, RUNS], 40.0, None, None),
        (CHAIN, 4.0, 8, 6.0 + 30),
        *((FAN, 4.0, slots, 6.0 + middle + 10) for slots, middle in ((None, 10), (10, 20), (1, 200))),
        *((MIXED, elapsed, None, mean - elapsed) for elapsed, mean in ((4.0, 15), (7.0, 20), (20.0, 30))),
        ([*MIXED, make_task(6, "pending")], 4.0, None, 15 - 4.0 + 15),
    ],
)
def test_the_time_left_is_a_guess_from_what_tasks_took_that_have_ended(
    tasks: list[dict[str, Any]], elapsed: float | None, slots: int | None, left: float | None
) -> None:
    """In a chain, or in a fan: many that need only one, and one that needs them all."""
    found = estimate_left(tasks, {} if elapsed is None else {"t2": elapsed}, slots)
    assert found == (None if left is None else pytest.approx(left))


def test_the_time_left_is_told_once_it_can_be_known() -> None:
    tasks = [make_task(1), make_task(2, outcome="failed"), make_task(3, "running"), make_task(4, "pending")]
    assert standing.tell_left(make_view(tasks), NOW) == "about 16.0 s left"
    assert standing.tell_left(make_view(tasks, ended_at=BEGAN), NOW) == ""
    held = make_task(5, "pending", reason="held: on request", reason_class="held")
    assert standing.tell_left(make_view([*tasks, held]), NOW) == "", "while a task is held, no time is known"
    late = [make_task(1), make_task(2, "running", started_at="2026-01-02T02:59:00.000Z")]
    assert standing.tell_left(make_view(late), NOW) == "", "it runs longer than any before it"


def load_recorded() -> dict[str, dict[str, Any]]:
    """The views of recorded sessions by name, each as a reader has it, and some of sessions as long as a night."""
    files = {path.parent.name: path for path in JOURNALS.glob("*/folded.json")}
    seen: dict[str, Any] = {"results_dir": "/nowhere/session", "stopped": [], "disk_full": None, "no_contact": []}
    views = {name: {**json.loads(path.read_text()), **seen} for name, path in sorted(files.items())}
    views["before-rooms"] = load_view(SessionDir(next(RECORDED.iterdir()))) | {"results_dir": "/nowhere/session"}
    return views | {"night": make_night(), "held": make_held(), "odd": make_odd(), "batch300": make_batch()}


def make_night() -> dict[str, Any]:
    """Eight tasks of a night whose work was to land."""
    landed = {"status": "landed", "reason": None}
    clash = {"reason_class": "conflict", "reason": "it conflicts with main in calc.py, which sub changed"}
    stat = {"files": 1, "insertions": 3, "deletions": 0}
    work: dict[str, Any] = {"diff_stat": stat, "duration_s": 4.8}
    none: dict[str, Any] = {"diff_stat": dict.fromkeys(stat, 0), "duration_s": 2.5}
    red: dict[str, Any] = {"reason": "check_failed: exit code 2 of: make test", "reason_class": "check_failed"}
    dead: dict[str, Any] = {"reason": "exit_code: exit code 7", "reason_class": "exit_code"}
    tasks = [
        make_task(1, id="sub", title="Add subtraction", landing=landed, **work),
        make_task(2, id="docs", title="Describe the functions", landing=landed, **work),
        make_task(3, id="neg", title="Add negation in its own module with tests", landing=landed, **work),
        make_task(4, id="mul", title="Add multiplication", landing={"status": "bounced", **clash}, **work),
        make_task(5, id="div", title="Add division", outcome="failed", **red, **work),
        make_task(6, id="mod", title="Add modulo", outcome="failed", **dead, **none),
        make_task(7, id="tidy", title="Tidy up the tests", **none),
        make_task(8, id="late", title="Wait for it", outcome="timed_out", duration_s=192.0)
        | {"reason": "timeout: not done after 3 m", "reason_class": "timeout"},
    ]
    return make_view(tasks, status="completed", ended_at="2026-01-02T03:00:11.700Z", name="night")


def make_held() -> dict[str, Any]:
    held = {"reason": "held: on request", "reason_class": "held"}
    limit = {"reason": "held: usage_limit: come back later", "reason_class": "held"}
    until = {**limit, "held_until": "2026-01-02T03:41:04.000Z"}
    tasks = [make_task(1), make_task(2, "running"), *(make_task(num, "pending", **held) for num in range(3, 6))]
    tasks += [make_task(num, "pending", **until) for num in range(6, 12)]
    return make_view(tasks, name="held")


def make_odd() -> dict[str, Any]:
    """Tasks with long and hostile reasons, what one does just now, and titles that begin alike."""
    osc = "agent_error: \x1b]52;c;AAAA\x07\nsecond line"
    titles = [f"Fix the warnings in src/package/of/many/modules/{name}.py" for name in ("auth", "queue")]
    tasks = [
        make_task(1, outcome="timed_out", reason="timeout: " + "word " * 30, reason_class="timeout"),
        make_task(2, "running", phase="checking"),
        make_task(3, "pending", held_until="2026-01-02T03:00:49.000Z"),
        make_task(4, outcome="failed", reason=osc, reason_class="agent_error"),
        *(make_task(num, title=title) for num, title in enumerate(titles, 5)),
    ]
    return make_view(tasks, name="odd")


def make_batch(total: int = 300) -> dict[str, Any]:
    """Many tasks, of which few failed, for few reasons."""
    reasons = {0: "exit_code: exit code 1", 7: "check_failed: exit code 1", 11: "timeout: not done after 3 s"}
    tasks = []
    for num in range(total):
        reason = reasons.get(num % 43)
        kind = reason and reason.partition(":")[0]
        outcome = {None: "succeeded", "timeout": "timed_out"}.get(kind or None, "failed")
        facts: dict[str, Any] = {"id": f"t{num:03}", "reason": reason, "reason_class": kind}
        tasks.append(make_task(num, outcome=outcome, **facts))
    return make_view(tasks, status="completed", ended_at="2026-01-02T03:00:09.700Z", name="batch300")


@pytest.mark.parametrize(("name", "width"), [("80", 80), ("120", 120), ("200", 200), ("ascii", 80), ("brief", 0)])
def test_the_screens_of_recorded_sessions(name: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `status` prints of each."""
    monkeypatch.setenv("LC_ALL", "C" if name == "ascii" else "C.UTF-8")
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    blocks = []
    for of, view in load_recorded().items():
        lines = screen_of(view, NOW, width) if width else standing.brief_lines(view, view["tasks"], NOW)
        assert all(columns(line) <= (width or 120) or "/" in line for line in lines), of
        blocks.append("\n".join([f"== {of}", *lines, ""]))
    text = "\n".join(blocks)
    assert name not in ("ascii", "brief") or text.isascii()
    check_golden(f"status-{name}", text)


@pytest.mark.parametrize("name", load_recorded())
def test_counts_add_up_in_every_verb_that_prints_them(name: str) -> None:
    view = load_recorded()[name]
    seen = time.time()
    lines = {
        "status": screen_of(view, seen, 80)[1],
        "--brief": standing.brief_lines(view, view["tasks"], seen)[1],
        "wait": standing.how_far_lines(view, seen, view["tasks"], waits=False)[0].rpartition(": ")[2],
        "--sync": tell_result(view, seen).partition(": ")[2].partition(";")[0],
        "list": fit_counts(view["counts"], 1000),
        "list --totals": _tell_totals([view]).partition(" tasks: ")[2].partition(";")[0],
    }
    for verb, line in lines.items():
        told = {word: int(number) for number, word in re.findall(r"(\d+) ([a-z ]+)", line)}
        assert sum(told.values()) == view["total"] == len(view["tasks"]), verb
        counted = Counter(task["word"].replace("_", " ") for task in view["tasks"])
        assert told == counted, verb
    sessions, tasks = _count([view, view]).values()
    assert sum(tasks["counts"].values()) == tasks["total"] == 2 * view["total"]
    states = sessions["states"]
    assert sessions["total"] == sessions[view["status"]] == states[view["state"]] == sum(states.values()) == 2


def test_what_is_next_is_a_command_for_each_word() -> None:
    landings = {2: {"status": "bounced", "reason": None}, 3: {"status": "held", "reason": None}}
    tasks = [make_task(1, outcome="failed"), *(make_task(num, landing=landings[num]) for num in landings)]
    tasks += [make_task(4, "pending", reason_class="held"), make_task(5, diff_stat={"files": 0}), make_task(6)]
    steps = list_steps(make_view(tasks), tasks)
    assert [" ".join([step.verb, *step.words]) for step in steps if step.needed] == [
        *("release", "merge t2", "merge t3", "retry --failed", "results t5")
    ]
    assert [step.verb for step in list_steps(make_view(tasks), tasks[5:])] == []
    lost = [tasks[0], make_task(7, outcome="lost")]
    assert [[*step.words] for step in list_steps(make_view(lost), lost) if step.verb == "retry"] == [[]]


def test_a_session_has_as_many_digits_as_tell_it_from_others() -> None:
    views = [
        {"session_id": f"12345678{end}", "name": name} for end, name in (("-a", None), ("-b", "x"), ("-c", "x"))
    ]
    assert name_all(views) == ["12345678-a", "x (12345678-b)", "x (12345678-c)"]


def test_many_tasks_are_groups_unless_all_are_asked_for() -> None:
    """The screens of recorded sessions show the groups."""
    view = make_batch()
    assert len(standing.task_lines(view, view["tasks"], NOW, 80, every=False)) == 6
    assert len(standing.task_lines(view, view["tasks"], NOW, 80, every=True)) > 300


REASONS = st.text(alphabet='ab :"\\\x1b\u00e9\u4f60\U0001f680\n', max_size=400)


@given(
    reasons=st.lists(REASONS, min_size=1, max_size=30),
    total=st.integers(0, 400),
    name=st.text(max_size=60),
    held=st.booleans(),
)
def test_the_brief_form_keeps_to_its_size(reasons: list[str], total: int, name: str, held: bool) -> None:
    facts = {"reason_class": "held" if held else "agent_error", "id": "x" * 128}
    status = "pending" if held else "completed"
    tasks = [
        make_task(num, status, outcome="failed", reason=reasons[num % len(reasons)], **facts)
        for num in range(total)
    ]
    view = make_view(tasks, name=name, view_problems=["p" * 5000] * 9, results_dir="/" + "d" * 4000 + "/session-a")
    view["counts"] = dict.fromkeys(view["counts"], 100_000)
    text = "\n".join(standing.brief_lines({**view, "seq": 10**9}, tasks, NOW)) + "\n"
    assert len(text.encode("utf-8", "backslashreplace")) <= 1600
    assert "Cursor: 1000000000" in text and (not tasks or " held" in text)
    far = "\n".join(standing.how_far_lines(view, NOW, waits=True)) + "\n"
    assert len(far.encode("utf-8", "backslashreplace")) <= 200


def test_signs_and_words_alone_are_coloured(monkeypatch: pytest.MonkeyPatch) -> None:
    class Screen(io.StringIO):
        encoding = "utf-8"

        def isatty(self) -> bool:
            return True

    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    line = standing.ended_line(make_night()["tasks"][4], {}, NOW, Screen())
    assert line == "\x1b[31m\u2717 div failed\x1b[0m: check failed, exit code 2: make test"
    monkeypatch.setenv("NO_COLOR", "1")
    assert standing.ended_line(make_night()["tasks"][4], {}, NOW, Screen()).startswith("\u2717 div failed: ")
    assert mark("landed", "landed", io.StringIO()).endswith(" landed")


def test_of_an_audit_alarms_are_shown_and_notes_where_all_is() -> None:
    notes = [{"level": level, "where": "a.py", "text": "why"} for level in ("note", "alarm")]
    task = {"status": "completed", "outcome": "succeeded", "audit": notes}
    assert standing.fact_lines(task, "  ", tests=False) == ["  audit: alarm: a.py: why"]
    assert len(standing.fact_lines(task, "", tests=False, notes=True)) == 2


def test_a_bar_is_as_long_as_its_parts() -> None:
    ascii_stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    assert "".join(part for _, part in standing.draw_bar(make_night(), 16, ascii_stream)) == "######xxxxxx~~~~"
    assert not any(part for _, part in standing.draw_bar(make_view([]), 10, ascii_stream))


# --- what is printed ---

UNDER_WAY = {
    "name": "a name that is so long that a table row which shows it whole would not fit in 80 columns",
    "prompts": [
        {"id": "uuid1", "prompt": "echo first; printf second"},
        {"id": "uuid2", "prompt": "sleep 600"},
        {"id": "uuid3", "prompt": "true", "needs": ["uuid2"]},
    ],
}
LOOKS = ("--status ID", "--results ID", "--list", "--overview", "list", "status")


@pytest.mark.parametrize(
    ("name", "env"), [("blocks", {}), ("blocks-c", {"LC_ALL": "C"}), ("blocks-c", {"PYTHONIOENCODING": "ascii"})]
)
def test_what_is_printed_before_a_session_and_while_it_is_under_way(
    sessionrun: Command, name: str, env: dict[str, str]
) -> None:
    """The blocks of the seed, and what verbs say today; in ASCII where the terminal has no more."""
    printed = [sessionrun(*words.split(), env=env) for words in ("list", "list --totals", "--list", "--overview")]
    plan = json.dumps(UNDER_WAY)
    printed += [sessionrun(*words, "--agent", "shell", stdin=plan, env=env) for words in (["--dry-run"], [])]
    session_id = sessionrun.load("list")["sessions"][0]["session_id"]
    assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", session_id)
    states = ["completed", "running", "pending"]
    sessionrun.until(session_id, lambda view: [task["status"] for task in view["tasks"]] == states)
    printed += [sessionrun(*words.replace("ID", session_id[:8]).split(), env=env) for words in LOOKS]
    text = "".join(f"== {' '.join(done.args[3:])}\n{done.stdout}{done.stderr}" for done in printed)
    text = re.sub(r"/\S+/sh PROMPT", "sh PROMPT", text.replace(str(sessionrun.cwd), "/place"))
    assert text.isascii() or name == "blocks"
    check_golden(name, mask(text, session_id))


def test_dates_are_the_c_librarys_in_local_time(monkeypatch: pytest.MonkeyPatch) -> None:
    assert local_time("2025-07-23T15:30:45.123Z") == "Wed Jul 23 15:30:45 2025"
    assert local_time("2025-07-03T05:06:07Z") == "Thu Jul  3 05:06:07 2025"
    assert local_time(None) == short_time(None) == "-"
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    assert local_time("2025-12-31T15:30:45.000Z") == "Thu Jan  1 00:30:45 2026"
    assert short_time("2025-12-31T15:30:45.000Z") == "2026-01-01 00:30:45"
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain\ttext\n", "plain\ttext\n"),
        ("crlf\r\nline", "crlf\r\nline"),
        ("over\rwritten", "over\\x0dwritten"),
        ("\x1b[31mred\x9b0m\x7f\x00", "\\x1b[31mred\\x9b0m\\x7f\\x00"),
        ("\u202eevil\u2066\u200f", "\\u202eevil\\u2066\\u200f"),
        ("\u2028\u2029\ufeff\U000e0041", "\\u2028\\u2029\\ufeff\\U000e0041"),
        (b"\xff\x80".decode("utf-8", "surrogateescape"), "\\xff\\x80"),
        ("\ud83d", "\\ud83d"),
        ("\u4f60\u597d \U0001f680 \xe9", "\u4f60\u597d \U0001f680 \xe9"),
    ],
)
def test_foreign_text_is_harmless_on_a_terminal(text: str, expected: str) -> None:
    assert escape(text) == expected


def test_one_line_is_one_line_and_a_cell_is_no_more() -> None:
    assert escape_line(" a\n b\tc\x0b\x1b ") == "a b c \\x1b"
    assert clip("short", 8) == "short"
    assert clip("a longer one", 8) == "a lon..."
    assert clip("\u4f60\u597d\u4f60\u597d\u4f60", 8) == "\u4f60\u597d..."
    lines = [*table_lines(("A", "B"), [("1\n2", "\x1b[2J"), ("1e3", "001")])]
    assert lines == ["A    B", "1 2  \\x1b[2J", "1e3  001"]


def test_no_line_of_ours_is_wider_than_80_columns(sessionrun: Command) -> None:
    """Ids and outputs are short here; paths are left out."""
    sessionrun.start(UNDER_WAY)
    plan = {
        "name": "\u4f60\u597d" * 30,
        "prompts": [{"id": f"t{n}", "prompt": "true", "timeout": 30} for n in range(12)] + ["exit 3"],
    }
    sessionrun.finished(plan, "--label", "key=" + "v" * 90)
    for words in ("status", "results", "list", "list --totals", "--list", "--overview", "wait", "doctor agents"):
        for line in sessionrun(*words.split()).stdout.splitlines():
            width = sum(2 if char > "\u3000" else 1 for char in line)
            assert width <= 80 or "/" in line, line


# --- on a terminal ---


@pytest.mark.slow
@pytest.mark.parametrize("screen", SCREENS)
def test_the_screen(sessionrun: Command, tmp_path: Path, screen: str) -> None:
    """`status` and `list` of a recorded session, or `watch`, as tmux shows them."""
    size, _, kind = screen.removeprefix("watch-").partition("-")
    settings = ["TZ=UTC", f"LC_ALL={'C' if kind == 'c' else 'C.UTF-8'}", *["TERM=dumb"] * (kind == "dumb")]
    # the variables would win over what the terminal says itself
    program = shlex.join(["env", "-u", "COLUMNS", "-u", "LINES", *settings, *sessionrun.argv])
    script, end = f"clear; {program} status; {program} list; echo END; exec cat", "END"
    if screen.startswith("watch"):
        script, end = f"{program} watch; exec cat", "q quit"
    if shutil.which("tmux") is None:
        pytest.skip("tmux is not installed")
    shutil.copytree(RECORDED, sessionrun.results)
    width, height = size.split("x")
    tmux = ["tmux", "-S", str(tmp_path / "s"), "-f", "/dev/null"]
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
    check_golden(screen, text)


# --- watch ---

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
    return draw(view, chosen, tails, NOW, size)


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
    for choice, ids in ((Choice(only_attention=True), expected), (Choice(find="PARSER"), ["t1"])):
        assert [task["id"] for block in choose_tasks(view, choice) for task in block] == ids
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
    assert [watcher.press(key) for key in ("l", "z", "/", "q")] == ["logs", None, None, None]
    assert "find: q  (Enter ends it)" in screen()[-1]
    assert [watcher.press(key) for key in ("\r", "q")] == [None, "q"]


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


def test_a_signal_while_a_page_is_shown_leaves_no_terminal_behind_that_echoes_nothing(sessionrun: Command) -> None:
    session_id = sessionrun.finished(["true"])
    with Terminal([*sessionrun.argv, "watch", session_id], sessionrun.cwd, {"PAGER": "cat"}) as terminal:
        before = termios.tcgetattr(terminal.fd)
        terminal.read_until(b"q quit")
        terminal.type(b"l")
        terminal.read_until(b"any key goes back")
        terminal.output = b""
        eventually(lambda: termios.tcgetattr(terminal.fd) != before)  # it waits for the key
        os.kill(terminal.pid, signal.SIGTERM)
        terminal.read_until(b"q quit")
        terminal.type(b"q")
        assert terminal.finish() == 0
        assert termios.tcgetattr(terminal.fd) == before


def test_a_terminal_that_is_lost_is_no_bug(sessionrun: Command) -> None:
    session_id = sessionrun.finished(["true"])
    shell = f"exec {shlex.join([*sessionrun.argv, 'watch', session_id])} 2>told"
    with Terminal(["/bin/sh", "-c", shell], sessionrun.cwd) as terminal:
        terminal.read_until(b"q quit")
        terminal.close()
        _, status = os.waitpid(terminal.pid, 0)
        terminal.reaped(status)
    assert "bug" not in (sessionrun.cwd / "told").read_text()


def test_off_a_terminal_it_is_one_look(sessionrun: Command) -> None:
    session_id = sessionrun.finished(["true", "exit 3"])
    done = sessionrun("watch", session_id)
    assert (done.returncode, done.stdout) == (0, sessionrun("status", session_id).stdout)
