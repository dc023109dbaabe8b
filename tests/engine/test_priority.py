"""Of tasks that are ready the one with the bigger priority starts first, then the place in the plan decides."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from simulated import Fate, SimulatedExecutor
from simulation import Drive, make_session

from sessionrun.model.events import JobClaimed, RequestReceived, TasksAdded
from sessionrun.model.spec import TaskSpec


def drive(tasks: list[TaskSpec], planned: list[tuple[float, object]], slots: int = 1) -> list[str]:
    """The ids of the tasks in the order in which they started."""
    spec = make_session(tasks, resources={"slot": slots})
    run = Drive(spec, SimulatedExecutor(lambda job: Fate(duration_s=1.0)), planned)  # type: ignore[arg-type]
    run.run()
    assert run.state.ended is not None
    return [entry.event.key.task for entry in run.entries if isinstance(entry.event, JobClaimed)]


def task(name: str, priority: int = 0, *needs: str) -> TaskSpec:
    return TaskSpec(name, ("x",), agent="three", priority=priority, needs=needs)


def test_the_bigger_one_goes_first() -> None:
    assert drive([task("a"), task("b", 5), task("c", -1), task("d", 5)], []) == ["b", "d", "a", "c"]


def test_one_that_is_added_later_goes_before_those_that_wait() -> None:
    late = TasksAdded("r", (task("c"), task("d", 1)))
    assert drive([task("a"), task("b")], [(0.5, late)]) == ["a", "d", "b", "c"]


def test_a_need_that_is_met_lets_the_bigger_one_go_before() -> None:
    assert drive([task("a"), task("b", 9, "a"), task("c")], []) == ["a", "b", "c"]


def test_one_that_was_held_takes_its_place_again() -> None:
    held = [(0.5, RequestReceived("h", "hold", ("d",))), (1.5, RequestReceived("r", "release", ("d",)))]
    assert drive([task("a"), task("b"), task("c"), task("d", 1)], [*held]) == ["d", "a", "b", "c"]
    assert drive([task("a", 2), task("b"), task("c"), task("d", 1)], [*held]) == ["a", "b", "d", "c"]


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=12), st.integers(1, 4))
def test_tasks_start_by_priority_and_place(priorities: list[int], slots: int) -> None:
    tasks = [task(f"t{num}", priority) for num, priority in enumerate(priorities)]
    expected = sorted(tasks, key=lambda one: -one.priority)  # sorting keeps the order of equals
    assert drive(tasks, [], slots) == [one.id for one in expected]
