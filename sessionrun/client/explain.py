"""Why a task does not run, or what became of it: found in the state, the journal's entries and the ledger.

The keys of the objects made here are those of ``explain --json``; sessionrun(1) describes them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from sessionrun.client.evidence import Evidence, Run, find_runs
from sessionrun.client.findings import load_findings
from sessionrun.client.reading.telling import add_tellings
from sessionrun.client.reading.view import choose_tasks, load_history
from sessionrun.engine.money import FIRST, describe_wait
from sessionrun.engine.moves import PACED, find_limit, held_tokens, lacking_tokens, wanted_tokens
from sessionrun.engine.requests import find_ran
from sessionrun.engine.state import BUDGET, State
from sessionrun.engine.status import status_word
from sessionrun.engine.task import RunningJob, TaskState
from sessionrun.model.errors import name_some
from sessionrun.model.events import Entry, JobClaimed, JobFinished, JobLost, JobStarted, TaskEnded, TaskRetried
from sessionrun.model.keys import JobKey
from sessionrun.model.spec import SLOT
from sessionrun.model.wording import follow_chain, name_tasks
from sessionrun.model.words import format_time
from sessionrun.store import processes
from sessionrun.store.jobfiles import read_denials
from sessionrun.store.logs import Ledger
from sessionrun.store.session import SessionDir

CAUSES: Final = (
    *("running", "starting", "stopping", "ending", "ready", "token", "hold", "budget", "backoff", "need"),
    "no_process",
)
"""Why a task has not ended; if it has ended, its cause is its word."""

REQUEST: Final = "request"
"""Stands in the place of a resource if a user asked for the hold."""

_SHOWN_HOLDERS: Final = 8
_OPEN: Final = dict.fromkeys(("outcome", "reason_class", "reason", "started_at", "ended_at", "duration_s"))


class Grounds(NamedTuple):
    """What an explanation is made from: `tasks` of the view by id, `holders` of tokens (tasks) by resource."""

    view: dict[str, Any]
    tasks: Mapping[str, Mapping[str, Any]]
    state: State
    evidence: Evidence
    holders: Mapping[str, list[str]]


def explain(session: SessionDir, wanted: Sequence[str] = ()) -> tuple[dict[str, Any], dict[str, Any]]:
    """The session's view, and why its tasks do not run, by cause; for `wanted` tasks their whole story instead."""
    view, evidence = load_history(session)
    state = evidence.require()
    grounds = Grounds(view, name_tasks(view), state, evidence, find_holders(state))
    facts = explain_session(grounds)
    if wanted:
        tasks = add_tellings(session, choose_tasks(view, wanted))
        attempts = find_attempts(state, evidence, {shown["id"] for shown in tasks})
        facts["tasks"] = [
            {**_explain_task(grounds, shown), "attempts": attempts.get(shown["id"], [])} for shown in tasks
        ]
    chosen = {task["id"] for task in facts["tasks"]} if wanted else state.tasks
    denied = []
    for task in (task.spec for task in state.tasks.values() if task.spec.id in chosen):
        if task.sandbox is not None and task.sandbox.network == "proxy":
            for host in read_denials(session.path, task.id):
                times = {key: format_time(host[key]) for key in ("first_at", "last_at")}
                denied.append({"task": task.id, **host, **times})
    return view, {**facts, "denied": denied}


def explain_session(grounds: Grounds) -> dict[str, Any]:
    """The session, and every task that has not ended."""
    view, state = grounds.view, grounds.state
    tasks = [_explain_task(grounds, shown) for shown in view["tasks"] if shown["status"] != "completed"]
    causes = [shown["word"] for shown in view["tasks"] if shown["status"] == "completed"]
    causes += [task["cause"] for task in tasks]
    dead = view["status"] == "interrupted"
    works = [task for task in view["tasks"] if task.get("landing") and not task.get("mends")]
    held = [name for name in sorted(state.holds) if not (state.ended is not None and name in PACED)]
    return {
        **view,
        "holds": _describe_holds(state, state.held, held),
        "tokens": [_describe_token(grounds, name) for name in sorted(state.spec.resources)],
        "causes": dict(sorted(Counter(causes).items())),
        "landings": dict(sorted(Counter(str(task["landing"]["status"]) for task in works).items())),
        "resume": f"sessionrun resume {view['session_id']}" if dead and not grounds.evidence.damage else None,
        "damage": grounds.evidence.damage,
        "tasks": tasks,
    }


def find_holders(state: State) -> dict[str, list[str]]:
    """The tasks that hold tokens, by resource."""
    holders: dict[str, list[str]] = {}
    for task in state.tasks.values():
        for name, _ in held_tokens(state, task):
            holders.setdefault(name, []).append(task.spec.id)
    return holders


# --- where a task stands ---


def _explain_task(grounds: Grounds, shown: Mapping[str, Any]) -> dict[str, Any]:
    state = grounds.state
    task = state.tasks[shown["id"]]
    waits = shown["status"] != "completed" and task.job is None
    lacking = list(dict.fromkeys(lacking_tokens(state, task))) if waits and not task.unmet else []
    probing = {name for name, provider in state.providers.items() if provider.probing}
    stopped = [name for name in lacking if name in state.holds or name in probing]
    short = [name for name in lacking if name not in stopped and name != BUDGET and not name.startswith(FIRST)]
    retry_at = task.not_before + state.wall_offset if waits and task.not_before else None
    needs = [(need, state.tasks.get(need)) for need in task.spec.needs]
    facts = {
        **shown,
        "follow_up": next(reversed(task.follow_ups), None),
        "needs": [
            {"id": need, "status": at and status_word(at), "outcome": at and at.outcome} for need, at in needs
        ],
        "holds": _describe_holds(state, task.held if waits and task.is_held else None, stopped),
        "tokens": [_describe_token(grounds, name, task) for name in short],
        "budget": describe_wait(state, task) if lacking else None,
        "retry_at": format_time(retry_at) if retry_at is not None and retry_at > grounds.evidence.now else None,
        "chain": [cause["id"] for cause in follow_chain(shown, grounds.tasks)],
    }
    cause, why = _find_cause(grounds, task, facts)
    return {**facts, "cause": cause, "why": why}


def _find_cause(grounds: Grounds, task: TaskState, facts: Mapping[str, Any]) -> tuple[str, str]:
    """The cause, as one word and one line: of several, the one that must be removed first."""
    if facts["status"] == "completed":
        return facts["word"], _tell_end(grounds.state, task, facts)
    if grounds.view["status"] == "interrupted":
        alive = "its process still runs, but " if facts["status"] == "running" else ""
        return "no_process", f"{alive}{grounds.evidence.tell_gone()[0]}"
    if task.job is not None:
        return _tell_job(task.job)
    if task.decided is not None and not task.prepared:
        return "ending", f"it ends as {task.decided}"
    unmet = [need for need in facts["needs"] if need["outcome"] != "succeeded"]
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


def _tell_job(job: RunningJob) -> tuple[str, str]:
    what = f"{job.key.phase} of attempt {job.key.attempt}, round {job.key.round}"
    process = f"process {job.pid}" if job.node is None else f"on node {job.node}"
    if job.stopping is not None:
        return "stopping", f"{what} is being stopped ({job.stopping}), {process}"
    if job.pid is None:
        where = "" if job.node is None else f" for {'node ' if '@' in job.node else ''}{job.node}"
        return "starting", f"{what} is claimed{where}; its process was not seen yet"
    return "running", f"{what}, {process}"


def _tell_end(state: State, task: TaskState, facts: Mapping[str, Any]) -> str:
    if facts["outcome"] == "succeeded":
        what = "it succeeded and changed nothing" if facts["word"] == "changed_nothing" else "succeeded"
        more = "".join(business.describe_success(state, task) for business in load_findings())
        return f"{what} in attempt {facts['attempt']}{more}"
    if facts["chain"]:
        root = state.tasks[facts["chain"][-1]]
        return f"because of {' <- '.join(facts['chain'])}: {root.reason or root.outcome}"
    return str(facts["reason"] or facts["outcome"])


def _tell_token(token: Mapping[str, Any]) -> str:
    used = token["capacity"] - token["free"]
    if token["resource"] == SLOT and not token["capacity"]:
        return "no node of the session's cluster is there, or none has this version of sessionrun"
    holders = name_some(token["holders"], _SHOWN_HOLDERS) or "no task"
    wants = f", {token['wants']} wanted" if token["wants"] != 1 else ""
    what = "slots in use" if token["resource"] == SLOT else "in use"
    return f"{token['resource']}: {used} of {token['capacity']} {what} by {holders}{wants}"


def _describe_holds(state: State, asked: str | None, resources: Iterable[str]) -> list[dict[str, Any]]:
    """The hold that a user `asked` for, with this reason, and those of resources."""
    holds: list[dict[str, Any]] = []
    if asked is not None:
        holds.append({"resource": REQUEST, "reason": asked, "until": None})
    for name in resources:
        if name in state.holds:
            hold = state.holds[name]
            until = None if hold.until is None else format_time(hold.until + state.wall_offset)
            holds.append({"resource": name, "reason": hold.reason, "until": until})
        else:
            first = state.providers[name].canary or "one task"
            holds.append({"resource": name, "reason": f"{first} goes first after a limit", "until": None})
    return holds


def _describe_token(grounds: Grounds, resource: str, task: TaskState | None = None) -> dict[str, Any]:
    state = grounds.state
    amount = state.spec.resources.get(resource, 0)
    token = {
        "resource": resource,
        # of slots on a cluster there are no more than its nodes have
        "capacity": (find_limit(state, amount) or 0) if resource == SLOT else amount,
        "free": state.free[resource],
        "holders": grounds.holders.get(resource, []),
    }
    return token if task is None else {**token, "wants": dict(wanted_tokens(state, task))[resource]}


# --- what happened ---


def find_attempts(state: State, evidence: Evidence, wanted: Container[str]) -> dict[str, list[dict[str, Any]]]:
    """The attempts of the wanted tasks by id, each with its jobs."""
    by_task: dict[str, list[dict[str, Any]]] = {}
    begun: dict[str, Entry | None] = {}
    runs = find_runs(evidence.entries)
    for entry in evidence.entries:
        event = entry.event
        if isinstance(event, JobClaimed) and event.key.task in wanted:
            task, run = event.key.task, runs[event.key]
            attempts = by_task.setdefault(task, [])
            if not attempts or attempts[-1]["attempt"] != event.key.attempt:
                ran = find_ran(state.tasks[task], event.key.attempt)._asdict()
                attempts.append({**ran, "attempt": event.key.attempt, "rounds": 0, **_OPEN, "jobs": []})
                begun[task] = None
            begun[task] = begun[task] or run.begin
            attempts[-1] |= {"rounds": event.key.round, "started_at": _format(begun[task])}
            attempts[-1]["jobs"].append(_describe_job(evidence.ledger, event, run))
        elif isinstance(event, (TaskEnded, TaskRetried)) and event.task in by_task:
            attempt = by_task[event.task][-1]
            if attempt["outcome"] is None:
                attempt |= {"outcome": event.outcome, "reason_class": event.reason_class, "reason": event.reason}
                attempt |= {"ended_at": format_time(entry.at), "duration_s": _measure(begun[event.task], entry)}
    return by_task


def _describe_job(ledger: Ledger, claim: JobClaimed, run: Run) -> dict[str, Any]:
    start = run.begin.event if run.begin and isinstance(run.begin.event, JobStarted) else None
    end = run.end.event if run.end and isinstance(run.end.event, (JobFinished, JobLost)) else None
    finished = end if isinstance(end, JobFinished) else None
    node = (start and start.node) or claim.node
    return {
        "key": claim.key.text(),
        "round": claim.key.round,
        "phase": claim.key.phase,
        "start": claim.key.start,
        "node": node,
        "pid": start and start.pid,
        "started_at": _format(run.begin),
        "ended_at": _format(run.end),
        "duration_s": _measure(run.begin, run.end),
        "timer": run.timer,
        "verdict": end and end.verdict,
        "reason": end and end.reason,
        "exit_code": finished and finished.exit_code,
        "signal": finished and finished.signal,
        "ledger": tell_record(ledger, claim.key) if node is None else None,  # its node has one of its own
    }


def _format(entry: Entry | None) -> str | None:
    return None if entry is None else format_time(entry.at)


def _measure(begun: Entry | None, ended: Entry | None) -> float | None:
    return round(max(0.0, ended.mono - begun.mono), 3) if begun and ended else None


def tell_record(ledger: Ledger, key: JobKey) -> str:
    job = ledger.jobs.get(key.text())
    if job is None:
        return "the ledger has no claim of it: it never ran"
    if not job.tried:
        return "claimed, but its start was never tried: it never ran"
    if job.errno is not None:
        return f"could not be started (errno {job.errno})"
    if job.pid is None:
        return "its start was tried, and no process of it was recorded"
    if job.wait_status is not None:
        return f"process {job.pid}, wait status {job.wait_status}"
    words = {True: "still alive", False: "gone", None: "cannot be seen from here"}
    lives = processes.lives(job.boot_id, job.pid_ns, job.pid, job.started)
    return f"process {job.pid}, no exit recorded, {words[lives]}"
