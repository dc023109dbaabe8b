"""The Python API: its public names, and errands by it that print nothing."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import eventually, kill_sessions
from forging import forge
from simulation import make_session

from sessionrun import api
from sessionrun.client import ask
from sessionrun.client.ask import add, continue_task, load_open, resume, set_width
from sessionrun.client.clean import clean
from sessionrun.client.doctor import diagnose
from sessionrun.client.explain import explain
from sessionrun.client.planning.additions import settle_addition
from sessionrun.client.reading.view import load_summary_view
from sessionrun.client.reading.waiting import Deadline
from sessionrun.input.given import read_source
from sessionrun.model.spec import AgentSpec, TaskSpec
from sessionrun.queue.open import open_queue
from sessionrun.store.session import SessionDir

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
WAITS = "while ! test -e go; do sleep 0.05; done; echo went"


@pytest.fixture(autouse=True)
def results(own_place: Path, capfd: pytest.CaptureFixture[str]) -> Iterator[Path]:
    """The results directory in use; nothing that a test does by the API prints anything."""
    yield own_place / "results"
    kill_sessions(own_place / "results")
    assert capfd.readouterr() == ("", "")


def start(*tasks: dict[str, object], **said: object) -> api.SessionDir:
    planned = api.plan({"prompts": list(tasks), **said}, {"agent": "shell"})
    assert isinstance(planned, api.Planned)
    return api.launch(planned.spec)


def test_every_public_name_is_there_and_documented() -> None:
    names = [name for name in dir(api) if not name.startswith("_")]
    assert {"plan", "launch", "wait", "SessionDir"} <= set(names)
    for name in names:
        assert inspect.getdoc(getattr(api, name)), name


def test_what_a_public_function_takes_and_returns_is_public() -> None:
    for function in (getattr(api, name) for name in dir(api)):
        if not inspect.isfunction(function):
            continue
        home = importlib.import_module(function.__module__)
        for word in re.findall(r"\b[A-Z]\w+", " ".join(map(str, function.__annotations__.values()))):
            kind = getattr(home, word, None)  # None: a name for type checkers alone
            is_ours = inspect.isclass(kind) and kind.__module__.startswith("sessionrun.")
            assert word in dir(api) or not is_ours, f"{function.__name__} has {word}"


def run_python(*words: str) -> tuple[int, list[str], str]:
    """A program of Python: its exit code, the lines that it printed, and what it said on standard error."""
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout.splitlines(), done.stderr


def test_the_example_and_the_block_of_its_page(own_place: Path) -> None:
    program = str(EXAMPLES / "python" / "start_and_wait.py")
    (own_place / "plan.json").write_text('[{"id": "one", "prompt": "echo by file"}]')
    usual = ["greet succeeded: hello", "add succeeded: 42"]
    for given, answers in (((), usual), (("plan.json",), ["one succeeded: by file"])):
        code, (head, *rest), errors = run_python(program, *given)
        assert (code, rest, errors) == (0, answers, "")
        word, session_id = head.split()
        assert word == "started"
        assert api.load_view(api.open_session(None, session_id))["name"] == "example"
    assert run_python(program, "none.json") == (2, [], "start_and_wait: none.json: no such file\n")
    text = (EXAMPLES / "python" / "README.md").read_text()
    (block,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    code, lines, errors = run_python("-c", block)
    assert (code, errors) == (0, "")
    assert [line.split()[1:] for line in lines if line] == [["succeeded", "hello"], ["succeeded", "42"]]


def test_what_status_json_does_not_say_yet_counts(own_place: Path) -> None:
    """The supervisor of a large session replaces it seconds after the journal has what became of a task."""
    session = start({"id": "bad", "prompt": f"{WAITS}; exit 3"}, {"id": "long", "prompt": "sleep 600"})
    eventually(lambda: api.load_view(session)["running"] == 2)
    runs = session.status_path.read_bytes()
    (own_place / "go").touch()
    eventually(lambda: api.load_view(session)["failed"] == 1)
    failed = session.status_path.read_bytes()
    session.status_path.write_bytes(runs)
    retried = api.retry(session, failed=True)
    assert [(task["id"], task["reason_class"]) for task in retried.before] == [("bad", "exit_code")]
    eventually(lambda: api.load_view(session)["tasks"][0]["outcome"] == "failed")
    api.retry(session, ["bad"], asked=api.AskedChange(prompt="sleep 500"))
    eventually(lambda: api.load_view(session)["running"] == 2)
    session.status_path.write_bytes(failed)  # which says that there is nothing to stop
    assert [task["outcome"] for task in api.cancel(session, ["bad"]).tasks] == ["cancelled"]
    session.status_path.write_bytes(runs)
    assert continue_task(session, "bad", "exit 0").taken


def test_on_a_full_disk_nothing_is_over_while_a_process_of_it_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    session = start({"id": "a", "prompt": "sleep 600"}, {"id": "b", "prompt": "sleep 600"})
    eventually(lambda: api.load_view(session)["running"] == 2)
    targets = [ask.select(session, names) for names in ((), ("a",))]
    monkeypatch.setattr(ask, "load_view", lambda session: {**api.load_view(session), "disk_full": {}})
    monkeypatch.setattr(ask, "find_shortage", lambda path: "no room")
    for target in targets:
        assert ask._wait(ask.KINDS["cancel"], target, 0.1, None) == "late"


def test_a_request_that_was_spoken_is_spoken_again_where_its_reader_died(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = SessionDir(tmp_path / "session-x")
    session.path.mkdir()
    os.mkfifo(session.wake_path)
    reader = os.open(session.wake_path, os.O_RDONLY | os.O_NONBLOCK)
    lines: list[bytes] = []

    def look(_: SessionDir) -> bool:
        with suppress(BlockingIOError):
            lines.extend(filter(None, os.read(reader, 4096).split(b"\n")))
        return True

    monkeypatch.setattr(SessionDir, "is_alive", look)
    monkeypatch.setattr(ask, "SPEAK_AGAIN_S", 0.0)
    monkeypatch.setattr(ask, "PATIENCE_S", 0.3)
    assert ask._speak(session, {"kind": "cancel"}, Deadline(60), lambda: False) == "taken"
    os.close(reader)
    assert len(lines) > 1 and len(set(lines)) == 1


@pytest.mark.parametrize(
    ("landing", "feed", "named", "is_past"),
    [
        ("ready", False, False, False),
        ("held", False, True, False),
        ("landed", False, False, True),
        (None, True, False, False),
        (None, True, True, True),  # the queue is the session's
    ],
)
def test_what_can_be_held_or_released(landing: str | None, feed: bool, named: bool, is_past: bool) -> None:
    tasks = [{"id": "a", "status": "completed", "landing": landing and {"status": landing}}]
    view = {"ended_at": None, "feed": {"open": feed}, "tasks": tasks}
    target = ask.Target(api.SessionDir(Path("s")), view, tasks, named)
    assert [ask.KINDS[kind].is_moot(target) for kind in ("hold", "release")] == [is_past] * 2


@pytest.mark.parametrize("record", [b'{"x":1}', b"[1]", b"nonsense"])
def test_a_record_that_nobody_knows_stops_no_request(record: bytes) -> None:
    session = start({"prompt": "true"})
    api.wait(session)
    eventually(lambda: not session.is_alive())
    forge(session.journal_path, lambda payload: payload, record)
    assert api.cancel(session).taken


def test_a_session_from_plan_to_clean(own_place: Path, results: Path) -> None:
    session = start({"id": "a", "prompt": WAITS}, {"id": "b", "prompt": "echo after", "needs": ["a"]})
    held = api.hold(session, ["b"], reason="a look first")
    assert (held.taken, held.before[0]["reason"]) == (True, None)
    assert "a look first" in held.tasks[0]["reason"]
    assert [task["cause"] for task in explain(session)[1]["tasks"]][1] == "need"
    assert set_width(session, 3).view["max_parallel"] == 3
    into = load_open(session)
    planned = api.plan({"prompts": [{"id": "c", "prompt": "echo late", "needs": ["b"]}]}, into=into)
    assert isinstance(planned, api.Planned)
    assert planned.addition is not None
    added = add(session, planned.addition)
    assert (added.taken, [task["id"] for task in added.tasks]) == (True, ["c"])
    (own_place / "go").touch()
    waited = api.wait(session)
    assert (waited.in_time, waited.done) == (True, False)
    assert [task["outcome"] for task in waited.tasks] == ["succeeded", None, None]
    assert not api.wait(session, ["b"], through_holds=True, timeout_s=0).in_time
    assert api.release(session, ["b"]).taken
    assert api.wait(session).view["outcome"] == "succeeded"
    answers = [api.read_answer(session, task) for task in api.load_view(session)["tasks"]]
    assert answers == ["went\n", "after\n", "late\n"]
    assert [view["session_id"] for view in api.load_summaries(results)] == [session.session_id]
    assert diagnose(session.session_id)["session_count"] == 1
    eventually(lambda: clean(keep=0, dry_run=True)[0]["would_remove"])  # its processes leave a little later
    assert session.path.exists()
    assert [record["removed"] for record in clean([session.session_id])] == [True]
    assert not session.path.exists()
    for verb in (api.load_view, load_summary_view, explain, api.wait, api.cancel, resume):
        with pytest.raises(api.SessionNotFound, match=session.session_id):
            verb(session)


def test_added_tasks_run_where_they_were_asked_for() -> None:
    tasks = [TaskSpec("a", ("true",), agent="one"), TaskSpec("b", ("true",), agent="one", cwd="/own")]
    agents = {"one": AgentSpec("one", ("true",))}
    planned, into = (replace(make_session(tasks), cwd=cwd, agents=agents) for cwd in ("/there", "/here"))
    into = replace(into, tasks=())
    assert [task.cwd for task in settle_addition(planned, into).tasks] == ["/there", "/own"]


def test_paths_in_job_files_begin_at_their_project_or_here(own_place: Path) -> None:
    (own_place / "deep" / "files").mkdir(parents=True)
    (own_place / "deep" / "files" / "a.md").touch()
    for made, project in (("notes.txt", own_place), ("worksplit.toml", own_place / "deep")):
        (own_place / "deep" / made).touch()
        folder = read_source("deep/files").folder
        assert folder is not None and folder.project == str(project)


def test_a_backend_of_the_queue_that_there_is_not(own_place: Path) -> None:
    with pytest.raises(api.InputError, match="unknown backend 'nope' of the queue; there are: beads, file"):
        open_queue(own_place, backend="nope")


@pytest.mark.slow
def test_a_program_may_have_put_others_in_the_place_of_its_streams(own_place: Path, results: Path) -> None:
    """As notebooks do.  The session must not keep the program's output open, nor say again what it said."""
    code = (
        "import io, sys; from sessionrun import api\n"
        "sys.stdin, sys.stdout, sys.stderr = io.StringIO(), open(1, 'w', closefd=False), None\n"
        "sys.stdout.write('said once')\n"
        f"api.launch(api.plan([{WAITS!r}], {{'agent': 'shell'}}).spec)"
    )
    assert run_python("-c", code) == (0, ["said once"], "")
    (own_place / "go").touch()
    session = api.open_session(None, "last")
    assert api.wait(session).view["outcome"] == "succeeded"
    assert "said once" not in (session.path / "supervisor.log").read_text()


def test_bad_input_is_an_error_of_ours() -> None:
    with pytest.raises(api.InputError, match="plan: "):
        api.plan({"prompts": [object()]})
    with pytest.raises(api.InputError, match="plan: "):
        api.plan({"prompts": [{"nothing": 1}]})
    with pytest.raises(api.SessionNotFound):
        api.open_session(None, "f00")
