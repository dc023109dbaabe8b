"""Mends: bounced work becomes a task that makes it fit the branch.

Pure.  When work is bounced, and its task may be mended, a mend is owed.  The scheduler adds it as a task.  It
begins with the work merged into the branch, marks of conflicts and all.  What it ends with lands in the place of
the work.  The task whose work it is counts as mending until then.  A mend that fails, or bounces, is followed by
the next, as often as the session allows.  Then the work is bounced for good.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field, replace
from typing import Final

from sessionrun.engine.state import State
from sessionrun.engine.task import TaskState, find_end
from sessionrun.model.events import Entry, TaskAdded
from sessionrun.model.frozen import changeable
from sessionrun.model.landings import Mend, WorkBounced, WorkLanded
from sessionrun.model.places import LandEntry
from sessionrun.model.spec import TaskSpec, title_of

PROMPT: Final = """\
The work of another agent does not land on the branch {target}: {reason}

Its task was: {title}

You are in a git worktree. The commit $SESSIONRUN_BASE_COMMIT, at which you begin, is a merge of both sides{marks}.
Its first parent is the branch {target} as it is now, its second parent is the work. These show each side:

  git show "$SESSIONRUN_BASE_COMMIT^1:FILE"
  git show "$SESSIONRUN_BASE_COMMIT^2:FILE"
  git log "$SESSIONRUN_BASE_COMMIT^1..$SESSIONRUN_BASE_COMMIT^2"
{others}
Make the files right, so that what both sides intended is there. Change nothing else. Commit, or leave your changes
uncommitted: both are kept. Do not switch branches, and do not merge or push.

What the task had asked for:

{prompt}
"""


WITHOUT_MARKS: Final = """
A file that is no text, or that one side has deleted, has no marks: it is there as one side has it.
"""


def next_mend(state: State) -> TaskAdded | None:
    """The mend that is to be added now; None: none is owed, or nothing new is to begin."""
    if state.cancelled or state.held is not None or not land_of(state).to_mend:
        return None
    name, source = next(iter(land_of(state).to_mend.items()))
    return TaskAdded(_make_mend(state, state.tasks[name], state.tasks[source]))


def note_mend(state: State, task: TaskSpec) -> None:
    """A task is added: if it is a mend, that is not owed any more."""
    if task.mend is None:
        return
    land, owner = land_of(state), task.mend.task
    land.to_mend.pop(owner, None)
    land.mends[owner] = land.mends.get(owner, 0) + 1
    entry = state.tasks[owner].landing
    if entry is not None:
        reason = f"task {task.id} mends it: {task.mend.reason}"
        leave_queue(state, owner, entry._replace(status="mending", reason=reason))


def note_end(state: State, task: TaskState) -> None:
    """A mend has its outcome: if it left nothing that may land, the next one is owed, but not after a cancel."""
    mend = task.spec.mend
    if mend is None or task.landing is not None:
        return
    reason = task.reason or "its mend left no work"
    owner = state.tasks[mend.task]
    if owner.landing is None or not is_mending(owner):
        return
    bounced = owner.landing._replace(status="bounced", reason=reason, at=task.ended_at)
    if task.outcome == "cancelled":
        leave_queue(state, mend.task, bounced)
    else:
        _follow(state, owner, mend.source, bounced)


def find_owner(state: State, task: TaskState) -> TaskState:
    """Whose work a task's work is: that of another task, if it is a mend."""
    return task if task.spec.mend is None else state.tasks[task.spec.mend.task]


def note_bounced(state: State, entry: Entry, event: WorkBounced) -> None:
    """The work of a task does not land as it is: a mend of it is owed, or it stays so."""
    task = state.tasks[event.task]
    about = (event.files, event.against, event.output)
    bounced = LandEntry(
        "bounced", event.reason_class, event.reason, None, None, *about, at=entry.at, seq=entry.seq
    )
    leave_queue(state, event.task, bounced)
    owner = find_owner(state, task)
    if owner is task or is_mending(owner):
        _follow(state, owner, event.task, bounced)


def note_landed(state: State, entry: Entry, event: WorkLanded) -> None:
    """The work of a task is in the branch, and with that of a mend the work that it mends."""
    landed = LandEntry("landed", None, event.reason, event.commit, at=entry.at)
    leave_queue(state, event.task, landed)
    owner = find_owner(state, state.tasks[event.task])
    if owner.spec.id != event.task and is_mending(owner):
        leave_queue(state, owner.spec.id, landed._replace(reason=f"mended by task {event.task}"))
        land_of(state).to_mend.pop(owner.spec.id, None)
        requeue_waiting(state)


def _follow(state: State, owner: TaskState, source: str, bounced: LandEntry) -> None:
    """The work of `owner` is bounced: the next mend is owed, or it is so for good."""
    land, asked = land_of(state), state.spec.landing
    made = land.mends.get(owner.spec.id, 0)
    may_go_on = asked is not None and made < asked.mends and not state.cancelled
    can_mend = may_go_on and bounced.reason_class in ("conflict", "gate_red")
    if can_mend and state.spec.agents[owner.agent].prompt_kind == "text":
        leave_queue(state, owner.spec.id, bounced._replace(status="mending"))
        land.to_mend[owner.spec.id] = source
        return
    tries = f"{made} mends did not land it: " if made > 1 else "its mend did not land it: " if made else ""
    leave_queue(state, owner.spec.id, bounced._replace(reason=f"{tries}{bounced.reason}"))


def _make_mend(state: State, owner: TaskState, source: TaskState) -> TaskSpec:
    spec, entry, landing = owner.spec, owner.landing, state.spec.landing
    assert entry is not None and landing is not None
    # where file names have no case, an id that differs in nothing else is the same one
    taken, number = {name.casefold() for name in state.tasks}, 1
    while (name := f"{spec.id[:100]}-mend-{number}").casefold() in taken:  # ids have 128 characters at most
        number += 1
    branch = owner.place.branch if owner.place is not None else None
    why = (entry.reason_class or "", entry.reason or "")
    mend = Mend(spec.id, number, source.spec.id, *why, entry.files, entry.against, entry.output)
    workspace = replace(spec.workspace, branch=f"{branch}-mend-{number}" if branch else None, directory=None)
    return replace(
        spec,
        id=name,
        title=f"Mend: {title_of(spec)}",
        prompts=(_word_prompt(state, spec, mend, landing.target),),
        prompt_mode="join",
        workspace=workspace,
        needs=(),
        base="session",
        prove=None,
        expect_change=False,
        brief=None,
        answer=None,
        labels={},  # a mend is no attempt at a task, and no task of a queue
        mend=mend,
    )


def _word_prompt(state: State, spec: TaskSpec, mend: Mend, target: str) -> str:
    others = WITHOUT_MARKS if mend.files else ""
    known = [state.tasks[name] for name in mend.against if name in state.tasks]
    if known:
        others += "\nThese tasks landed before and changed the same files:\n"
        others += "".join(f"- {task.spec.id}: {title_of(task.spec)}\n" for task in known)
    if mend.output:
        others += f"\nWhat the gates printed is in {mend.output}\n"
    marks = f", with marks of the conflict in {', '.join(mend.files)}" if mend.files else ""
    return PROMPT.format(
        target=target.removeprefix("refs/heads/"),
        reason=mend.reason,
        title=title_of(spec),
        marks=marks,
        others=others,
        prompt="\n\n".join(spec.prompts).rstrip("\n"),
    )


@changeable
class LandQueue:
    """The work that is to land, and the LAND job that lands it; one such job runs at a time.

    Its key names one of the tasks whose work it takes, and `turns` counts these jobs.
    """

    ready: dict[str, None] = field(default_factory=dict)
    """The tasks whose work the next LAND job takes, in their order."""
    waiting: dict[str, None] = field(default_factory=dict)
    """The tasks whose work waits for that of others."""
    held: dict[str, None] = field(default_factory=dict)
    """The tasks whose work could not land for a reason that is not its own: the next LAND job tries it again."""
    to_mend: dict[str, str] = field(default_factory=dict)
    """The tasks whose bounced work is owed a mend, each with the task with whose work that begins."""
    mends: dict[str, int] = field(default_factory=dict)
    """By task: how many mends of its work were added."""
    turns: int = 0
    """How many LAND jobs were claimed."""
    tries: int = 0
    """How many LAND jobs in a row ended without an answer; see `transitions.count_try`."""
    lander: str | None = None
    """The task in whose name a LAND job runs; None: there is none."""
    taken: tuple[str, ...] = ()
    """The tasks whose work it took."""
    owed: bool = False
    """Whether the last LAND job was broken off: the next one finishes or undoes what that job left."""


def land_of(state: State) -> LandQueue:
    land: LandQueue = state.parts[LandQueue]
    return land


def leave_queue(state: State, name: str, landing: LandEntry) -> None:
    """The work of a task is not in the queue any more: `landing` says why."""
    land = land_of(state)
    for lane in (land.ready, land.waiting, land.held):
        lane.pop(name, None)
    state.tasks[name].landing = landing._replace(seq=state.seq)


def requeue_waiting(state: State) -> None:
    """See whether what waits for other work may land now."""
    land = land_of(state)
    sort_out(state, [*land.ready, *land.waiting])


def sort_out(state: State, names: Iterable[str]) -> None:
    """Put in the queue what work is ready: its needs have landed, or are ready too and land before it."""
    land, left = land_of(state), list(dict.fromkeys(names))
    for name in left:
        for lane in (land.ready, land.waiting, land.held):
            lane.pop(name, None)
        land.ready[name] = None
        state.tasks[name].landing = LandEntry("ready")
    while left:  # what waits makes others wait
        lacking: dict[str, str] = {}
        for name in left:
            for need in find_first(state.tasks[name], state.tasks, is_to_land):
                landing = state.tasks[need].landing
                if landing is not None and landing.status not in ("landed", "ready"):
                    lacking[name] = need
                    break
        for name, need in lacking.items():
            land.ready.pop(name)
            land.waiting[name] = None
            state.tasks[name].landing = LandEntry("waiting", "needs", f"it needs {need!r}, not landed")
        left = [name for name in left if name not in lacking] if lacking else []


def holds_work(task: TaskState) -> bool:
    """Whether a task that has ended left work of this repository."""
    place = find_end(task)
    return (
        task.spec.upstream is None and place is not None and not (place.base_commit is None or place.holds_no_work)
    )


def is_to_land(task: TaskState) -> bool:
    """Whether the work of a task that has ended is to land, or has landed."""
    return task.landing is not None


def find_first(
    task: TaskState, tasks: Mapping[str, TaskState], is_to_land: Callable[[TaskState], bool]
) -> Iterator[str]:
    """Yield the tasks whose work has to land before that of a task.

    A need without work that is to land stands for its own needs.  A mend has the needs of the task whose work it
    mends.
    """
    seen, queue = {task.spec.id}, [task]
    for at in queue:  # grows while it is walked
        mend = at.spec.mend
        for need in at.spec.needs if mend is None else tasks[mend.task].spec.needs:
            needed = tasks.get(need)
            if needed is None or need in seen:
                continue
            seen.add(need)
            if is_to_land(needed):
                yield need
            else:
                queue.append(needed)


def is_mending(owner: TaskState) -> bool:
    """Whether mends of a task's work still count: after a follow-up it has other work."""
    return owner.landing is not None and owner.landing.status == "mending"
