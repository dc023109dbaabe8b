"""Which sessions a verb means, and what programs that wait for many tasks pay: calls and bytes."""

from __future__ import annotations

import json
import os
import re
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest
from conftest import Command
from shown import with_state
from simulation import make_session

from sessionrun.cli.options import Answer, act_on_each, note_json
from sessionrun.client.lookup import Chosen, choose_sessions, find_session, is_in_state
from sessionrun.engine.status import project_live, project_summary
from sessionrun.model.errors import InputError, SessionGone, SessionNotFound
from sessionrun.model.spec import TaskSpec
from sessionrun.session.history import begin
from sessionrun.store.creation import create_session
from sessionrun.store.seal import seal
from sessionrun.store.session import SessionDir

# --- a session ---

READERS = ("status", "results", "wait", "logs", "cost", "explain", "diff")
SAYS = {"prompts": [{"id": "a", "prompt": "echo said"}]}


@pytest.fixture
def away(tmp_path: Path) -> Command:
    """The command in another directory, without sessions."""
    (tmp_path / "away").mkdir()
    return Command(tmp_path / "away", tmp_path / "away" / "results")


def test_a_results_directory_is_named_and_has_to_be_there(sessionrun: Command) -> None:
    elsewhere, plan = str(sessionrun.cwd / "else where"), '{"prompts": ["true"]}'
    done = sessionrun("-q", "--agent", "shell", stdin=plan, env={"SESSIONRUN_RESULTS_DIR": elsewhere})
    session_id = done.stdout.strip()
    assert sessionrun("wait", session_id, "--results-dir", elsewhere).returncode == 0
    named = {"list", "overview", "doctor", "clean"}
    for verb in (*READERS, "list", "overview", "doctor", "cancel", "retry", "hold", "release", "resume"):
        words = [] if verb in named else [session_id]
        done = sessionrun(verb, *words, "--results-dir", "nosuch")
        assert (done.returncode, done.stdout) == (2, ""), verb
        assert done.stderr == "sessionrun: error: --results-dir: there is no directory nosuch\n"
        if verb not in ("logs", "diff"):  # the one prints a line for each line, the other has nothing to show
            done = sessionrun(verb, *words, "--results-dir", elsewhere, "--json")
            assert (done.returncode, done.stderr, json.loads(done.stdout)["schema_version"]) == (0, "", 2), verb
    assert sessionrun("clean", "--worktrees", "--results-dir", "nosuch").returncode == 2
    assert not (sessionrun.cwd / "nosuch").exists() and not sessionrun.results.exists()
    assert sessionrun("-q", "--agent", "shell", "--results-dir", "new", stdin=plan).returncode == 0
    assert sessionrun("wait", "--results-dir", "new").returncode == 0


def test_by_name_and_from_another_directory(sessionrun: Command, away: Command) -> None:
    nightly, weekly = sessionrun.finished(SAYS, "--name", "nightly"), sessionrun.finished(SAYS, "--name", "weekly")
    for command in (sessionrun, away):
        assert command.load("status", "nightly")["session_id"] == nightly
        assert command("wait", "weekly").stdout == "weekly: 1 of 1 ended: 1 succeeded\n"
        assert command("cancel", "weekly").stdout == f"weekly ({weekly[:8]}): 1 had ended before\n"
        assert command("resume", "nightly").stdout.startswith(f"nightly ({nightly[:8]}): has ended")
    line = f"Results directory: {sessionrun.results}\n"
    head = rf"nightly \({nightly[:8]}\): ended, 1 task, \d+\.\d s\n1 succeeded\n{re.escape(line)}"
    for verb in ("status", "results", "explain"):
        assert re.match(head, away(verb, nightly).stdout), verb
        assert line not in sessionrun(verb, nightly).stdout
    logs = away("logs", nightly)
    assert (logs.stdout, logs.stderr, sessionrun("logs", nightly).stderr) == ("said\n", line, "")
    heads_of_list, *rows = away("list", "--all").stdout.splitlines()
    assert "DIRECTORY" in heads_of_list and [f"  {sessionrun.results}  " in row for row in rows] == [True, True]
    assert "DIRECTORY" not in sessionrun("list").stdout
    summary = SessionDir(sessionrun.directory(nightly)).summary_path
    content = summary.read_bytes()
    summary.unlink()
    assert sessionrun.load("status", "nightly")["session_id"] == nightly  # the spec has it too
    summary.write_bytes(content)
    own = away.finished(SAYS, "--name", "nightly")
    assert away.load("status", "nightly")["session_id"] == own  # here goes before elsewhere
    removed = sessionrun.load("clean", "weekly", "--state", "completed")["findings"]
    assert [one["session_id"] for one in removed if one["removed"]] == [weekly]


def test_a_whole_id_costs_no_look_at_names(sessionrun: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    session_id = sessionrun.finished(SAYS, "--name", "nightly")
    elsewhere = sessionrun.cwd / "empty"
    for other in ("x", "y"):
        (elsewhere / f"session-{other}").mkdir(parents=True)
        os.mkfifo(elsewhere / f"session-{other}" / "summary")  # to read one is refused
        (elsewhere / f"session-{other}" / "spec.json").mkdir()
    looked: list[str] = []
    monkeypatch.setattr(SessionDir, "load_summary", lambda session: looked.append(session.session_id))
    assert find_session(elsewhere, session_id).session_id == session_id
    assert looked == []
    with pytest.raises(SessionNotFound):
        find_session(elsewhere, "no such name")
    assert set(looked) == {"x", "y", session_id}


# --- several sessions ---

GOOD: dict[str, Any] = {"prompts": [{"id": "a", "prompt": "true"}, {"id": "b", "prompt": "true"}]}
BAD = {"prompts": [{"id": "a", "prompt": "true"}, {"id": "bad", "prompt": "echo why >&2; exit 3"}]}
CROWD, FAILING = 50, (7, 11, 23, 31, 50)


@pytest.fixture
def pair(sessionrun: Command) -> tuple[str, str]:
    """Two sessions that have ended: a good one, then one with a failed task; each has labels."""
    good = sessionrun.finished(GOOD, "--label", "team=x", "--label", "kind=good")
    return good, sessionrun.finished(BAD, "--label", "team=x", "--label", "kind=bad")


def ids_of(record: dict[str, Any]) -> set[str]:
    return {one["session_id"] for one in record["sessions"]}


def test_selectors_choose_sessions(sessionrun: Command, pair: tuple[str, str]) -> None:
    good, bad = pair
    for words, wanted in (
        (("--state", "failed"), {bad}),
        (("--state", "succeeded,running"), {good}),
        (("--state", "completed"), {good, bad}),
        (("--label", "team=x"), {good, bad}),
        (("--label", "team=x", "--label", "kind=bad"), {bad}),
        (("--since", "1h"), {good, bad}),
        (("--limit", "1"), {bad}),
        (("--since", "2100-01-01"), set()),
        ((good[:8], bad), {good, bad}),
        ((good, bad, "--label", "kind=good"), {good}),
    ):
        assert ids_of(sessionrun.load("list", *words)) == wanted, words
    assert sessionrun("list", "--label", "kind=none").stdout == "No session matches --label kind=none.\n"
    assert sessionrun("cost", "--label", "kind=none").stdout == "No session matches --label kind=none.\n"
    done = sessionrun("clean", "--state", "failed", "--label", "team=x", "--dry-run", "--json")
    assert [one["session_id"] for one in json.loads(done.stdout)["findings"]] == [bad]


def test_verbs_that_act_on_several(sessionrun: Command, pair: tuple[str, str]) -> None:
    good, bad = pair
    assert (sessionrun("wait", good, good[:8]).returncode, sessionrun("wait", good, bad).returncode) == (0, 1)
    assert sessionrun("wait", "--label", "team=x").returncode == 1
    assert sessionrun("wait", "--state", "succeeded").returncode == 0
    waited = sessionrun("wait", good, bad, "--any", "--json")
    assert ids_of(json.loads(waited.stdout)) == {good, bad}
    for verb in ("wait", "cancel", "hold", "release", "retry"):
        done = sessionrun(verb, "--label", "kind=none")
        assert (done.returncode, done.stdout) == (2, "")
        assert "matches --label kind=none" in done.stderr
    for verb in ("cancel", "hold", "release"):
        assert "that has not ended" in sessionrun(verb, "--label", "team=x").stderr
        assert "say which session" in sessionrun(verb).stderr
    done = sessionrun("cancel", good, bad)
    assert done.stdout == "".join(f"{one[:8]}: 2 had ended before\n" for one in (good, bad))
    assert sessionrun("retry", "--label", "kind=good").stdout == f"{good[:8]}: nothing to retry\n"
    assert sessionrun("retry", "--label", "team=x", "--sync").returncode == 2
    runs = {sessionrun.start({"prompts": ["sleep 600"]}, "--label", "kind=good") for _ in range(2)}
    assert ids_of(json.loads(sessionrun("wait", good, *runs, "--any", "--json").stdout)) == {good}
    assert sessionrun("wait", good, *runs, "--timeout", "0.1").returncode == 124
    for verb in ("hold", "release", "cancel"):
        assert ids_of(sessionrun.load(verb, "--label", "kind=good")) == runs, verb


def test_states_of_what_became_of_the_tasks() -> None:
    bad = {"id": "a", "status": "completed", "outcome": "failed"}
    good = {"id": "b", "status": "completed", "outcome": "succeeded"}
    held = {"id": "c", "status": "pending", "reason_class": "held"}
    running = with_state({"tasks": [bad, good, held, {"id": "d", "status": "running"}]})
    assert is_in_state(running, ["failed"]) and is_in_state(running, ["held"])
    assert not is_in_state(running, ["succeeded", "ended", "stopped", "bounced"])
    ended = with_state({"status": "completed", "outcome": "succeeded", "ended_at": "now", "tasks": [good]})
    assert [is_in_state(ended, [state]) for state in ("succeeded", "ended", "failed")] == [True, True, False]


def test_what_agents_pay_that_wait_for_failures(sessionrun: Command) -> None:
    """The workflows W3 (act on each failure) and W1 (wait, then read the failures) with 50 tasks."""
    prompts = [f"while ! [ -e go-{num} ]; do sleep 0.05; done; seq 40; exit 4" for num in FAILING]
    by_num = dict(zip(FAILING, prompts, strict=True))
    plan = [{"id": f"t{num}", "prompt": by_num.get(num, "true")} for num in range(1, CROWD + 1)]
    session_id = sessionrun.start({"prompts": plan})
    acting, reading, seen, record = list[int](), list[int](), list[int](), {"cursor": 0, "left": CROWD}

    def call(sizes: list[int], *words: str) -> str:
        done = sessionrun(*words)
        sizes.append(len(done.stdout.encode()) + len(done.stderr.encode()))
        assert done.returncode in (0, 1, 124), done.stderr
        return str(done.stdout)

    for num in FAILING:
        (sessionrun.cwd / f"go-{num}").touch()
        words = ("wait", session_id, "--any", "--failed", "--since", str(record["cursor"]), "--json")
        record = json.loads(call(acting, *words))
        seen += [task["num"] for task in record["tasks"]]
    assert seen == list(FAILING)
    assert len(acting) == len(FAILING)
    assert sum(acting) < 60_000 / CROWD * len(FAILING), "so that 50 failures cost less than 60 KB"
    call(reading, "wait", session_id, "--timeout", "60")
    told = call(reading, "wait", session_id, "--any", "--failed")
    failed = [line.split()[1] for line in told.splitlines() if line.endswith(" failed: exit code 4")]
    assert sorted(int(name[1:]) for name in failed) == list(FAILING)
    answers = call(reading, "results", session_id, *failed, "--tail", "5")
    assert answers.count("\n36\n37\n38\n39\n40\n") == len(FAILING)
    assert (len(reading) + 2, sum(reading) < 4096) == (5, True), "with the start and one more slice of waiting"
    assert sessionrun.load("wait", session_id, "--any", "--since", str(record["cursor"]))["left"] == 0


def test_an_error_of_one_of_several_is_told_with_it(capsys: pytest.CaptureFixture[str]) -> None:
    sessions = [SessionDir(Path(f"session-{name}")) for name in "ab"]

    def act(session: SessionDir) -> Answer:
        if session.session_id == "a":
            raise SessionGone("it is\ngone")
        return Answer({"schema_version": 1, "session_id": "b"}, ["Session: b: fine"], 1)

    assert act_on_each(Chosen(sessions, (), True), act) == 4
    assert capsys.readouterr() == ("Session: b: fine\n", "sessionrun: error: session a: it is gone\n")
    with click.Context(click.Command("any")) as context:
        note_json(context, click.Option(["--json"]), True)
        assert act_on_each(Chosen(sessions, (), True), act) == 4
    told = json.loads(capsys.readouterr().out)["sessions"]
    assert told == [{"session_id": "a", "error": {"code": 4, "message": "it is gone"}}, {"session_id": "b"}]


def test_verbs_of_one_session_do_several_one_by_one(sessionrun: Command, pair: tuple[str, str]) -> None:
    one, two = pair
    for verb in ("status", "results", "explain"):
        blocks = [sessionrun(verb, session_id).stdout for session_id in pair]
        done = sessionrun(verb, one[:6], two[:6])
        assert (done.returncode, done.stdout) == (0, "\n".join(blocks)), verb
        alone = [json.loads(sessionrun(verb, session_id, "--json").stdout) for session_id in pair]
        for record in alone:
            del record["schema_version"]
        assert sessionrun.load(verb, one, two)["sessions"] == alone, verb
    done = sessionrun("logs", one, two)
    assert (done.stdout, done.stderr) == ("[bad] why\n", f"{one[:8]}:\n{two[:8]}:\n")
    for verb in ("diff", "merge"):
        done = sessionrun(verb, one, two)
        assert (done.returncode, done.stdout, done.stderr.count("error: session")) == (2, "", 2), verb
        errors = sessionrun(verb, one, two, "--json")
        assert [record["error"]["code"] for record in json.loads(errors.stdout)["sessions"]] == [2, 2]
    for words in ("logs -f", "results --raw", "results --format junit", "status --since 3"):
        verb, *options = words.split()
        done = sessionrun(verb, one, two, *options)
        assert (done.returncode, done.stdout) == (2, ""), words
        assert "is about one session: name one" in done.stderr and done.stderr.count("\n") == 1
    done = sessionrun("resume", one, two)
    assert done.stdout == f"{one[:8]}: has ended (succeeded)\n{two[:8]}: has ended (failed)\n"
    done = sessionrun("set", one, two, "--max-parallel", "2")
    assert (done.returncode, done.stderr.count("has ended, and nothing of it runs any more")) == (2, 2)


ONE, TWO, TWIN, PAIR, ODD, LINE, MORE, NEW = (
    f"{digits}-0000-4000-8000-000000000000"
    for digits in ("1111aaaa", "2222bbbb", "3333eeee", "3333ffff", "12345678", "2222cccc", "2222dddd", "ffffeeee")
)
MADE: dict[str, tuple[str | None, str]] = {
    ONE: ("nightly", "build-api build-web 3 2222b"),
    TWO: ("weekly", "build-api"),
    ODD: (ONE[:6], "a"),
    TWIN: ("twice", "a"),
    PAIR: ("twice", "a"),
    LINE: ("often", "a"),
    MORE: ("more", "a"),
    NEW: ("build", "nightly other 12345 weekly 1111aaaa"),
}
"""Sessions, the newest last: their names, and the ids of their tasks."""

CHOICES: list[tuple[str, str, str]] = [
    # an id goes before the beginning of one, and that before a name
    (ONE, ONE, ""),
    (ONE[:6], ONE, ""),
    (f"session-{ONE}", ONE, ""),
    ("last", NEW, ""),
    ("1", "", "'1' matches 2 sessions"),
    ("nightly", ONE, ""),
    ("night", "", "no session 'night' in "),
    ("often", LINE, ""),
    ("twice", "", f"2 sessions have the name 'twice': {PAIR} of 2026-01-05T00:00:00Z, {TWIN} of 2026-01-04"),
    # several of each
    (f"nightly weekly {NEW[:6]}", f"{ONE} {TWO} {NEW}", ""),
    (f"{TWO} {TWO[:8]}", TWO, ""),
    (f"nightly {LINE[:6]}", f"{ONE} {LINE}", ""),
    ("nightly 1 build-w", f"{ONE} 1 build-w", ""),
    ("nightly last", f"{ONE} {NEW}", ""),
    ("nightly weekly 1", "", "name several sessions, or tasks of one session, not both: nightly weekly 1"),
    ("nightly weekle weekly", "", f"no task 'weekle' in session {ONE}"),
    ("nightly nothing", f"{ONE} nothing", ""),  # the verb knows more of what is wrong with a task
    # what may be the one or the other
    (f"nightly {TWO[:4]}", f"{ONE} {TWO[:4]}", ""),
    (f"nightly {MORE[:5]}", "", f"begins the id of session {MORE}: give 6 characters of it"),
    (f"weekly {ODD[:5]}", "", f"begins the id of session {ODD}: give 6 characters of it"),
    ("nightly build", "", f"'build' is a session, and begins a task's id of {ONE}: give more of the id"),
    (f"{NEW} weekly", f"{NEW} weekly", f"'weekly' is a task of session {NEW}, and a session: the task is meant; "),
    ("other", "", f"; 'other' is a task of session {NEW}, the newest: write last before it"),
    ("", "", "say which session: an ID, or choose by --label, --state or --since"),
    # the same for verbs that only read
    ("reads", NEW, ""),
    ("reads other", f"{NEW} other", ""),
    ("reads oth 2", f"{NEW} oth 2", ""),
    ("reads nothing", "", "no session 'nothing' in "),
    ("reads nightly", ONE, f"'nightly' is session {ONE}, and a task of the newest session: the session is "),
    (f"reads {ONE} nightly", ONE, ""),
    ("reads 1111aaaa", ONE, ""),
    (f"reads {NEW} weekly", f"{NEW} weekly", ""),
    (f"reads often {ODD[:5]}", f"{LINE} {ODD[:5]}", ""),
]
"""The words; the sessions and tasks that they mean; an error where that is nothing, else a warning."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    results = tmp_path_factory.mktemp("made") / "results"
    for place, (session_id, (name, names)) in enumerate(MADE.items()):
        tasks = [TaskSpec(task, ("true",), agent="one") for task in names.split()]
        at = f"2026-01-0{place + 1}T00:00:00Z"
        spec = replace(make_session(tasks), session_id=session_id, name=name, created_at=at)
        session = SessionDir(results / f"session-{session_id}")
        os.close(create_session(session, spec))
        os.utime(session.spec_path, (place, place))
        status = project_live(begin(spec))
        session.status_path.write_bytes(seal(status))
        session.summary_path.write_bytes(seal(project_summary(status)))
    return results


@pytest.mark.parametrize(("words", "means", "says"), CHOICES)
def test_what_words_mean(made: Path, words: str, means: str, says: str) -> None:
    told: list[object] = []
    with warnings.catch_warnings(record=True) as caught:
        try:
            chosen = choose_sessions(made, words.removeprefix("reads").split(), reads=words.startswith("reads"))
            found = " ".join([*(session.session_id for session in chosen.sessions), *chosen.tasks])
        except (InputError, SessionNotFound) as error:
            found = ""
            told.append(error)
    text = "".join(map(str, [*told, *caught]))
    assert (found, bool(text)) == (means, bool(says))
    assert says in text
