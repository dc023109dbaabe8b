"""Whatever lies among a session's requests, the session goes on, ends, and answers the truth."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from random import Random

import orjson
import pytest
from conftest import Command, eventually, slow
from hostile import Hostile
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from simulated import Fate, SimulatedExecutor
from simulation import AGENTS, Drive, Planned, make_session

from sessionrun.engine.status import project
from sessionrun.model.events import RequestReceived, TasksAdded
from sessionrun.model.spec import TaskSpec
from sessionrun.session.history import replay
from sessionrun.store.requests import open_wake, parse_request, ring, speak
from sessionrun.store.session import SessionDir

COUNT = 10
"""Requests of one session, in the fast tier."""


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.randoms(use_true_random=False))
def test_what_is_taken_can_be_folded_again_and_the_session_ends(random: Random) -> None:
    tasks = [TaskSpec(f"t{number}", ("x",), agent="one", needs=("t0",) * (number == 3)) for number in range(4)]
    spec = make_session(tasks, resources={"slot": 2})
    hostile = Hostile(random, [task.id for task in tasks], sorted(AGENTS))
    planned: list[Planned] = [(40.0, RequestReceived("last", "cancel", now=True))]
    for _ in range(COUNT):
        record = hostile.make()
        try:
            request = parse_request(orjson.loads(hostile.spoil(record)), str(record["request_id"]))
        except ValueError:
            continue
        planned.append((random.randrange(20), request))
    fates = [Fate("exits", random.randrange(5), random.choice((0, 0, 256, 9))) for _ in range(3)]
    drive = Drive(spec, SimulatedExecutor(lambda job: fates[job.key.attempt % 3]), planned, replays=True)
    state = drive.run().state
    assert state.ended is not None and state.free == state.spec.resources
    assert drive.replayed is not None and project(state) == project(drive.replayed)


@pytest.mark.parametrize("many", [200, *slow(5000)])
def test_a_running_session_outlives_whatever_is_left_among_its_requests(sessionrun: Command, many: int) -> None:
    """It ends, each request has its answer, and each answer is true."""
    marks, names = sessionrun.cwd / "marks", [f"t{number}" for number in range(10)]
    marks.mkdir()
    own = f"{marks}/$SESSIONRUN_TASK"
    script = f"echo begun >> {own}; sleep 0.2; [ -e {marks}/go ] || exit 4; echo done >> {own}"
    tasks = [{"id": name, "prompt": script} for name in names]
    anchor = {"id": "anchor", "prompt": f"until [ -e {marks}/go ]; do sleep 0.1; done"}  # it goes on meanwhile
    session_id = sessionrun.start({"prompts": [anchor, *tasks], "max_parallel": 3})
    session = SessionDir(sessionrun.directory(session_id))
    random = Random(os.environ.get("SEED", "37"))
    hostile = Hostile(random, names, ["shell"])
    odd = session.path / "requests" / os.fsdecode(b"\xff.json")
    odd.write_bytes(b'{"request_id": "x"}')
    told = [(odd.stem, True), *(_leave(session, hostile, random) for _ in range(many))]
    eventually(lambda: ring(session) and not any((session.path / "requests").glob("*.json")), timeout_s=300)
    (marks / "go").touch()
    sessionrun("cancel", session_id, "--now")
    eventually(lambda: not session.is_alive())
    state, contents = replay(session)
    assert contents.damage_at is None and state.ended is not None
    assert state.epoch == 1 and "Traceback" not in session.log_path.read_text(errors="replace")
    _compare_answers(session, told, [entry.event for entry in session.load_journal()[0]])
    shown = {task["id"]: task for task in sessionrun.load("status", session_id)["tasks"]}
    assert {name: task["outcome"] for name, task in shown.items()} == {
        name: task.outcome for name, task in state.tasks.items()
    }
    for name in names:
        if state.tasks[name].follow_ups or state.tasks[name].spec.prompts != (script,):
            continue  # a request gave it another script: `a=b` succeeds without a word
        said = (marks / name).read_text() if (marks / name).exists() else ""
        assert shown[name]["outcome"] != "succeeded" or "done" in said, f"{name} is told as done, and is not"
        assert shown[name]["outcome"] != "skipped" or not said or shown[name]["attempt"] > 1, name


def _leave(session: SessionDir, hostile: Hostile, random: Random) -> tuple[str, bool]:
    """Leave a request, or something else in its place; its id, and whether it lies in a file."""
    record = hostile.make()
    name, content = str(record["request_id"]), hostile.spoil(record)
    path = session.path / "requests" / f"{name}.json"
    chance = random.random()
    if chance < 0.1 and len(content) < 4000 and (fd := open_wake(session)) is not None:
        speak(fd, b"\n%b\n" % content)
        os.close(fd)
        return name, False
    if chance < 0.12 and not os.path.lexists(path):
        random.choice((os.mkdir, os.mkfifo, lambda place: os.symlink("/dev/zero", place)))(path)
    else:
        draft = session.path / "requests" / f"{name}.draft"
        draft.write_bytes(content if chance < 0.99 else content + b" " * (9 << 20))
        try:
            os.replace(draft, path)
        except OSError:
            draft.unlink()  # a directory lies there
    ring(session)
    return name, True


def _compare_answers(session: SessionDir, told: Sequence[tuple[str, bool]], events: Sequence[object]) -> None:
    """Each request is in the journal once, or refused; one whose id was used again may be both."""
    taken = Counter(event.request_id for event in events if isinstance(event, (RequestReceived, TasksAdded)))
    refused = {path.stem for path in (session.path / "requests").glob("*.refused")}
    assert max(taken.values()) == 1
    counts, in_files = Counter(name for name, _ in told), {name for name, in_file in told if in_file}
    for name, count in counts.items():
        assert name not in in_files or name in taken or name in refused, f"{name} has no answer"
        assert count > 1 or not (name in taken and name in refused), f"{name} has two answers"
    log = session.log_path.read_text(errors="replace")
    for stem in refused:  # behind a name of which something else was put aside before stands an inode
        name = stem if stem in counts else stem.rpartition("-")[0]
        assert f"request {f'{name}.json'!r} is refused: " in log, f"{stem} is refused without a reason"
