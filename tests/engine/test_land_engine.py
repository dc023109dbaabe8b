"""The landing queue, whatever befalls LAND jobs and whatever users ask for: nothing is lost or lands twice.

And what the engine does with and without such rules; what a row of rules may be is tested with the rooms.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulation import Drive, Fate, Scripted, SimulatedExecutor, make_session

from sessionrun.cluster import rules as cluster_rules
from sessionrun.engine import moves
from sessionrun.engine.fold import apply
from sessionrun.engine.requests import find_fault
from sessionrun.engine.state import State
from sessionrun.engine.status import find_end, project
from sessionrun.engine.task import find_earlier
from sessionrun.landing import rules as landing_rules
from sessionrun.landing.mends import land_of
from sessionrun.landing.rules import next_landing
from sessionrun.model import events
from sessionrun.model.asked import Cluster, SlotsOffered
from sessionrun.model.keys import JobKey
from sessionrun.model.landings import WorkBounced, WorkHeld, WorkLanded
from sessionrun.model.places import Place
from sessionrun.model.spec import Check, Job, Landing, SessionSpec, TaskSpec, Workspace
from sessionrun.queue.sync import find_mender
from sessionrun.session.history import begin

MOST_STEPS = 400
Draw = Callable[[int], int]


def make_spec(needs: list[list[int]], mends: int = 0) -> SessionSpec:
    tree = Workspace("worktree")
    tasks = [
        TaskSpec(
            f"t{num}", ("x",), agent="three", workspace=tree, needs=tuple(f"t{need}" for need in sorted(wanted))
        )
        for num, wanted in enumerate(needs)
    ]
    return replace(make_session(tasks), landing=Landing("refs/heads/main", mends=mends))


class World(Scripted):
    """One session: jobs end, and requests come, as `draw` (a number below the given one) says."""

    def __init__(self, spec: SessionSpec, draw: Draw) -> None:
        super().__init__(spec)
        self.draw = draw
        self.running: list[JobKey] = []
        self.landed: dict[str, str | None] = {}
        self.requests = 0

    def record(self, event: events.Event) -> None:
        before = self.list_over()
        super().record(event)
        for name in self.list_over() - before:
            assert find_end(self.state.tasks[name]) == len(self.entries), (
                "a cursor from before this entry tells the end"
            )
        if isinstance(event, events.TaskEnded) and event.outcome == "succeeded":
            name = event.task
            if self.landed.get(name) != self.commit_of(name):  # a follow-up has left more
                self.landed.pop(name, None)

    def list_over(self) -> set[str]:
        """The tasks that have ended, with their work landed, bounced or held if it was to land."""
        tasks = self.state.tasks.items()
        done = {name for name, task in tasks if task.outcome is not None}
        return {name for name in done if status_of(self.state, name) in (None, "landed", "bounced", "held")}

    def commit_of(self, name: str) -> str | None:
        place = self.state.tasks[name].place
        return None if place is None else place.commit

    def begins(self, key: JobKey) -> None:
        self.record(events.JobStarted(key, 1, 1, 1))
        self.running.append(key)
        assert sum(key.phase == "land" for key in self.running) <= 1

    def stops(self, key: JobKey) -> bool:
        if key in self.running:
            self.finish(self.running.index(key), stopped=True)
        return True

    def finish(self, at: int, *, stopped: bool = False) -> None:
        key = self.running.pop(at)
        if key.phase == "land":
            self.finish_land(key, stopped=stopped)
            return
        good = self.draw(8) > 0 and not stopped
        place = None
        if key.phase == "prepare":
            place = Place("b", "/w", "base")
        elif key.phase == "release":
            place = Place("b", None, "base", commit=self.choose_commit(key))
        verdict = "passed" if good or key.phase == "release" else "failed"
        self.record(events.JobFinished(key, verdict, place=place))  # type: ignore[arg-type]

    def choose_commit(self, key: JobKey) -> str:
        """What RELEASE finds: nothing, or work; a follow-up adds to it, or leaves it as it was."""
        earlier = find_earlier(self.state.tasks[key.task])
        before = "base" if earlier is None or earlier.commit is None else earlier.commit
        return before if self.draw(5) == 0 else f"tip {key.attempt}"

    def finish_land(self, key: JobKey, *, stopped: bool) -> None:
        taken = land_of(self.state).taken
        assert key == JobKey(key.task, key.attempt, key.round, "land", land_of(self.state).turns)
        if stopped or self.draw(4) == 0:
            if self.draw(2):
                self.record(events.JobLost(key, "void" if self.draw(3) == 0 else "lost", "gone"))
            else:
                self.record(
                    events.JobFinished(key, "lost" if stopped else "failed", "land_failed", "land_failed: x")
                )
            return
        held = self.draw(4) == 0
        for name in taken:
            fate = self.draw(4)
            unmet = [need for need in self.find_needs(name) if need not in self.landed]
            if unmet:
                continue
            if held or self.state.cancelled:
                if held:
                    self.record(WorkHeld(name, "main", "dirty", "it is dirty", "git stash"))
            elif fate:
                assert name not in self.landed, "it would land twice"
                self.landed[name] = self.commit_of(name)
                mend = self.state.tasks[name].spec.mend
                if mend is not None and status_of(self.state, mend.task) == "mending":
                    self.landed[mend.task] = self.commit_of(mend.task)
                self.record(WorkLanded(name, "main", "c"))
            else:
                self.record(WorkBounced(name, "main", "conflict", "it conflicts", ("f",)))
        self.record(events.JobFinished(key, "passed"))

    def find_needs(self, name: str) -> set[str]:
        """The tasks with work whose work has to land first."""
        found: set[str] = set()
        mend = self.state.tasks[name].spec.mend
        for need in self.state.tasks[name if mend is None else mend.task].spec.needs:
            found |= {need} if self.state.tasks[need].landing else self.find_needs(need)
        return found

    def ask(self) -> None:
        kind = ("retry", "hold", "release", "cancel", "retry", "continue", "continue")[self.draw(7)]
        self.requests += 1
        if kind == "continue":
            name = list(self.state.tasks)[self.draw(len(self.state.tasks))]
            more = events.RequestReceived(f"r{self.requests}", "continue", (name,), text="more")
            if find_fault(self.state, more) is None:
                self.record(more)
            return
        outcomes = ("failed", "timed_out") if kind == "retry" else ()
        self.record(events.RequestReceived(f"r{self.requests}", kind, (), outcomes=outcomes))  # type: ignore[arg-type]

    def examine(self) -> None:
        """What holds after every entry."""
        state = self.state
        land = land_of(state)
        lanes = [*land.ready, *land.waiting, *land.held]
        assert len(lanes) == len(set(lanes))
        for name in land.ready:
            assert state.tasks[name].landing is not None
            assert all(status_of(state, need) in ("ready", "landed") for need in self.find_needs(name))
        for name, task in state.tasks.items():
            assert (name in self.landed) == (status_of(state, name) == "landed")
            if task.outcome != "succeeded":
                assert name not in land.taken and name not in lanes
            elif status_of(state, name) == "waiting":
                assert any(status_of(state, need) not in ("ready", "landed") for need in self.find_needs(name))
            if task.landing is not None and not task.follow_ups:
                assert task.outcome == "succeeded"


def status_of(state: State, name: str) -> str | None:
    landing = state.tasks[name].landing
    return landing and landing.status


@given(st.data())
def test_nothing_is_lost_and_nothing_lands_twice(data: st.DataObject) -> None:
    def draw(count: int) -> int:
        return data.draw(st.integers(0, count - 1))

    size = draw(6) + 1
    needs = [[need for need in range(num) if draw(3) == 0] for num in range(size)]
    world = World(make_spec(needs, mends=draw(3)), draw)
    asked = 0
    for _ in range(MOST_STEPS):
        world.go_on()
        world.examine()
        if world.state.ended is not None and (asked >= 4 or draw(2)):
            break
        if asked < 4 and (draw(6) == 0 or world.state.ended is not None):
            asked += 1
            world.ask()
        elif world.running:
            world.finish(draw(len(world.running)))
        else:  # it is held
            assert world.state.held is not None
            world.requests += 1
            world.record(events.RequestReceived(f"r{world.requests}", "release"))
        world.examine()
    state = world.state
    assert state.ended is not None, "it comes to an end"
    assert next_landing(state) is None and not world.running
    for name, task in state.tasks.items():
        if task.follow_ups and task.outcome != "succeeded":
            assert status_of(state, name) in (None, "landed", "held"), "work of a failed follow-up stays out"
            continue
        has_work = task.outcome == "succeeded" and task.place is not None and not task.place.holds_no_work
        assert has_work == (task.landing is not None), name
        assert status_of(state, name) in (None, "landed", "bounced", "held", "waiting", "mending")
        mender = find_mender(state, name)
        if status_of(state, name) == "mending":
            assert mender is not None and status_of(state, mender.spec.id) in ("held", "waiting")
    own = [task for task in state.tasks.values() if task.spec.mend is None]
    stuck = any(task.landing is not None and task.landing.status != "landed" for task in own)
    all_good = all(task.outcome == "succeeded" for task in own)
    assert (state.ended.outcome == "succeeded") == (all_good and not stuck)
    world.examine_replay()


@pytest.mark.parametrize(("keepers", "most"), [(1, 3), (100, 15)])
@pytest.mark.parametrize("phase", ["prepare", "release", "land"])
def test_how_many_jobs_of_a_phase_may_die_in_a_row(phase: str, keepers: int, most: int) -> None:
    """Three, if they die alone; more of those that die with their keeper, as when all processes are killed."""
    world = World(make_spec([[]]), lambda count: count - 1)
    for _ in range(("prepare", "work", "release", "land").index(phase)):
        world.go_on()
        world.finish(0)
    for number in range(most):
        world.record(events.SupervisorStarted(number, number, 1, "boot", "ns", "0", keeper=number % keepers))
        if number:
            world.record(events.JobLost(world.running.pop(), "lost", "it is gone"))
        world.go_on()
        assert [key.phase for key in world.running] == [phase]
    world.record(events.SupervisorStarted(most, most, 1, "boot", "ns", "0", keeper=most % keepers))
    world.record(events.JobLost(world.running.pop(), "lost", "it is gone"))
    world.go_on()
    assert phase not in [key.phase for key in world.running]
    if phase == "land":
        assert status_of(world.state, "t0") == "held" and world.state.ended is not None


# --- the engine with and without the rules of businesses ---

LANDING, CLUSTER = Landing("refs/heads/main"), Cluster("tls://127.0.0.1:1")


def make_mixed() -> SessionSpec:
    tree, check = Workspace("worktree"), Check(("true",))
    tasks = [
        TaskSpec("a", ("x",), workspace=tree, check=check, rounds=2),
        TaskSpec("b", ("x",), workspace=tree, needs=("a",)),
        TaskSpec("c", ("x",), retries=1),
        TaskSpec("d", ("x",), needs=("c",)),
    ]
    return make_session(tasks, resources={"slot": 2})


def fate_of(job: Job) -> Fate:
    """The first check of `a` fails, and each WORK of `c`."""
    fails = job.key.task == "c" or (job.key.phase == "check" and job.key.round == 1)
    return Fate(wait_status=256 if fails else 0)


@pytest.mark.parametrize("asked", [None, LANDING])
def test_the_engine_runs_a_session_without_rules(asked: Landing | None) -> None:
    """Also one that was asked to land, of a program without that business: then nothing lands."""
    spec = replace(make_mixed(), landing=asked)
    retry = events.RequestReceived("r", "retry", ("c",))
    drive = Drive(spec, SimulatedExecutor(fate_of), [(99.0, retry)], state=moves.begin(spec, ())).run()
    ends = {name: (task.outcome, task.attempt, task.round) for name, task in drive.state.tasks.items()}
    expected = {"a": ("succeeded", 1, 2), "b": ("succeeded", 1, 1), "c": ("failed", 4, 1), "d": ("skipped", 1, 1)}
    assert ends == expected
    assert drive.state.ended is not None and drive.state.ended.outcome == "failed"
    assert [task["landing"] for task in project(drive.state)["tasks"]] == [None] * 4
    if asked is None:  # the rules of the house have nothing to say of it
        again = begin(spec)
        for entry in drive.entries:
            apply(again, entry)
        assert again == drive.state and again.rules == ()


def test_a_session_has_the_rules_of_its_businesses() -> None:
    spec, rows = make_mixed(), (landing_rules.RULES, cluster_rules.RULES)
    for known, rules in [
        (spec, ()),
        (replace(spec, landing=LANDING), rows[:1]),
        (replace(spec, cluster=CLUSTER), rows[1:]),
    ]:
        assert begin(known).rules == rules
    state = begin(replace(spec, landing=LANDING, cluster=CLUSTER))
    assert state.rules == rows
    assert pickle.loads(pickle.dumps(state)) == state


def test_an_event_of_a_business_that_the_session_does_not_have_is_damage() -> None:
    for event in (WorkLanded("a", "main"), SlotsOffered(1, 1)):
        with pytest.raises(KeyError, match=type(event).__name__):
            apply(begin(make_mixed()), events.Entry(1, 0.0, 0.0, event))
