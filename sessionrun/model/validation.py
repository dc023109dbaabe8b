"""What makes tasks impossible, found before anything runs: unknown needs, circles, too few tokens.

Pure, like the records it looks at; the first problem found is the one that is told.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sessionrun.model.errors import InputError, suggest
from sessionrun.model.spec import SessionSpec, TaskSpec, is_task_span


def validate_tasks(
    tasks: Sequence[TaskSpec], others: frozenset[str] = frozenset(), places: Sequence[str] = ()
) -> None:
    """Check what only shows between tasks: duplicates, unknown needs, cycles; they may need `others`, too.

    `places` say where each task stands in the input; without them a task is told by its number and id.
    """
    places = places or [f"task {num} (ID: {task.id})" for num, task in enumerate(tasks, 1)]
    known: dict[str, int] = {}
    for index, task in enumerate(tasks):
        twin = known.setdefault(task.id.casefold(), index)
        if twin != index:
            problem = f"the id {task.id!r:.140} is also that of {places[twin]}; ids must differ in more than case"
            raise InputError(f"{places[index]}: {problem}")
    ids = {task.id for task in tasks} | others
    for task, place in zip(tasks, places, strict=True):
        for need in task.needs:
            if need not in ids:
                problem = f"needs {need!r:.140}, which is not a task of this session{suggest(need, ids)}"
                raise InputError(f"{place}: {problem}")
    if cycle := find_cycle({task.id: task.needs for task in tasks if task.needs}):
        raise InputError(f"tasks need each other in a circle: {' -> '.join(cycle):.200}")


def refuse_task(num: int, task: TaskSpec, problem: str) -> InputError:
    """The error of one task of the input, by its number, from 1."""
    return InputError(f"task {num} (ID: {task.id}): {problem}")


def validate_uses(spec: SessionSpec) -> None:
    """Check that every token a task uses exists in the amount it asks for.

    Raises:
        InputError: an unknown resource, or more of one than there is (the task could never start).
    """
    for num, task in enumerate(spec.tasks, 1):
        of_check = task.check.uses if task.check is not None else {}
        for name in filter(is_task_span, of_check):
            raise refuse_task(num, task, f'{name!r} is held for a whole task; move it to its "uses"')
        for name, amount in (*task.uses.items(), *of_check.items()):
            capacity, who = spec.resources.get(name), f"task {num} (ID: {task.id}) uses"
            if capacity is None:
                raise InputError(f'{who} {name!r}: add it to "resources" with its capacity')
            if amount > capacity:
                raise InputError(f"{who} {amount} of {name!r}, but there are {capacity}")


def validate_wishes(spec: SessionSpec) -> None:
    """Check that no wishes of a task exclude each other, or need something which it lacks."""
    for num, task in enumerate(spec.tasks, 1):
        if task.answer is not None and task.brief is not None:
            raise refuse_task(num, task, "answer and brief exclude each other; keep one")
        if (lacks := _needs_worktree(task)) is not None:
            raise refuse_task(num, task, f"{lacks} needs a worktree; add --worktree, or leave it out")
        is_judged = task.check is not None and bool(task.check.commands)
        if task.prove is not None and task.prove.hidden is None and not is_judged:
            raise refuse_task(num, task, "prove needs a check with commands; give it one, or leave prove out")
        if task.leftovers == "keep" and (task.workspace.kind != "none" or spec.cluster is not None):
            where = "a worktree, which goes with the task" if spec.cluster is None else "a cluster"
            raise refuse_task(num, task, f"leftovers: keep cannot be had in {where}; say tell or fail")
        # turns of one conversation, where an agent cannot go on with one
        turns = {choice.agent for choice in task.choices} if task.prompt_mode == "continue" else ()
        for name in sorted(turns):
            agent = spec.agents[name]
            if agent.prompt_kind == "text" and not agent.continue_args:
                mend = 'leave out prompt_mode "continue" or give it continue_args'
                raise refuse_task(num, task, f"agent {name!r} cannot go on with a conversation; {mend}")


def _needs_worktree(task: TaskSpec) -> str | None:
    if task.workspace.kind != "none":
        return None
    wishes = {
        "prove": task.prove is not None,
        "expect_change": task.expect_change,
        'answer "patch"': task.answer == "patch",
        'check.reset "hard"': task.check is not None and task.check.reset == "hard",
        'the key "links"': bool(task.links),
        'the key "environment"': task.environment is not None,
    }
    return next((name for name, wished in wishes.items() if wished), None)


def find_cycle(needs: Mapping[str, tuple[str, ...]]) -> list[str] | None:
    """Find one circle in a graph of needs, as the path round it (first = last), else None."""
    from graphlib import CycleError, TopologicalSorter  # most inputs have no needs

    try:
        TopologicalSorter(needs).prepare()
    except CycleError as error:
        return [*reversed(error.args[1])]
    return None
