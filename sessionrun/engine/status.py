"""From the state to what readers show: status.json, the summary, and the truth about a session that died.

Pure: `project` folds nothing and reads nothing, `summarise` gets the evidence about living processes handed
in.  What the keys mean stands in `model.shown`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any, Final, Literal, TypeAlias, cast

from sessionrun.engine.money import describe_wait, to_usd
from sessionrun.engine.moves import PACED, lacking_tokens
from sessionrun.engine.state import BUDGET, State
from sessionrun.engine.task import TaskState
from sessionrun.model import shown
from sessionrun.model.asked import UNCLAIMED
from sessionrun.model.keys import Phase
from sessionrun.model.places import Place
from sessionrun.model.spec import SLOT, title_of
from sessionrun.model.usage import Usage, sum_usages
from sessionrun.model.words import (
    SCHEMA_VERSION,
    LandWord,
    Standing,
    Word,
    choose_word,
    describe_session,
    format_time,
    name_tries,
    stand,
)

_NO_PLACE: Final = Place()

PHASE_WORDS: Final[Mapping[Phase, shown.PhaseWord]] = {
    "prepare": "preparing",
    "setup": "initializing",
    "work": "running",
    "check": "checking",
    "park": "parking",
    "prove": "proving",
    "land": "landing",
    "release": "releasing",
}
"""The `phase` of an active task as status.json spells it; a task that waits is `queued`."""

Gone: TypeAlias = tuple[Literal["lost", "interrupted"], str]
"""What became of a task whose end was not seen, and why that is known."""


class Rows:
    """The tasks of status.json, each made anew when it is read; a list of all would take 2.3 KB for each.

    It shows the state of the moment at which it is read.
    """

    def __init__(self, state: State) -> None:
        self._state = state

    def __iter__(self) -> Iterator[shown.Task]:
        for task in self._state.tasks.values():
            row = _project_task(self._state, task)
            for rules in self._state.rules:
                cast("dict[str, object]", row).update(rules.show(self._state, task) or {})
            yield row


def project(state: State) -> dict[str, Any]:
    """The object of status.json."""
    return {**project_live(state), "tasks": list(Rows(state))}


def project_live(state: State) -> dict[str, Any]:
    """The same with `Rows` for the tasks: for a writer, not to be kept."""
    spec, used = state.spec, sum_usages(state.usage_by_model.values())
    return {
        "schema_version": SCHEMA_VERSION,
        "session_id": spec.session_id,
        "name": spec.name,
        "labels": dict(spec.labels),
        "dialect": spec.dialect,
        "agent": spec.agent,
        "status": state.ended.status if state.ended else "running",
        "outcome": state.ended.outcome if state.ended else None,
        **describe_session((_stand(state, task) for task in state.tasks.values()), ended=state.ended is not None),
        "started_at": format_time(state.started_at) or spec.created_at,
        "ended_at": format_time(state.ended_at),
        "max_parallel": spec.resources.get(SLOT),
        "base_branch": spec.repository and spec.repository.base_branch,
        # its `cost_usd` is a lower bound unless `cost_complete`
        "usage": used and {**project_usage(used), "cost_complete": not used.unpriced_jobs},
        "usage_by_model": project_usage_by_model(state.usage_by_model),
        "budget": project_budget(state),
        "feed": project_feed(state),
        "parent": _show(spec.parent),
        "seq": state.seq,
        "epoch": state.epoch,
        "processes": _project_processes(state),
        "view_problems": [],  # the writer of views knows them, and no log
        "tasks": Rows(state),
    }


def project_summary(status: Mapping[str, Any]) -> dict[str, Any]:
    """The object of the summary file, out of status.json's."""
    return {key: status[key] for key in ("schema_version", *shown.Summary.__annotations__)}


def summarise(status: dict[str, Any], living: Collection[str], gone: Mapping[str, Gone]) -> dict[str, Any]:
    """What a reader shows of a session that has not ended and that no process runs, by the status of its logs.

    `living` are tasks whose process still runs; the process of those in `gone` ended without a record.
    """
    tasks = [_without_supervisor(task, living, gone) for task in status["tasks"]]
    return recount({**status, "status": "interrupted", "tasks": tasks})


def recount(status: dict[str, Any]) -> dict[str, Any]:
    """A status whose tasks a reader has corrected, with all that is counted of them."""
    tasks, stopped = status["tasks"], status["status"] == "interrupted"
    standings = [stand(task, feeds=status["feed"] is not None) for task in tasks]
    return {**status, **describe_session(standings, ended=status["ended_at"] is not None, stopped=stopped)}


def _without_supervisor(task: dict[str, Any], living: Collection[str], gone: Mapping[str, Gone]) -> dict[str, Any]:
    """A task of a session that no process runs: running only if its own process does."""
    if task["status"] == "completed":
        return task
    if task["id"] in living:  # perhaps its start did not come into the journal any more
        phase = task["phase"] if task["status"] == "running" else "running"
        return {**task, "status": "running", "phase": phase, "word": "running"}
    if task["id"] in gone:
        outcome, why = gone[task["id"]]
        return {
            **task,
            "status": "completed",
            "phase": None,
            "pid": None,
            "outcome": outcome,
            "word": choose_word(outcome),
            "reason_class": outcome,
            "reason": f"{outcome}: {why}",
        }
    word = "waiting" if task["word"] == "running" else task["word"]
    return {**task, "status": "pending", "phase": "queued", "pid": None, "word": word}


def _show(record: Any) -> Any:
    return record and asdict(record)


def _show_all(records: Iterable[Any] | None) -> Any:
    return [asdict(record) for record in records or ()] or None


def _project_task(state: State, task: TaskState) -> shown.Task:
    """What is shown of a task of which no business has more to say."""
    spec, place, agent = task.spec, task.place or _NO_PLACE, state.spec.agents.get(task.agent)
    held_until, held, held_reason = _hold(state, task)
    return {
        "num": task.num,
        "id": spec.id,
        "title": title_of(spec),
        "labels": spec.labels,
        "status": status_word(task),
        "phase": None if task.outcome else PHASE_WORDS[task.next_phase()] if has_begun(task) else "queued",
        "outcome": task.outcome,
        "word": _choose_word(task, held, held_reason, _find_stage(state, task)),
        "reason_class": held if held_reason else task.reason_class,
        "reason": f"{held}: {held_reason}" if held_reason else task.reason,
        "held_until": format_time(held_until),
        "attempt": task.attempt,
        "round": task.round,
        "follow_ups": len(task.follow_ups),
        "mends": spec.mend.task if spec.mend else None,
        "agent": task.agent,
        "model": task.last_model or task.asked_model,
        "earlier_agents": [cast("shown.EarlierAgent", ran._asdict()) for ran in task.ran] or None,
        "exit_code": task.exit_code,
        "signal": task.signal,
        "leftovers": _show_all(task.leftovers),
        "started_at": format_time(task.started_at),
        "ended_at": format_time(task.ended_at),
        "ended_seq": find_end(task),
        "duration_s": None if task.duration_s is None else round(task.duration_s, 3),
        "pid": (task.job.pid or None) if task.job and not task.outcome else None,
        "node": task.node,
        "branch": place.branch,
        "rescue_branch": place.rescue,
        "worktree": place.worktree,
        "worktree_kept": place.kept,
        "worktree_remark": place.remark,
        "environment": _show(place.environment),
        "seat": task.seat or place.seat,
        "base_commit": place.base_commit,
        "setup_commit": place.setup_commit,
        "commit": place.commit,
        "diff_stat": place.diff_stat,
        "output": f"task-{spec.id}.txt",
        "stderr": f"task-{spec.id}.err",
        "raw": f"task-{spec.id}.raw" if agent and agent.output not in ("text", "aider") else None,
        "needs": spec.needs,
        "repo": spec.upstream.repo if spec.upstream else None,
        "ref": spec.upstream.ref if spec.upstream else None,
        "ref_name": place.start.name if place.start else None,
        "ref_commit": place.start.commit if place.start else None,
        "conversation": task.last_conversation,
        "usage": None if task.usage is None else project_usage(task.usage),
        "usage_by_model": project_usage_by_model(task.sum_by_model()),
        "usage_by_agent": project_usage_by_agent(task),
        "check": None if spec.check is None and spec.answer != "patch" else _project_check(task),
        "proof": task.proof,
        "audit": _show_all(task.audit),
        "landing": None,
    }


def _stand(state: State, task: TaskState) -> Standing:
    """How a task stands, without the rest of its row."""
    spec, (until, held, reason), stage = task.spec, _hold(state, task), _find_stage(state, task)
    return Standing(
        spec.id,
        _choose_word(task, held, reason, stage),
        task.outcome is None,
        format_time(until),
        spec.needs,
        stage,
        name_tries(spec.id, spec.labels, mends=spec.mend is not None, feeds=state.spec.feed is not None),
    )


def _find_stage(state: State, task: TaskState) -> LandWord | None:
    """Where the work of a task stands on the way that a business has for it; None: none has one."""
    stages = (rules.find_stage(state, task) for rules in state.rules)
    return next((stage for stage in stages if stage is not None), None)


def _choose_word(task: TaskState, held: str, reason: str | None, stage: LandWord | None) -> Word:
    """The word of a task; one that the session claims in its queue first is not held, but waits for a moment."""
    place, is_held = task.place, held == "held" and reason not in (None, UNCLAIMED)
    return choose_word(
        task.outcome,
        runs=has_begun(task) and not (is_held and task.job is None),
        held=is_held,
        landing=stage,
        changed=place is None or place.changed is not False,
    )


def find_end(task: TaskState) -> int | None:
    """The number of the record with which the task ended or, if its work was to land, with which that was over."""
    if task.outcome is None:
        return None
    return max(task.ended_seq or 0, (task.landing.seq or 0) if task.landing else 0)


def _project_check(task: TaskState) -> shown.Check:
    """What the checks of the attempt came to; `best_round` is that whose work is kept."""
    counts = task.checked.counts if task.checked else None
    best = task.best
    return {
        "passed": task.check_passed,
        "rounds": task.spec.rounds,
        "counts": _show(counts),
        "best_round": best.round if best else None,
        "best_counts": _show(best.checked.counts if best and best.checked else None),
        "best_reason": best.why if best else None,
    }


def _project_processes(state: State) -> shown.Processes | None:
    """The processes that run the session, so that a reader can look for them without reading the logs."""
    last = state.supervisor
    if last is None:
        return None
    supervisor: shown.Process = {"pid": last.pid, "started": last.started}
    keeper: shown.Process | None = (
        None if last.keeper is None else {"pid": last.keeper, "started": last.keeper_started}
    )
    return {"boot_id": last.boot_id, "pid_ns": last.pid_ns, "supervisor": supervisor, "keeper": keeper}


def status_word(task: TaskState) -> Literal["pending", "running", "completed"]:
    """Whether a task has ended, or has begun."""
    return "completed" if task.outcome else "running" if has_begun(task) else "pending"


def has_begun(task: TaskState) -> bool:
    """Whether a process of the task was seen: one that is only claimed may never come to be.

    One that gave its slot back waits in the queue again, for its provider.
    """
    return task.active and task.started_at is not None and not task.suspended


def _hold(state: State, task: TaskState) -> tuple[float | None, str, str | None]:
    """Until when (wall time) a task is held back by a hold, with its reason class and reason, or by its backoff.

    A hold on request shows in any case, for only a request ends it; another one only on a task that could run.
    """
    if task.is_held:
        return None, "held", task.held
    if task.outcome or task.job or task.unmet:
        return None, "held", None
    lacking = {*lacking_tokens(state, task)} if state.holds else ()
    holds = [state.holds[name] for name in sorted(lacking) if name in state.holds]
    holds.sort(key=lambda hold: hold.resource in PACED)  # those that pass by themselves come last
    until = max([task.not_before, *[hold.until or 0.0 for hold in holds]])
    word = "paced" if holds and holds[0].resource in PACED else "held"
    return (
        until + state.wall_offset if until else None,
        word,
        holds[0].reason if holds else describe_wait(state, task),
    )


def project_feed(state: State) -> shown.Feed | None:
    """Where the tasks come from, and whether more may come; null for a session with all its tasks."""
    feed = state.spec.feed
    if feed is None:
        return None
    return {
        "queue": state.spec.source,
        "backend": feed.backend,
        "group": feed.group,
        "tasks": list(feed.chosen) or None,
        "watch": feed.watch,
        "open": state.feed_open,
        "held": state.held,
    }


def project_usage(usage: Usage) -> shown.Usage:
    """Tokens and cost of one job or of several."""
    return {
        "input_tokens": usage.input_tokens,
        "cached_input_tokens": usage.cached_input_tokens,
        "output_tokens": usage.output_tokens,
        "cost_usd": None if usage.cost_usd is None else round(usage.cost_usd, 9),
        "cost_source": usage.cost_source,
        "unpriced_jobs": usage.unpriced_jobs,
    }


def project_usage_by_model(totals: Mapping[str, Usage]) -> dict[str, shown.Usage] | None:
    """The same of each model; None: nothing was used."""
    return {model: project_usage(used) for model, used in totals.items()} or None


def project_usage_by_agent(task: TaskState) -> dict[str, dict[str, shown.Usage]] | None:
    """The same of each agent and model, if another one than the task's own used some of it."""
    by_agent: dict[str, dict[str, shown.Usage]] = {}
    for (agent, model), used in task.usage_by_agent.items():
        by_agent.setdefault(agent, {})[model] = project_usage(used)
    return None if by_agent.keys() <= {task.agent} else by_agent


def project_budget(state: State) -> shown.Budget | None:
    """The session's budgets and its account; null without a budget of the session."""
    limits, money = state.spec.limits, state.money
    if limits.budget_usd is None and limits.soft_budget_usd is None:
        return None
    return {
        "budget_usd": limits.budget_usd,
        "soft_budget_usd": limits.soft_budget_usd,
        "spent_usd": to_usd(money.spent),
        "reserved_usd": to_usd(money.reserved),
        "held": BUDGET in state.holds,
    }
