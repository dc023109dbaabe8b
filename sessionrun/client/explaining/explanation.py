"""Why a task does not run, or what became of it: found in the state, the journal's entries and the ledger.

Pure: what only the system can tell (the time, which processes live) is handed in.  The keys of the objects made
here are those of ``explain --json``; sessionrun(1) describes them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from sessionrun.client.reading.runs import Run, find_runs
from sessionrun.engine.money import FIRST, describe_first_wait, describe_refusal
from sessionrun.engine.requests import find_ran
from sessionrun.engine.state import BUDGET, State
from sessionrun.engine.status import has_begun
from sessionrun.engine.task import Ran, RunningJob, TaskState
from sessionrun.engine.tokens import PACED, find_limit, held_tokens, lacking_tokens, wanted_tokens
from sessionrun.model.events import (
    Entry,
    JobClaimed,
    JobFinished,
    JobLost,
    JobStarted,
    TaskEnded,
    TaskRetried,
    TimerFired,
)
from sessionrun.model.frozen import frozen
from sessionrun.model.keys import JobKey
from sessionrun.model.phrases import name_some
from sessionrun.model.spec import SLOT
from sessionrun.model.times import format_time
from sessionrun.store.ledger import Ledger, LedgerJob

CAUSES: Final = (
    "running",
    "starting",
    "stopping",
    "ending",
    "ready",
    "token",
    "hold",
    "budget",
    "backoff",
    "need",
    "no_process",
)
"""Why a task has not ended; if it has ended, its cause is its word."""

REQUEST: Final = "request"
"""Stands in the place of a resource if a user asked for the hold."""

_SHOWN_HOLDERS: Final = 8

SHOWN_KEYS: Final = (
    *("id", "num", "status", "phase", "outcome", "word", "reason_class", "reason", "proof", "audit", "attempt"),
    *("round", "pid", "rescue_branch", "worktree", "worktree_kept", "worktree_remark", "leftovers"),
    *("output", "stderr"),
)
"""What `explain --json` repeats of a task."""


@frozen
class Grounds:
    """All that an explanation is made from.

    `view` is what a reader shows of the session; `now` is wall time; `lives` returns whether the process of a job
    in the ledger lives, or None if that cannot be seen from here; `holders` is `find_holders` of the state;
    `damage` says which log is damaged, and where.
    """

    view: dict[str, Any]
    state: State
    entries: list[Entry]
    ledger: Ledger
    now: float
    lives: Callable[[LedgerJob], bool | None]
    holders: Mapping[str, list[str]]
    damage: str | None = None


def explain_session(grounds: Grounds) -> dict[str, Any]:
    """The session, and every task that has not ended."""
    view, state = grounds.view, grounds.state
    tasks = [_explain_state(grounds, shown) for shown in view["tasks"]]
    counts = Counter(task["cause"] for task in tasks)
    dead = view["status"] == "interrupted"
    return {
        **{key: value for key, value in view.items() if key not in ("tasks", "labels", "dialect", "agent")},
        "holds": [
            *_describe_request(state.held),
            *(_describe_hold(state, name) for name in sorted(state.holds) if not _is_past(state, name)),
        ],
        "tokens": [_describe_token(grounds, name) for name in sorted(state.spec.resources)],
        "causes": dict(sorted(counts.items())),
        "resume": f"sessionrun resume {view['session_id']}" if dead and not grounds.damage else None,
        "damage": grounds.damage,
        "tasks": [task for task in tasks if task["status"] != "completed"],
    }


def explain_tasks(grounds: Grounds, chosen: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The whole story of the chosen tasks, in their order."""
    wanted = {str(shown["id"]): shown for shown in chosen}
    entries: dict[str, list[Entry]] = {task: [] for task in wanted}
    for entry in grounds.entries:
        event = entry.event
        task = event.task if isinstance(event, (TaskEnded, TaskRetried)) else _task_of(event)
        if task in entries:
            entries[task].append(entry)
    return [
        {**_explain_state(grounds, shown), "attempts": _tell_attempts(grounds, task, entries[task])}
        for task, shown in wanted.items()
    ]


def _task_of(event: object) -> str | None:
    if isinstance(event, (JobClaimed, JobStarted, JobFinished, JobLost, TimerFired)):
        return event.key.task
    return None


def find_holders(state: State) -> dict[str, list[str]]:
    """The tasks that hold tokens, by resource."""
    holders: dict[str, list[str]] = {}
    for task in state.tasks.values():
        for name, _ in held_tokens(state, task):
            holders.setdefault(name, []).append(task.spec.id)
    return holders


# --- where a task stands ---


def _explain_state(grounds: Grounds, shown: Mapping[str, Any]) -> dict[str, Any]:
    state = grounds.state
    task = state.tasks[shown["id"]]
    waits = shown["status"] != "completed" and task.job is None
    lacking = list(_lacking(state, task)) if waits and not task.unmet else []
    stopped = [name for name in lacking if name in state.holds or _probes(state, name)]
    short = [name for name in lacking if name not in stopped and name != BUDGET and not name.startswith(FIRST)]
    retry_at = task.not_before + state.wall_offset if waits and task.not_before else None
    facts = {
        **{key: shown[key] for key in SHOWN_KEYS},
        "follow_up": next(reversed(task.follow_ups), None),
        "needs": [_describe_need(state, need) for need in task.spec.needs],
        "holds": [
            *_describe_request(task.held if waits and task.is_held else None),
            *(_describe_hold(state, name) for name in stopped),
        ],
        "tokens": [_describe_token(grounds, name, task) for name in short],
        "budget": _describe_budget(state, task, lacking),
        "retry_at": format_time(retry_at) if retry_at is not None and retry_at > grounds.now else None,
        "chain": _follow_chain(state, task) if shown["outcome"] == "skipped" else [],
    }
    cause, why = _find_cause(grounds, task, facts)
    return {**facts, "cause": cause, "why": why}


def _describe_budget(state: State, task: TaskState, lacking: Sequence[str]) -> str | None:
    if BUDGET in lacking and BUDGET not in state.holds:
        return describe_refusal(state, task)
    return next((describe_first_wait(name) for name in lacking if name.startswith(FIRST)), None)


def _lacking(state: State, task: TaskState) -> Iterator[str]:
    if SLOT in state.holds:  # such a hold stops every start, also of a task that has a slot
        yield SLOT
    names = dict.fromkeys(lacking_tokens(state, task, {}))
    yield from (name for name in names if name != SLOT or SLOT not in state.holds)


def _find_cause(grounds: Grounds, task: TaskState, facts: Mapping[str, Any]) -> tuple[str, str]:
    """The cause, as one word and one line: of several, the one that must be removed first."""
    if facts["status"] == "completed":
        return facts["word"], _tell_end(grounds, task, facts)
    if grounds.view["status"] == "interrupted":
        alive = "its process still runs, but " if facts["status"] == "running" else ""
        return "no_process", f"{alive}no process runs the session"
    if task.job is not None:
        return _tell_job(task)
    unmet = [need for need in facts["needs"] if need["outcome"] != "succeeded"]
    if task.decided is not None and not task.prepared:
        return "ending", f"it ends as {task.decided}"
    if unmet:
        states = [f"{need['id']} ({need['outcome'] or need['status']})" for need in unmet]
        return "need", f"needs {', '.join(states)}"
    if facts["retry_at"]:
        why = task.reason or task.last_outcome
        return "backoff", f"attempt {task.attempt} begins at {facts['retry_at']}; {why}"
    if facts["holds"]:
        hold = facts["holds"][0]
        until = f", until {hold['until']}" if hold["until"] else ""
        what = "" if hold["resource"] in PACED else f"{hold['resource']} is held: "
        return "hold", f"{'held: ' if hold['resource'] == REQUEST else what}{hold['reason']}{until}"
    if facts["budget"]:
        return "budget", facts["budget"]
    if facts["tokens"]:
        return "token", _tell_token(facts["tokens"][0])
    return "ready", "it is about to be started"


def _tell_job(task: TaskState) -> tuple[str, str]:
    job = task.job
    assert job is not None
    what = f"{job.key.phase} of attempt {job.key.attempt}, round {job.key.round}"
    if job.stopping is not None:
        return "stopping", f"{what} is being stopped ({job.stopping}), {_name_process(job)}"
    if job.pid is None:
        where = "" if job.node is None else f" for {'node ' if '@' in job.node else ''}{job.node}"
        return "starting", f"{what} is claimed{where}; its process was not seen yet"
    return "running", f"{what}, {_name_process(job)}"


def _name_process(job: RunningJob) -> str:
    return f"process {job.pid}" if job.node is None else f"on node {job.node}"


def _tell_end(grounds: Grounds, task: TaskState, facts: Mapping[str, Any]) -> str:
    if facts["outcome"] == "succeeded":
        what = "it succeeded and changed nothing" if facts["word"] == "changed_nothing" else "succeeded"
        return f"{what} in attempt {facts['attempt']}{_tell_landing(grounds.state, task)}"
    if facts["chain"]:
        root = grounds.state.tasks[facts["chain"][-1]]
        return f"because of {' <- '.join(facts['chain'])}: {root.reason or root.outcome}"
    return str(facts["reason"] or facts["outcome"])


def _tell_landing(state: State, task: TaskState) -> str:
    """Which place its work has in the landing queue; the rest is told by its `landing`."""
    if task.landing is None or task.landing.status != "ready" or task.spec.id in state.land.taken:
        return ""
    held = f", held: {state.held}" if state.held else ""
    place = list(state.land.ready).index(task.spec.id) + 1
    target = (state.spec.landing.target if state.spec.landing else "").removeprefix("refs/heads/")
    return f"; its work is number {place} of {len(state.land.ready)} to land on {target}{held}"


def _tell_token(token: Mapping[str, Any]) -> str:
    used = token["capacity"] - token["free"]
    if token["resource"] == SLOT and not token["capacity"]:
        return "no node of the session's cluster is there, or none has this version of sessionrun"
    who = name_some(token["holders"], _SHOWN_HOLDERS)
    wants = f", {token['wants']} wanted" if token["wants"] != 1 else ""
    what = "slots in use" if token["resource"] == SLOT else "in use"
    return f"{token['resource']}: {used} of {token['capacity']} {what} by {who or 'no task'}{wants}"


def _describe_need(state: State, need: str) -> dict[str, Any]:
    task = state.tasks.get(need)
    if task is None:
        return {"id": need, "status": None, "outcome": None}
    status = "completed" if task.outcome else "running" if has_begun(task) else "pending"
    return {"id": need, "status": status, "outcome": task.outcome}


def _probes(state: State, resource: str) -> bool:
    return resource in state.providers and state.providers[resource].probing


def _describe_request(reason: str | None) -> list[dict[str, Any]]:
    return [] if reason is None else [{"resource": REQUEST, "reason": reason, "until": None}]


def _is_past(state: State, resource: str) -> bool:
    """Whether a hold means nothing any more, since nothing is left to start."""
    return state.ended is not None and resource in PACED


def _describe_hold(state: State, resource: str) -> dict[str, Any]:
    if resource not in state.holds:
        canary = state.providers[resource].canary
        return {"resource": resource, "reason": f"{canary or 'one task'} goes first after a limit", "until": None}
    hold = state.holds[resource]
    until = None if hold.until is None else format_time(hold.until + state.wall_offset)
    return {"resource": resource, "reason": hold.reason, "until": until}


def _describe_token(grounds: Grounds, resource: str, task: TaskState | None = None) -> dict[str, Any]:
    token = {
        "resource": resource,
        "capacity": _find_capacity(grounds.state, resource),
        "free": grounds.state.free[resource],
        "holders": grounds.holders.get(resource, []),
    }
    if task is not None:
        token["wants"] = dict(wanted_tokens(grounds.state, task))[resource]
    return token


def _find_capacity(state: State, resource: str) -> int:
    """How many tokens there are; of slots on a cluster no more than its nodes have."""
    amount = state.spec.resources.get(resource, 0)
    return (find_limit(state, amount) or 0) if resource == SLOT else amount


def _follow_chain(state: State, task: TaskState) -> list[str]:
    """The tasks because of which this one was skipped, from the nearest to the first that did not succeed."""
    chain: list[str] = []
    at: TaskState | None = task
    while at is not None and (at.outcome, at.reason_class) == ("skipped", "need"):  # needs form no circle
        broken = (state.tasks[need] for need in at.spec.needs if need in state.tasks)
        # its reason is that of the need that ended first, or names that one; others may have failed since
        failed = [other for other in broken if other.outcome not in (None, "succeeded")]
        why = at.reason or ""
        at = next((one for one in failed if one.reason == why or why.startswith(f"need: {one.spec.id!r} ")), None)
        if at is not None:
            chain.append(at.spec.id)
    return chain


# --- what happened ---


def _tell_attempts(grounds: Grounds, task: str, entries: list[Entry]) -> list[dict[str, Any]]:
    attempts: list[dict[str, Any]] = []
    runs = find_runs(entries)
    begun: Entry | None = None
    for entry in entries:
        event = entry.event
        if isinstance(event, (TaskEnded, TaskRetried)):
            if attempts and attempts[-1]["outcome"] is None:
                _close_attempt(attempts[-1], begun, entry, event)
        elif isinstance(event, JobClaimed):
            if not attempts or attempts[-1]["attempt"] != event.key.attempt:
                attempts.append(_open_attempt(event.key, find_ran(grounds.state.tasks[task], event.key.attempt)))
                begun = None
            attempts[-1]["rounds"] = event.key.round
            attempts[-1]["jobs"].append(_describe_job(grounds, event, runs[event.key]))
        elif isinstance(event, JobStarted) and begun is None and attempts:
            begun = entry
            attempts[-1]["started_at"] = format_time(entry.at)
    return attempts


def _open_attempt(key: JobKey, ran: Ran) -> dict[str, Any]:
    empty = dict.fromkeys(("outcome", "reason_class", "reason", "started_at", "ended_at", "duration_s"))
    return {**ran._asdict(), "attempt": key.attempt, "rounds": key.round, **empty, "jobs": []}


def _close_attempt(
    attempt: dict[str, Any], begun: Entry | None, ended: Entry, event: TaskEnded | TaskRetried
) -> None:
    attempt |= {"outcome": event.outcome, "reason_class": event.reason_class, "reason": event.reason}
    attempt |= {"ended_at": format_time(ended.at), "duration_s": _measure(begun, ended)}


def _describe_job(grounds: Grounds, claim: JobClaimed, run: Run) -> dict[str, Any]:
    start = run.begin.event if run.begin and isinstance(run.begin.event, JobStarted) else None
    end = run.end.event if run.end and isinstance(run.end.event, (JobFinished, JobLost)) else None
    finished = end if isinstance(end, JobFinished) else None
    return {
        "key": claim.key.text(),
        "round": claim.key.round,
        "phase": claim.key.phase,
        "start": claim.key.start,
        "node": (start and start.node) or claim.node,
        "pid": start and start.pid,
        "started_at": run.begin and format_time(run.begin.at),
        "ended_at": run.end and format_time(run.end.at),
        "duration_s": _measure(run.begin, run.end),
        "timer": run.timer,
        "verdict": end and end.verdict,
        "reason": end and end.reason,
        "exit_code": finished and finished.exit_code,
        "signal": finished and finished.signal,
        "ledger": _tell_ledger(grounds, claim.key),
    }


def _measure(begun: Entry | None, ended: Entry | None) -> float | None:
    return round(max(0.0, ended.mono - begun.mono), 3) if begun and ended else None


def _tell_ledger(grounds: Grounds, key: JobKey) -> dict[str, Any] | None:
    """What the session's ledger says of a job; None: it has no claim of it, so here it never ran."""
    job = grounds.ledger.jobs.get(key.text())
    if job is None:
        return None
    ended = job.wait_status is not None or job.errno is not None
    return {
        "tried": job.tried,
        "pid": job.pid,
        "wait_status": job.wait_status,
        "errno": job.errno,
        "lost": job.lost,
        "alive": False if ended or job.pid is None else grounds.lives(job),
    }
