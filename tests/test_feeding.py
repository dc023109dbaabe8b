"""What a session asks of its queue, what it takes, and what it tells: without a session, and without a clock."""

from __future__ import annotations

import select
from dataclasses import replace
from pathlib import Path

import pytest
from simulation import make_session

from sessionrun.engine.fold import apply, begin
from sessionrun.engine.orders import Record, StartJob
from sessionrun.engine.scheduler import decide
from sessionrun.model.events import (
    Entry,
    Event,
    JobClaimed,
    JobFinished,
    RequestReceived,
    TaskAdded,
)
from sessionrun.model.feeds import Feed, QueueTold
from sessionrun.model.landings import WorkBounced, WorkHeld, WorkLanded
from sessionrun.model.places import Place
from sessionrun.model.spec import SLOT, Landing, TaskSpec, Workspace
from sessionrun.queue.file import FileFeed
from sessionrun.queue.place import find_place
from sessionrun.queue.task import Draft, Worker
from sessionrun.queue.watch import Watch
from sessionrun.runtime.feeding.clerk import Clerk, make_name
from sessionrun.runtime.feeding.desk import Desk, Fetch

OURS = "11111111-1111-4111-8111-111111111111"
TEMPLATE = TaskSpec("template", ("Do {title} ({id}):\n{body}",), workspace=Workspace("worktree"), retries=1)


class Shop:
    """A session with two slots that lands, its desk, its clerk and its queue."""

    def __init__(self, top: Path, **feed: object) -> None:
        self.queue = FileFeed(find_place(top))
        self.feed = Feed(str(top), "file", **feed)  # type: ignore[arg-type]
        self.desk, self.clerk = Desk(watch=self.feed.watch), self.new_clerk()
        spec = replace(make_session([], resources={SLOT: 2}, open_feed=True), session_id=OURS)
        landing, self.later = Landing("refs/heads/main"), 0.0
        self.state = begin(replace(spec, feed=self.feed, template=TEMPLATE, landing=landing))

    def new_clerk(self) -> Clerk:
        return Clerk(self.queue, self.feed, TEMPLATE, OURS)

    def record(self, event: Event) -> None:
        apply(self.state, Entry(self.state.seq + 1, 0.0, self.now(), event))

    def now(self) -> float:
        return self.later + self.state.seq

    def serve(self) -> list[str]:
        """Let the queue answer until nothing is asked; the ids of the tasks that came."""
        came = []
        while calls := self.desk.next_calls(self.state):
            for call in calls:
                if isinstance(call, Fetch):
                    tasks = self.clerk.fetch(call)
                    self.desk.fetched(call, len(tasks))
                    for task in tasks:
                        came.append(task.id)
                        self.record(TaskAdded(task))
                else:
                    self.clerk.settle(call)
                    self.desk.settled(call)
                    self.record(QueueTold(call.name, call.fate.closes, call.fate.reason))
            self.decide()
        return came

    def decide(self) -> None:
        while orders := [one for one in decide(self.state, self.now()) if isinstance(one, (Record, StartJob))]:
            for order in orders:
                self.record(JobClaimed(order.key) if isinstance(order, StartJob) else order.event)

    def end(self, name: str, *, well: bool = True, work: bool = True) -> None:
        """Let each job of a task end, until it has its outcome."""
        task = self.state.tasks[name]
        while task.end.outcome is None:
            if task.job is None:  # its next attempt waits for its time
                self.later += 2.0
                self.decide()
            job = task.job
            assert job is not None, name
            place = Place("b", "/w", "base", commit="tip" if work else "base")
            good = well or job.key.phase in ("prepare", "release")
            if good:
                self.record(JobFinished(job.key, "passed", place=place))
            else:
                self.record(JobFinished(job.key, "failed", "exit_code", "exit code 3"))
            self.decide()

    def land(self, event: WorkLanded | WorkBounced | WorkHeld) -> None:
        """A LAND job runs, and this comes of it."""
        lander = self.state.land.lander
        assert lander is not None
        job = self.state.tasks[lander].job
        assert job is not None
        self.record(event)
        self.record(JobFinished(job.key, "passed"))
        self.decide()

    def statuses(self) -> dict[str, str]:
        return {task.title: task.status for task in self.queue.load()}


@pytest.fixture
def top(tmp_path: Path) -> Path:
    return tmp_path


def fill(top: Path, *titles: str) -> list[str]:
    made = FileFeed(find_place(top)).create([Draft(title) for title in titles])
    return [task.id for task in made if task is not None]


def test_as_many_tasks_come_as_can_begin_and_one_more_for_each_that_ends(top: Path) -> None:
    fill(top, "a", "b", "c")
    shop = Shop(top)
    assert shop.serve() == ["task-1", "task-2"]
    assert shop.state.tasks["task-1"].spec.prompts == ("Do a (task-1):\n",)
    assert shop.serve() == []
    shop.end("task-1")
    assert shop.serve() == ["task-3"], "a slot is free as soon as the work is done"
    assert shop.statuses() == {"a": "claimed", "b": "claimed", "c": "claimed"}, "it has not landed yet"
    shop.land(WorkLanded("task-1", "main", "c0ffee"))
    shop.serve()
    assert shop.statuses()["a"] == "closed"
    assert not shop.desk.is_done(shop.state)
    shop.end("task-2", work=False)
    shop.end("task-3")
    shop.land(WorkLanded("task-3", "main", "c0ffee"))
    assert shop.serve() == [] and set(shop.statuses().values()) == {"closed"}
    assert shop.desk.is_done(shop.state)


def test_what_fails_is_open_again_with_its_reason_and_not_taken_twice(top: Path) -> None:
    fill(top, "bad", "bounced", "held")
    shop = Shop(top)
    shop.serve()
    shop.end("task-1", well=False)
    shop.end("task-2")
    shop.land(WorkBounced("task-2", "main", "conflict", "it conflicts in f", ("f",)))
    assert shop.serve() == ["task-3"]
    shop.end("task-3")
    shop.land(WorkHeld("task-3", "main", "dirty", "it is dirty", "git stash"))
    shop.serve()
    shown = {task.title: (task.status, task.reason) for task in shop.queue.load()}
    assert shown["bad"] == ("open", "exit code 3")
    assert shown["bounced"] == ("open", "its work does not land: it conflicts in f")
    assert shown["held"] == ("claimed", None), "its work is done: it must not be done again"
    assert shop.desk.is_done(shop.state)
    assert shop.state.tasks["task-1"].progress.attempt == 2


def test_a_task_that_a_person_opens_again_is_taken_again_under_another_id(top: Path) -> None:
    (first,) = fill(top, "a")
    shop = Shop(top, watch=True)
    shop.serve()
    shop.end(first, work=False)
    shop.serve()
    assert shop.statuses() == {"a": "closed"} and not shop.desk.is_done(shop.state)
    shop.queue.reopen(first, reason="not what I meant")
    assert shop.serve() == [], "the queue was dry"
    shop.desk.changed()
    assert shop.serve() == ["task-1-2"]


def test_what_was_claimed_before_a_crash_comes_first_and_nothing_is_told_twice(top: Path) -> None:
    fill(top, "a", "b")
    before = FileFeed(find_place(top))
    assert before.claim("task-2", Worker("task-2", OURS)) is not None
    shop = Shop(top)
    assert shop.serve() == ["task-2", "task-1"]
    shop.end("task-2", work=False)
    shop.serve()
    shop.queue.reopen("task-2", reason="look again")
    again = Shop(top)
    again.state = shop.state
    assert again.serve() == ["task-2-2"], "a person opened it again"


def test_a_retry_of_what_was_given_up_closes_it_after_all(top: Path) -> None:
    fill(top, "a")
    shop = Shop(top)
    shop.serve()
    shop.end("task-1", well=False)
    shop.serve()
    assert shop.statuses() == {"a": "open"}
    again = Shop(top)
    again.state = shop.state
    again.record(RequestReceived("r1", "retry", ("task-1",)))
    again.decide()
    again.end("task-1", work=False)
    again.serve()
    assert again.statuses() == {"a": "closed"}


def test_only_chosen_tasks_and_those_of_a_group_are_taken(top: Path) -> None:
    queue = FileFeed(find_place(top))
    queue.create([Draft("a"), Draft("b", group="g"), Draft("c", group="g")])
    ids = {task.title: task.id for task in queue.load()}
    shop = Shop(top, group="g", only=(ids["c"], ids["a"]))
    assert shop.serve() == [ids["c"]]
    shop.queue.reopen(ids["c"])
    assert Shop(top, group="g").serve() == [ids["b"], ids["c"]]


def test_nothing_more_is_taken_by_a_session_that_is_held_or_cancelled(top: Path) -> None:
    fill(top, "a")
    shop = Shop(top)
    shop.record(RequestReceived("r1", "hold"))
    assert shop.serve() == [] and not shop.desk.is_done(shop.state)
    shop.record(RequestReceived("r2", "release"))
    assert shop.serve() == ["task-1"]
    shop.record(RequestReceived("r3", "cancel"))
    job = shop.state.tasks["task-1"].job
    assert job is not None
    shop.record(JobFinished(job.key, "passed", place=Place("b", "/w", "base")))
    shop.decide()
    shop.end("task-1", well=False)
    shop.serve()
    (task,) = shop.queue.load()
    assert task.status == "open" and task.reason is not None and "cancelled" in task.reason


@pytest.mark.parametrize(
    ("queue_id", "name"),
    [("task-1", "task-1-2"), ("bd-a1/x y", "bd-a1-x-y"), ("///", "task"), ("x" * 200, "x" * 80)],
)
def test_the_id_of_a_task_in_the_session(queue_id: str, name: str) -> None:
    assert make_name(queue_id, {"Task-1"}) == name


def test_a_change_of_the_queue_is_seen_at_once(top: Path) -> None:
    fill(top, "a")
    watch = Watch(top / "task_queue.json")
    assert not watch.has_changed()
    fill(top, "b")
    if watch.fd is not None:
        assert select.select([watch.fd], [], [], 60)[0]
    assert watch.has_changed() and not watch.has_changed()
    watch.close()
