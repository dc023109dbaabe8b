"""What people see, word for word: the blocks of the seed, and the rules that all printed lines keep."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import Command, kill_sessions
from stages import live_in
from terminal import Terminal

from sessionrun.cli.argv import VERBS
from sessionrun.cli.render import duration, escape, escape_line, local_time, print_table, short_time
from sessionrun.model.wording import clip

UNDER_WAY = {
    "name": "a name that is so long that a table row which shows it whole would not fit in 80 columns",
    "prompts": [
        {"id": "uuid1", "prompt": "echo first; printf second"},
        {"id": "uuid2", "prompt": "sleep 600"},
        {"id": "uuid3", "prompt": "true", "needs": ["uuid2"]},
    ],
}
ASCII = [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C"}, {"LC_ALL": "POSIX"}]


def start_under_way(command: Command) -> str:
    """A session with one task completed, one running and one pending."""
    session_id = command.start(UNDER_WAY)
    command.until(
        session_id,
        lambda view: [t["status"] for t in view["tasks"]] == ["completed", "running", "pending"],
    )
    return session_id


@pytest.fixture
def under_way(sessionrun: Command) -> str:
    """A session of the test's own that is under way."""
    return start_under_way(sessionrun)


@pytest.fixture(scope="module")
def seen_place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """A place in which a session is under way, for tests that only look at it; and its id."""
    place = tmp_path_factory.mktemp("seen")
    for name in ("home", "work"):
        (place / name).mkdir()
    command = Command(place / "work", place / "work" / "results")
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("SESSIONRUN_")]:
            patch.delenv(name)
        live_in(place, patch)
        session_id = start_under_way(command)
    yield place, session_id
    kill_sessions(command.results)


@pytest.fixture
def seen(sessionrun: Command, seen_place: tuple[Path, str], monkeypatch: pytest.MonkeyPatch) -> str:
    """A session that is under way and that others look at, too: it must stay as it is."""
    place, session_id = seen_place
    live_in(place, monkeypatch)
    sessionrun.cwd = place / "work"
    return session_id


def test_the_start_block(sessionrun: Command) -> None:
    done = sessionrun("--agent", "shell", stdin='{"prompts": ["true"]}')
    session_id = done.stdout.split("\n")[0].rpartition(" ")[2]
    assert done.stdout == (
        f"\U0001f680 Started session: {session_id}\n"
        f"\U0001f4c2 Results directory: results/session-{session_id}\n"
        "\n"
        "Use these commands to monitor progress:\n"
        f"  sessionrun --status {session_id}\n"
        f"  sessionrun --results {session_id}\n"
    )
    assert done.stderr == "agent: shell (asked for)\n"
    assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", session_id)


def test_the_status_block(sessionrun: Command, seen: str) -> None:
    done = sessionrun("--status", seen[:9])
    started = local_time(sessionrun.status(seen)["started_at"])
    assert done.stdout == (
        f"Session: {seen}\n"
        "Status: running\n"
        f"Started: {started}\n"
        "Tasks: 1/3\n"
        "\n"
        "Tasks:\n"
        "  \u2705 Task 1 (ID: uuid1): completed\n"
        "  \u23f3 Task 2 (ID: uuid2): running\n"
        "  \u23f3 Task 3 (ID: uuid3): pending\n"
    )
    assert done.stderr == ""


def test_the_results_block(sessionrun: Command, seen: str) -> None:
    done = sessionrun("--results", seen)
    assert done.stdout == (
        f"Session: {seen}\n"
        "==================================================\n"
        "\n"
        "Task 1 (ID: uuid1):\n"
        "------------------------------\n"
        "first\n"
        "second\n"
        "\n"
        "Task 2 (ID: uuid2):\n"
        "------------------------------\n"
        "[Task still running...]\n"
        "\n"
        "Task 3 (ID: uuid3):\n"
        "------------------------------\n"
        "[Task not started yet]\n"
    )


def finish(sessionrun: Command, plan: object, *words: str) -> str:
    """Run a plan to its end; the session's id."""
    (sessionrun.cwd / "plan.json").write_text(json.dumps(plan))
    done = sessionrun.to_end("-q", "--agent", "shell", *words, "plan.json")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_failed_task(sessionrun: Command) -> None:
    plan = {"prompts": [{"id": "a", "prompt": "echo out; echo why >&2; exit 7"}]}
    session_id = finish(sessionrun, plan)
    shown = re.sub(r"\d+\.\d s", "N s", sessionrun("status", session_id).stdout)
    short = session_id[:8]
    assert shown == (
        f"{short}: ended, 1 task, N s\n"
        "1 failed\n"
        "\u2717 failed  a  echo out; echo why >&2; exit 7  N s\n"
        "    exit code 7\n"
        "\n"
        "Next:\n"
        f"  sessionrun results {short} --failed    # why\n"
        f"  sessionrun retry {short} --failed\n"
    )
    head, *lines = sessionrun("results", session_id).stdout.splitlines()
    assert head.startswith(f"{session_id[:8]}: ended, 1 task, ")
    assert lines == [
        "1 failed",
        "",
        "\u2717 a failed: exit code 7",
        "  [standard error, last lines]",
        "    why",
        "  [the agent said]",
        "out",
    ]


def test_the_list_of_a_verb_tells_what_came_out(sessionrun: Command, seen: str) -> None:
    head, row = sessionrun("list").stdout.splitlines()
    assert head.split() == ["STATE", "SESSION", "TOOK", "OUTCOME"]
    assert re.fullmatch(r"running  a name that is so long that\.\.\.  +[\d.]+ [ms].*  1 running, 1 waiting", row)


def test_list(sessionrun: Command, seen: str) -> None:
    lines = sessionrun("--list").stdout.splitlines()
    started = short_time(sessionrun.status(seen)["started_at"])
    assert lines == [
        "ID        STATUS   TASKS  FAILED  AGENT  STARTED              NAME",
        f"{seen[:8]}  running  1/3            shell  {started}  a name...",
    ]


def test_overview(sessionrun: Command, seen: str) -> None:
    assert sessionrun("--overview").stdout == (
        "Sessions: 1\n"
        "  running: 1\n"
        "Tasks: 1/3 completed\n"
        "  running: 1\n"
        "  successful: 1\n"
        "  failed: 0\n"
        "  skipped: 0\n"
        "Success rate: 100%\n"
    )


def test_nothing_there(sessionrun: Command) -> None:
    assert sessionrun("list").stdout == "No sessions.\n"
    assert sessionrun("list", "--totals").stdout == sessionrun("overview").stdout == "0 sessions\n"
    assert sessionrun("--list").stdout == "No sessions.\n"
    assert sessionrun("--overview").stdout.startswith("Sessions: 0\nTasks: 0/0 completed\n")


def test_wait_and_cancel(sessionrun: Command, under_way: str) -> None:
    done = sessionrun("wait", under_way, "1")
    assert done.stdout == "a name that is so long that...: 1 of 1 ended: 1 succeeded\n"
    done = sessionrun("cancel", under_way)
    name = f"a name that is so long that... ({under_way[:8]})"
    assert done.stdout == f"{name}: 2 cancelled, 1 had ended before\n"


def test_dry_run(sessionrun: Command) -> None:
    done = sessionrun("--dry-run", "--agent", "shell", stdin='{"prompts": [{"id": "a", "prompt": "true"}]}')
    argv = next(line for line in done.stdout.splitlines() if "argv" in line)
    assert done.stdout == (
        'Format: prompts (JSON object with "prompts")\n'
        "Agent: shell (asked for)\n"
        "Tasks: 1, all at once\n"
        "\n"
        "  Task 1 (ID: a): true\n"
        f"{argv}\n"
        f"    cwd: {sessionrun.cwd}\n"
    )
    assert argv.endswith("/sh PROMPT-FILE")


@pytest.mark.slow
@pytest.mark.parametrize("env", ASCII, ids=str)
def test_ascii_where_the_terminal_has_no_more(sessionrun: Command, under_way: str, env: dict[str, str]) -> None:
    done = sessionrun("status", under_way, env=env)
    assert done.stdout.isascii()
    assert re.search(
        r"^ok succeeded  uuid1 .*\n>> running    uuid2 .*\n\.\. waiting    uuid3 ", done.stdout, re.MULTILINE
    )
    flagged = sessionrun("--status", under_way, env=env).stdout
    assert "  [ok] Task 1 (ID: uuid1): completed\n  [..] Task 2 (ID: uuid2): running\n" in flagged
    done = sessionrun("--agent", "shell", stdin='{"prompts": ["exit 1"]}', env=env)
    assert done.stdout.isascii()
    assert done.stdout.startswith("* Started session: ")
    sessionrun("wait", "last", env=env)
    assert "\nXX failed  " in sessionrun("status", "last", env=env).stdout


def test_dates_are_the_c_librarys_in_local_time(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

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
    ("seconds", "expected"),
    [(None, "-"), (0, "0.0 s"), (59.94, "59.9 s"), (192, "3 m 12 s")],
)
def test_durations(seconds: float | None, expected: str) -> None:
    assert duration(seconds) == expected


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


def test_one_line_is_one_line() -> None:
    assert escape_line(" a\n b\tc\x0b\x1b ") == "a b c \\x1b"
    assert clip("short", 8) == "short"
    assert clip("a longer one", 8) == "a lon..."
    assert clip("\u4f60\u597d\u4f60\u597d\u4f60", 8) == "\u4f60\u597d..."


def test_table_cells_cannot_break_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("A", "B"), [("1\n2", "\x1b[2J"), ("1e3", "001")])
    assert capsys.readouterr().out == "A    B\n1 2  \\x1b[2J\n1e3  001\n"


def test_no_line_of_ours_is_wider_than_80_columns(sessionrun: Command, under_way: str) -> None:
    """Ids and outputs are short here; paths are left out."""
    plan = {
        "name": "\u4f60\u597d" * 30,
        "prompts": [{"id": f"t{n}", "prompt": "true", "timeout": 30} for n in range(12)] + ["exit 3"],
    }
    finish(sessionrun, plan, "--label", "key=" + "v" * 90)
    for words in ("status", "results", "list", "list --totals", "--list", "--overview", "wait", "doctor agents"):
        for line in sessionrun(*words.split()).stdout.splitlines():
            width = sum(2 if char > "\u3000" else 1 for char in line)
            assert width <= 80 or "/" in line, line


@pytest.mark.parametrize("verb", VERBS)
def test_help_is_narrow_and_short(sessionrun: Command, verb: str) -> None:
    done = sessionrun(verb, "--help", env={"COLUMNS": "200"})
    assert done.returncode == 0
    check_help(verb, done.stdout.splitlines())


@pytest.mark.parametrize(
    "verb", ["run", *(pytest.param(verb, marks=pytest.mark.slow) for verb in VERBS if verb != "run")]
)
def test_help_fits_a_terminal(sessionrun: Command, verb: str) -> None:
    with Terminal([*sessionrun.argv, verb, "--help"], sessionrun.cwd, {"COLUMNS": "200"}) as terminal:
        assert terminal.finish() == 0
    check_help(verb, terminal.output.decode().splitlines())


def check_help(verb: str, lines: list[str]) -> None:
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 60
    assert lines[0].startswith("sessionrun [run] [OPTIONS] " if verb == "run" else f"Usage: sessionrun {verb} ")


def test_help_of_the_group(sessionrun: Command) -> None:
    plain = sessionrun("--help")
    assert plain.stdout == sessionrun("-h").stdout
    lines = plain.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 24


def test_version(sessionrun: Command) -> None:
    from sessionrun import __version__

    assert sessionrun("--version").stdout == sessionrun("-v").stdout == f"sessionrun {__version__}\n"


def test_the_installed_command_is_the_same(sessionrun: Command) -> None:
    program = Path(sys.executable).with_name("sessionrun")
    if not program.exists():
        pytest.skip("the package is not installed beside this interpreter")
    with Terminal([str(program), "--version"], sessionrun.cwd) as terminal:
        assert terminal.finish() == 0
    assert terminal.output.startswith(b"sessionrun ")
