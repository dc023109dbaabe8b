"""How a session is fed from a queue: what a visit finds to do, what a crash leaves, how tasks are named."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, TypeAlias

import orjson
import pytest
from calls import each_call, forked, needs_calls, run_watched
from conftest import eventually
from hypothesis import given
from hypothesis import strategies as st
from test_workspaces import Project

from sessionrun.client.reading.waiting import choose_decisive, is_held
from sessionrun.engine.fold import apply
from sessionrun.engine.scheduler import Record, decide
from sessionrun.engine.state import State
from sessionrun.engine.status import project
from sessionrun.landing.records import Fate, LandingLog, SlotRecord
from sessionrun.model.asked import TROUBLE, UNCLAIMED, Cluster, FeedSpec, SlotsOffered
from sessionrun.model.errors import InputError
from sessionrun.model.events import Entry, Event, SessionEnded, TaskAdded
from sessionrun.model.keys import describe_id_problem
from sessionrun.model.landings import LANDING_FOLDER, Mend
from sessionrun.model.places import LandEntry
from sessionrun.model.places import Place as Workplace
from sessionrun.model.spec import Landing, Outcome, TaskSpec
from sessionrun.model.words import QUEUE_LABEL
from sessionrun.queue.claims import _judge
from sessionrun.queue.feeder import Dry, News, QueueFeeder, Visitor
from sessionrun.queue.file import FileFeed
from sessionrun.queue.sync import (
    UNDONE,
    Snapshot,
    Snapshots,
    Standing,
    Step,
    choose_id,
    choose_next,
    find_standing,
    find_steps,
    make_task,
)
from sessionrun.queue.task import Draft, QueueTask, Worker, find_place, read_signature
from sessionrun.session.history import begin
from sessionrun.store.files import replace_file
from sessionrun.store.session import SessionDir

from simulation import make_session  # isort: skip

US, THEM = "us", "them"
ALL = FeedSpec("/top", "file")
TEMPLATE = TaskSpec("task", ("Do it: {task}\nand commit.",), retries=1, labels={"kind": "bead"})


def queued(
    name: str, status: Any = "open", *, claim: str | None = None, session: str = US, **fields: Any
) -> QueueTask:
    worker = None if claim is None else Worker(claim, session)
    return QueueTask(name, f"title of {name}", status=status, worker=worker, **fields)


def by_id(*tasks: QueueTask) -> dict[str, QueueTask]:
    return {task.id: task for task in tasks}


# --- names and prompts ---


@pytest.mark.parametrize(
    ("queue_id", "taken", "name"),
    [
        ("task-1", (), "task-1"),
        ("task-1", ("task-1", "task-1-2"), "task-1-3"),
        ("Bead", ("bead",), "Bead-2"),
        ("bd-a3f8.1", (), "bd-a3f8.1"),
        ("a/b c", (), "a-b-c"),
        ("..x", (), "task-x"),
        ("-x", (), "task-x"),
        ("x.lock", (), "task-x"),
        ("x.", (), "task-x"),
        ("", (), "task-x"),
        ("\u00e9\u00e9", (), "task-x"),
    ],
)
def test_the_name_of_a_task(queue_id: str, taken: tuple[str, ...], name: str) -> None:
    assert choose_id(queue_id, taken) == name


@given(st.text(max_size=300), st.sets(st.text(max_size=5)))
def test_every_name_is_a_good_one(queue_id: str, taken: set[str]) -> None:
    name = choose_id(queue_id, {one.casefold() for one in taken})
    assert describe_id_problem(name) is None
    assert name.casefold() not in {one.casefold() for one in taken}


def test_what_a_task_of_the_session_is_made_of() -> None:
    made = make_task(TEMPLATE, QueueTask("q/1", "Title", "In full {task}", priority=3), "q-1")
    assert (made.id, made.title, made.priority, made.retries) == ("q-1", "Title", 3, 1)
    assert made.prompts == ("Do it: Title\n\nIn full {task}\nand commit.",)  # what a task says is no place
    assert made.labels == {"kind": "bead", QUEUE_LABEL: "q/1"}


End: TypeAlias = tuple[Outcome | None, str | None]
"""Outcome and reason."""


# --- how a task stands ---


AT = Workplace("main-task-t", None, "c0", "c1")
OPEN: End = (None, None)
GOOD: End = ("succeeded", None)


@pytest.mark.parametrize(
    ("landing", "end", "place", "kind", "words"),
    [
        (None, OPEN, None, "going", ""),
        (LandEntry("ready"), GOOD, AT, "going", ""),
        (LandEntry("waiting"), GOOD, AT, "going", ""),
        (LandEntry("landed", commit="c2"), GOOD, AT, "done", "landed as c2 (session s, task t)"),
        (None, GOOD, Workplace("b", None, "c0", "c0"), "done", "done, without a change (session s, task t)"),
        (None, GOOD, AT, "done", "done; its work is on the branch main-task-t: sessionrun merge s"),
        (LandEntry("held", "dirty", "a file is in the way"), GOOD, AT, "held", "a file is in the way"),
        (
            LandEntry("bounced", "conflict", "it conflicts"),
            GOOD,
            AT,
            "undone",
            "mend it on the branch main-task-t",
        ),
        (None, ("failed", "exit\ncode 3"), AT, "undone", f"{UNDONE}s, task t: exit code 3"),
        (None, ("cancelled", None), None, "undone", f"{UNDONE}s, task t: cancelled"),
    ],
)
def test_how_a_task_stands(
    landing: LandEntry | None, end: End, place: Workplace | None, kind: str, words: str
) -> None:
    state = begin(make_session([TaskSpec("t", ("x",), labels={QUEUE_LABEL: "q"})]))
    task = state.tasks["t"]
    (task.outcome, task.reason), task.landing, task.place = end, landing, place
    one = find_standing(state, task)
    assert one is not None and one.kind == kind
    assert words in one.reason
    assert (one.branch is not None) == (landing is not None and landing.status == "bounced")


@pytest.mark.parametrize(
    ("ended_s", "status", "kind"), [(-0.001, "held", "done"), (-0.001, "ready", "done"), (0.001, "held", "held")]
)
def test_a_landing_counts_for_the_very_work_that_landed(
    tmp_path: Path, ended_s: float, status: Any, kind: str
) -> None:
    """Of a session that died, whose journal is behind; what landed before the task ended was other work."""
    spec = make_session([TaskSpec("t", ("x",), labels={QUEUE_LABEL: "q"})])
    made = Project(tmp_path)
    state = begin(replace(spec, repository=made.repository(), landing=Landing("refs/heads/main")))
    session, task = SessionDir(made.root / "session-s"), state.tasks["t"]
    with closing(LandingLog(session.path / LANDING_FOLDER / "main")) as log:
        log.note_moved(SlotRecord("", "refs/heads/main", "c8", "c9", {"t": "c1"}))
        landed_at = datetime.fromisoformat(log.history.ends["t"].at).timestamp()
    task.outcome, task.place, task.ended_at = "succeeded", AT, landed_at + ended_s
    task.landing = LandEntry(status, "dirty", "a file is in the way")
    found = _judge((session, state), "t")
    assert found[0] == kind and ("landed as c9" in found[1]) == (kind == "done")
    if kind == "done":
        with closing(LandingLog(session.path / LANDING_FOLDER / "main")) as log:
            log.note_fates([Fate("t", "landed", reason="it was there")], {"t": "c1"}, "refs/heads/main")
        assert _judge((session, state), "t") == ("done", "landed (session s, task t)"), (
            "of no commit nothing is told"
        )


def test_the_last_attempt_at_a_task_of_the_queue_decides() -> None:
    own = [TaskSpec(name, ("x",), labels={QUEUE_LABEL: "q"}) for name in ("q", "q-2")]
    mend = TaskSpec("m", ("x",), mend=Mend("q-2", 1, "q-2", "conflict", "it conflicts"))
    spec = make_session([*own, TaskSpec("other", ("x",)), mend])
    ends: dict[str, Outcome] = {"q": "lost", "q-2": "succeeded", "other": "succeeded", "m": "failed"}
    for feed, decisive in ((FeedSpec("/top", "file"), ["q-2", "other"]), (None, ["q", "q-2", "other"])):
        state = begin(replace(spec, feed=feed))
        for name, outcome in ends.items():
            state.tasks[name].outcome = outcome
        view = project(state)
        assert [task["id"] for task in choose_decisive(view, view["tasks"])] == decisive
        state.outcomes = {"lost": 1, "failed": 1, "succeeded": len(state.tasks) - 2}
        (order,) = decide(state, 0.0)
        assert isinstance(order, Record)
        assert isinstance(order.event, SessionEnded)
        assert order.event.outcome == ("failed" if feed is None else "succeeded")


def test_a_task_that_waits_for_its_claim_is_not_held_by_a_user() -> None:
    state = begin(make_session([TaskSpec("a", ("x",)), TaskSpec("b", ("x",), needs=("a",))]))
    for reason, held in ((UNCLAIMED, False), ("on request", True)):
        state.tasks["a"].held = reason
        view = project(state)
        assert view["tasks"][0]["reason_class"] == "held"
        assert is_held(view, ()) is held
        assert not is_held({**view, "held_until": "2026-01-01T00:00:00Z"}, ()), "it goes on by itself"


def test_no_more_is_claimed_than_the_nodes_of_a_cluster_have_slots() -> None:
    spec = make_session([], resources={"slot": 3}, open_feed=True)
    state, snapshots = begin(replace(spec, cluster=Cluster("tls://127.0.0.1:1"))), Snapshots()
    for slots, free in ((0, 0), (2, 2), (8, 3)):
        if slots:
            apply(state, Entry(state.seq + 1, 0.0, 0.0, SlotsOffered(slots, 1)))
        snapshot = snapshots.look(state)
        assert snapshot is not None and snapshot.free == free


def test_a_snapshot_tells_how_all_tasks_stand() -> None:
    state, snapshots = begin(make_session([], resources={"slot": 2}, open_feed=True)), Snapshots()
    first = snapshots.look(state)
    assert snapshots.look(state) is None
    add(state, "a", "q1")
    add(state, "own", None)
    tasks = {"a": Standing("q1", "going"), "own": None}
    assert snapshots.look(state) == Snapshot(2, tasks, 0, True)
    assert first == Snapshot(1, {}, 2, True), "the other thread has it"
    state.tasks["a"].outcome, state.tasks["a"].reason = "failed", "x"
    state.outcomes["failed"] = 1
    ended = snapshots.look(state)
    assert ended is not None and ended.tasks["a"] is not None
    assert (ended.tasks["a"].kind, ended.free) == ("undone", 1)
    assert snapshots.find_reborn(state) == []
    state.tasks["a"].outcome = None  # as after `retry`
    state.outcomes.clear()
    state.requests.add("again")
    assert snapshots.find_reborn(state) == ["a"]
    assert snapshots.look(state) == Snapshot(4, tasks, 0, True)
    assert snapshots.find_reborn(state) == []
    state.tasks["a"].held = UNCLAIMED
    waits = {**tasks, "a": Standing("q1", "going", waits=True)}
    assert snapshots.look(state) == Snapshot(5, waits, 0, True)
    state.tasks["a"].held = None
    state.held = "on request"
    assert snapshots.look(state) == Snapshot(6, tasks, 0, False)


def add(state: State, name: str, queue_id: str | None) -> None:
    labels = {} if queue_id is None else {QUEUE_LABEL: queue_id}
    apply(state, Entry(state.seq + 1, 0.0, 0.0, TaskAdded(TaskSpec(name, ("x",), labels=labels))))
    assert state.spec.tasks[-1].id == name


# --- what a visit finds ---


@pytest.mark.parametrize(
    ("task", "known", "steps"),
    [
        (queued("q"), {}, []),
        (queued("q", "claimed", claim="t"), {}, [("add", "t", "")]),
        (queued("q", "claimed", claim="t", session=THEM), {}, []),
        (queued("q", "claimed", claim="t"), {"t": Standing("q", "going")}, []),
        (queued("q", "claimed", claim="t"), {"t": Standing("q", "held", "why")}, []),
        (queued("q", "claimed", claim="t"), {"t": Standing("q", "done", "why")}, [("close", "t", "why")]),
        (queued("q", "claimed", claim="t"), {"t": Standing("q", "undone", "why")}, [("reopen", "t", "why")]),
        (queued("q"), {"t": Standing("q", "going")}, [("claim", "t", "")]),
        (queued("q", blocked_by=("p",)), {"t": Standing("q", "going")}, [("drop", "t", "")]),
        (queued("q", "closed"), {"t": Standing("q", "going")}, [("drop", "t", "")]),
        (queued("q", "closed"), {"t": Standing("q", "going", is_extra=True)}, []),
        (queued("other"), {"t": Standing("q", "going", is_extra=True)}, []),
        (queued("q"), {"t": Standing("q", "going", is_extra=True)}, [("claim", "t", "")]),
        (queued("q", "deferred"), {"t": Standing("q", "going", is_extra=True)}, [("drop", "t", "")]),
        (queued("other"), {"t": Standing("q", "going")}, [("drop", "t", "")]),
        (queued("q", "claimed", claim="t", session=THEM), {"t": Standing("q", "going")}, [("drop", "t", "")]),
        (queued("q", "claimed", claim="t"), {"t": Standing("q", "going", waits=True)}, [("claimed", "t", "")]),
        (queued("q", "closed"), {"t": Standing("q", "going", is_extra=True, waits=True)}, [("claimed", "t", "")]),
        (queued("q"), {"t": Standing("q", "undone", "why"), "u": Standing("q", "done")}, []),
    ],
)
def test_what_a_visit_finds_to_do(
    task: QueueTask, known: dict[str, Standing], steps: list[tuple[str, str, str]]
) -> None:
    tasks = by_id(task)
    assert [(step.what, step.name, step.reason) for step in find_steps(tasks, known, US, {})] == steps


def test_no_claim_is_left_at_the_end() -> None:
    tasks = by_id(
        queued("a", "claimed", claim="a"),
        queued("b", "claimed", claim="b"),
        queued("c", "claimed", claim="c"),
        queued("d", "claimed", claim="d", session=THEM),
    )
    known = {"a": Standing("a", "done", "landed"), "b": Standing("b", "held", "waits")}
    assert find_steps(tasks, known, US, {}, ends=True) == [
        Step("close", "a", "a", "landed"),
        Step("reopen", "c", "c", ""),
    ], "work that is held must not be done again"


@pytest.mark.parametrize(
    ("task", "known", "is_chosen"),
    [
        (queued("q"), {}, True),
        (queued("q", blocked_by=("p",)), {}, False),
        (queued("q"), {"t": Standing("q", "going")}, False),
        (queued("q"), {"t": Standing("q", "held")}, False),
        (queued("q", reason=f"{UNDONE}..."), {}, True),  # another session's failure
        (queued("q", reason=f"{UNDONE}..."), {"t": Standing("q", "undone")}, False),
        (queued("q"), {"t": Standing("q", "undone")}, True),  # a person has opened it again
        (queued("q", reason=f"{UNDONE}..."), {"t": Standing("q", "undone", is_lost=True)}, True),
        (
            queued("q", reason=f"{UNDONE}..."),
            {"t": Standing("q", "undone", is_lost=True), "u": Standing("q", "undone", is_lost=True)},
            False,
        ),
    ],
)
def test_which_task_is_claimed_next(task: QueueTask, known: dict[str, Standing], is_chosen: bool) -> None:
    assert bool([*choose_next(by_id(task), known, ALL, 1)]) == is_chosen


def test_only_what_was_asked_for_is_claimed() -> None:
    tasks = by_id(queued("a"), queued("b", priority=2, group="g"), queued("g", is_group=True), queued("c"))
    for asked, chosen in (({}, "bac"), ({"group": "g"}, "b"), ({"chosen": ("c", "a")}, "ac")):
        found = choose_next(tasks, {}, replace(ALL, **asked), 0)
        assert [task.id for task in found] == [*chosen]


BOUNCED = Standing("q", "undone", "why", branch=("b", "c1"), bounced_seq=7)


@pytest.mark.parametrize(
    ("status", "landing", "is_mended", "step"),
    [
        ("closed", {}, True, "land"),
        ("closed", {}, False, None),  # a person drops it
        ("open", {}, True, None),
        ("closed", {"t": 7}, True, None),  # the session was asked, and has not tried yet
        ("closed", {"t": 5}, True, "bounce"),
    ],
)
def test_work_that_was_mended_lands_when_its_task_is_closed(
    status: str, landing: dict[str, int | None], is_mended: bool, step: str | None
) -> None:
    tasks, known = by_id(queued("q", status)), {"t": BOUNCED}
    found = find_steps(tasks, known, US, landing, lambda one: is_mended)
    assert [one.what for one in found] == ([] if step is None else [step])


# --- a visitor and a queue ---


class Session:
    """A session as the queue sees it: what its journal says of tasks; each is done as soon as it was added."""

    def __init__(self, place: Path, *drafts: str, watch: bool = False) -> None:
        self.feed = FileFeed(find_place(place), now=lambda: 0.0)
        if drafts:
            self.feed.create([Draft(name) for name in drafts])
        self.asked = FeedSpec(str(place), "file", watch=watch, take_back_s=0.0)
        self.directory = SessionDir(place / "results" / f"session-{US}")
        self.journal: dict[str, Standing] = {}
        self.begun: list[str] = []
        self.heard: list[News] = []
        self.number = 0
        self.visitor = self.open()

    def visit(self) -> list[News]:
        """What another visit finds; it is written down."""
        self.visitor.visit(self.look())
        found = self.heard
        self.take()
        return found

    def open(self) -> Visitor:
        self.heard = []
        return Visitor(self.directory, TEMPLATE, self.asked, self.feed, lambda one: self.heard.append(one))

    def look(self, *, free: int = 2) -> Snapshot:
        self.number += 1
        going = sum(one.kind == "going" for one in self.journal.values())
        return Snapshot(self.number, dict(self.journal), free - going, True)

    def take(self) -> bool:
        """Write down what was heard; whether the queue is dry."""
        news, self.heard = self.heard, []
        for one in news:
            if isinstance(one, TaskAdded) and one.task.id not in self.journal:
                self.begun.append(one.task.labels[QUEUE_LABEL])
                self.journal[one.task.id] = Standing(one.task.labels[QUEUE_LABEL], "going")
        return any(isinstance(one, Dry) and one.number == self.number for one in news)

    def work(self) -> None:
        for name, one in self.journal.items():
            if one.kind == "going":
                self.journal[name] = one._replace(kind="done", reason="landed")

    def finish(self, visitor: Visitor) -> None:
        for _ in range(50):
            visitor.visit(self.look())
            if self.take():
                visitor.leave(self.look())
                return
            self.work()
        raise AssertionError("the queue never is dry")


def test_a_queue_is_not_dry_while_no_node_has_offered_a_slot(tmp_path: Path) -> None:
    session = Session(tmp_path, "a")
    for free, heard in ((0, []), (1, [TaskAdded])):
        session.visitor.visit(session.look(free=free))
        assert [type(one) for one in session.heard] == heard


class Lasting(Session):
    """What it writes down outlives its process."""

    def take(self) -> bool:
        is_dry = super().take()
        content = pickle.dumps((self.begun, self.journal))
        replace_file(self.directory.path.parent / "journal", content, durable=False)
        return is_dry

    def load(self) -> None:
        file = self.directory.path.parent / "journal"
        if file.exists():
            self.begun, self.journal = pickle.loads(file.read_bytes())


def sweep_visitor(place: str) -> None:
    """Kill who visits the queue at each change of it; what was heard and not written down is lost."""

    def begin(environ: Mapping[str, str]) -> Lasting:
        session = Lasting(Path(place, environ["CALLS_AT"].split(":")[2]))
        session.directory.path.parent.mkdir(parents=True)
        session.feed.create([Draft("a"), Draft("b"), Draft("c", depends=("task-1",))])
        forked(lambda: session.finish(session.open()))(environ)
        return session

    for at, session in each_call(begin, Path(place, "calls"), "feed", do="kill:*task_queue*"):
        session.load()
        session.finish(session.open())
        assert sorted(session.begun) == ["task-1", "task-2", "task-3"], at
        assert {task.status for task in session.feed.load()} == {"closed"}, at
        assert [task.worker for task in session.feed.load()] == [None] * 3, at
        left = [path.name for path in session.feed.place.parent.glob("*task_queue*")]
        assert left == [session.feed.place.name], at  # what a killed writer left goes with the next change
    print(at)


@needs_calls
def test_a_crash_at_each_step(tmp_path: Path) -> None:
    """Each task is begun once, and closed."""
    assert int(run_watched(sweep_visitor, tmp_path)) > 20


def test_a_claim_that_is_taken_away_ends_the_task(tmp_path: Path) -> None:
    session = Session(tmp_path, "a", watch=True)
    session.visit()
    session.feed.close("task-1", reason="done by hand")
    assert session.visit() == [Step("drop", "task-1", "task-1")]


def test_a_queue_that_is_gone_ends_no_task(tmp_path: Path) -> None:
    session = Session(tmp_path, "a", watch=True)
    session.visit()
    aside = session.feed.place.rename(tmp_path / "aside")
    with pytest.raises(Exception, match="is gone: put it back"):
        session.visit()
    aside.rename(session.feed.place)
    assert session.visit() == []


def test_landings_are_asked_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session(tmp_path, "a", watch=True)
    session.feed.close("task-1")
    bounced, visitor = BOUNCED._replace(queue_id="task-1"), session.visitor
    monkeypatch.setattr(visitor, "_is_mended", lambda one: True)
    for one in (bounced, bounced, Standing("task-1", "going", is_extra=True)):
        session.journal["task-1"] = one
        visitor.visit(session.look())
    assert session.heard == [Step("land", "task-1", "task-1")]
    session.journal["task-1"] = bounced._replace(reason=f"{UNDONE}us: bounced again", bounced_seq=9)
    visitor.visit(session.look())
    assert session.feed.show("task-1").status == "open"
    assert session.feed.show("task-1").reason == f"{UNDONE}us: bounced again"


class Fed:
    """The state of a session that a feeder feeds from the queue of a place."""

    def __init__(self, place: Path, *tasks: TaskSpec, **asked: Any) -> None:
        self.queue = FileFeed(find_place(place), now=lambda: 0.0)
        feed = FeedSpec(str(place), "file", **{"take_back_s": 0.0, "watch": True, **asked})
        self.state = begin(replace(make_session([*tasks], open_feed=True), feed=feed, template=TEMPLATE))
        self.feeder = QueueFeeder(SessionDir(place / "session-us"), self.state.spec)

    def apply(self, event: Event) -> None:
        apply(self.state, Entry(self.state.seq + 1, 0.0, 0.0, event))

    def hear(self) -> State:
        for event in self.feeder.hear(self.state, 0.0, 0.0):
            self.apply(event)
        return self.state


def test_a_session_that_lives_again_knows_what_it_has_tried(tmp_path: Path) -> None:
    """A request may come while the last visit to the queue goes on: then another thread visits it."""
    fed = Fed(tmp_path)
    fed.queue.create([Draft("fails")])
    state = fed.state
    eventually(lambda: "task-1" in fed.hear().tasks)
    state.tasks["task-1"].outcome, state.tasks["task-1"].reason = "failed", "x"
    state.outcomes["failed"] = 1
    fed.feeder.finish(fed.hear())
    assert fed.queue.show("task-1").status == "open"
    fed.apply(SessionEnded("completed", "failed"))
    fed.hear()
    state.ended = None  # as after a request
    state.requests.add("again")
    fed.queue.create([Draft("new")])
    eventually(lambda: "task-2" in fed.hear().tasks)
    assert fed.queue.show("task-1").status == "open"
    fed.feeder.finish(state)
    assert [task.status for task in fed.queue.load()] == ["open", "open"]


def test_what_the_queue_refuses_is_shown_to_the_end_and_stops_nothing(tmp_path: Path) -> None:
    """A task that became a group while a worker had it cannot be closed."""
    fed = Fed(tmp_path, TaskSpec("t", ("x",), labels={QUEUE_LABEL: "task-1"}))
    fed.queue.create([Draft("a")])
    fed.queue.claim("task-1", Worker("t", "us"))
    text = fed.queue.place.read_text()
    part = '"tasks": [{"id": "m", "title": "m", "parent": "task-1"},'
    fed.queue.place.write_text(text.replace('"tasks": [', part))
    fed.state.tasks["t"].outcome = "succeeded"
    eventually(lambda: TROUBLE in fed.hear().holds and "m" in fed.state.tasks)
    fed.feeder.finish(fed.hear())
    assert "task-1: it is a group" in fed.hear().holds[TROUBLE].reason


def test_a_visit_that_failed_is_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if nothing has changed in the files of the queue."""
    load, fails = FileFeed.load, [True]

    def load_or_fail(feed: FileFeed) -> list[QueueTask]:
        if fails:
            raise InputError("not now")
        return load(feed)

    monkeypatch.setattr(FileFeed, "load", load_or_fail)
    fed = Fed(tmp_path, poll_s=0.05)
    fed.queue.create([Draft("a")])
    eventually(lambda: TROUBLE in fed.hear().holds)
    fails.clear()
    eventually(lambda: "task-1" in fed.hear().tasks and TROUBLE not in fed.state.holds)
    fed.feeder.finish(fed.state)


def test_what_the_queue_refuses_is_tried_once_in_each_visit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, refused = Session(tmp_path, "a", "b", watch=True), []

    def refuse(task_id: str, **_: Any) -> None:
        refused.append(task_id)
        raise InputError("no")

    monkeypatch.setattr(session.feed, "close", refuse)
    for expected in ([], ["task-1", "task-2"], ["task-1", "task-2"] * 2):
        session.visit()
        session.work()
        assert (refused, session.visitor.refused) == (expected, "no" if expected else None)


def test_a_session_that_is_being_cancelled_lands_nothing_for_a_person(tmp_path: Path) -> None:
    fed = Fed(tmp_path, TaskSpec("t", ("x",), labels={QUEUE_LABEL: "q"}), TaskSpec("runs", ("x",)), watch=False)
    fed.queue.create([Draft("a")])
    for cancelled in (False, True):
        fed.state.cancelled = cancelled
        fed.feeder._worker.tell(Step("land", "q", "t"))
        heard = fed.feeder.hear(fed.state, 0.0, 0.0)
        assert bool([one for one in heard if getattr(one, "kind", None) == "retry"]) is not cancelled
    fed.feeder.finish(fed.state)


# --- changes by other programs ---


def test_what_another_program_writes_is_seen_at_the_next_look(tmp_path: Path) -> None:
    """In place, or beside and renamed; nothing asks the feeder, which has free slots, to look at the queue."""
    fed = Fed(tmp_path, poll_s=0.05, take_back_s=0.0)
    list(fed.feeder.hear(fed.state, 0.0, 0.0))
    queue = fed.queue
    beside = queue.place.with_name(".other")
    for name, path in (("one", queue.place), ("two", queue.place), ("three", beside), ("four", beside)):
        known = orjson.loads(queue.place.read_bytes())["tasks"] if queue.place.exists() else []
        tasks = [*known, {"id": name, "title": name, "status": "open"}]
        path.write_bytes(orjson.dumps({"tasks": tasks, "next_id": 1}))
        path.rename(queue.place)
        eventually(lambda name=name: queue.show(name).worker is not None)  # type: ignore[misc]
    fed.feeder.finish(fed.state)
    assert not [thread for thread in threading.enumerate() if thread.name in ("feeder", "watch")]


def test_when_a_visit_is_due(tmp_path: Path) -> None:
    session = Session(tmp_path)
    asked, now = replace(session.asked, take_back_s=60.0), [100.0]
    one = Visitor(session.directory, TEMPLATE, asked, session.feed, session.heard.append, lambda: now[0])
    assert (one.is_due(session.look()), one.is_due(session.look(free=0))) == (True, False)
    one.visit(session.look())
    for later_s, is_due in ((59.0, False), (1.0, True)):
        now[0] += later_s
        assert one.is_due(session.look()) is is_due


def test_what_shows_that_a_queue_changed(tmp_path: Path) -> None:
    file, folder = tmp_path / "task_queue.json", tmp_path / ".beads"
    folder.mkdir()
    (folder / "beads.db").write_text("")
    assert read_signature(file) == ()
    for path, text, changed in (
        (file, "{}", True),
        (file, "{ }", True),
        (folder / "beads.db", "touched", False),  # by a reader
        (folder / "issues.jsonl", "", True),
    ):
        place = file if path == file else folder
        before = read_signature(place)
        path.write_text(text)
        assert (read_signature(place) != before) is changed, path
