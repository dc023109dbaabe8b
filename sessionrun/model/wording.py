"""What people are told of a session and its tasks: the same words in verbs, pages and notifications.  Pure.

All is plain text, not yet safe for a terminal: `cli.render` escapes it, and has the signs and colours.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from sessionrun.model.keys import is_node_id
from sessionrun.model.words import (
    BAD,
    CHECK_NOT_RUN,
    HELD,
    IN_LANDING,
    REASONS,
    WORDS,
    Word,
    parse_time,
    read_landing,
    tell_counts,
)

SHORT_ID: Final = 8
"""So many digits of an id stand for it."""

NAME_WIDTH: Final = 30
REASON_WIDTH: Final = 100
"""How much of a reason a line has where many are to be read at once."""

SHOWN_LEFT: Final = 2
"""So many of the processes that a task left running are named."""

SAID: Final = "said"
"""The source of what the agent said; of others it is a step, `work` for the agent's standard error."""

_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

_NEEDED: Final = re.compile("need: '([^']+)' ")
"""As the engine words it, with the first cause."""

_NO_SUCCESS: Final = (*BAD, "cancelled", "skipped")

Task = Mapping[str, Any]
View = Mapping[str, Any]

_SAID_ITSELF: Final = frozenset(
    {
        *("exit_code", "signal", "timeout", "round_timeout", "stalled", "disk_limit", "cancelled", "need"),
        *("max_failures", "lost", "interrupted", "exit_unseen", "lingered", "no_change", "held", "paced"),
        *("weakened", "not_red", "flaky", "unproved", "unresolved", "tests_not_run", "no_tests"),
        *("needs_conflict", "no_patch", "bad_patch", "mend_refused", "bad_context", "gate_not_run"),
        *("conflict", "target_red"),
    }
)
"""Classes whose reasons say it all without the name of the class."""


# --- sessions ---


def name_session(view: View) -> str:
    """A session in a line about it: its name, or else the first digits of its id."""
    name = " ".join((view.get("name") or "").split())
    return clip(name, NAME_WIDTH) or str(view["session_id"])[:SHORT_ID]


def tell_session(view: View) -> str:
    """The name and the first digits of the id: ``night (0d6e3015)``."""
    short = str(view["session_id"])[:SHORT_ID]
    return f"{name_session(view)} ({short})" if view.get("name") else short


def tell_state(view: View, now: float) -> str:
    """How a session stands: its state, until when it is held, and which of its processes are stopped."""
    word = "recovering" if view["status"] == "recovering" else str(view["state"])
    until = f" {tell_until(view['held_until'], now)}" if word == HELD and view["held_until"] else ""
    stopped = " and ".join(view.get("stopped", ()))
    return f"{word}{until}" + (f" ({stopped} stopped)" if stopped else "")


def tell_head(view: View, now: float) -> str:
    """The first line about a session: ``night (0d6e3015): ended, 8 tasks, 11.7 s``."""
    tasks = f"{view['total'] or 'no'} {'task' if view['total'] < 2 else 'tasks'}"
    return f"{tell_session(view)}: {tell_state(view, now)}, {tasks}, {tell_span(took_s(view, now))}"


def tell_result(view: View, now: float) -> str:
    """The verdict in a line: ``night (0d6e3015): 4 landed, 1 bounced; 11.7 s``."""
    return f"{tell_session(view)}: {tell_counts(view['counts']) or 'no task'}; {tell_span(took_s(view, now))}"


def took_s(view: View, now: float) -> float:
    """For how long a session or a task has run, or ran."""
    if not view["started_at"]:
        return 0.0
    end = parse_time(view["ended_at"]) if view["ended_at"] else now
    return max(0.0, end - parse_time(view["started_at"]))


def fit_counts(counts: Mapping[str, int], room: int) -> str:
    """The counts in so many columns: where that is too little, those that need no look are left out first."""
    shown = {word: number for word, number in counts.items() if number}
    for word in ("succeeded", "landed", "waiting", "skipped", "cancelled", "running", "changed_nothing"):
        if len(tell_counts(shown)) <= room:
            break
        shown.pop(word, None)
    return clip(tell_counts(shown) or tell_counts(counts), room)


# --- times ---


def tell_span(seconds: float) -> str:
    """Seconds for people: ``4.2 s``, ``3 m 12 s``, ``2 h 05 m``."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    return f"{whole // 60} m {whole % 60:02} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60:02} m"


def tell_until(at: str, now: float) -> str:
    """``until 22:26 (in 41 m)`` in local time; with the day where that is not today."""
    from datetime import datetime

    moment, today = datetime.fromtimestamp(parse_time(at)), datetime.fromtimestamp(now)
    day = "" if moment.date() == today.date() else f"{moment:%Y-%m-%d} "
    left = max(0, round(moment.timestamp() - now))
    span = f"{left} s" if left < 60 else f"{left // 60} m" if left < 3600 else tell_span(left)
    span = f"{left // 86400} days" if left >= 2 * 86400 else span
    return f"until {day}{moment:%H:%M} (in {span})"


# --- tasks ---


def tell_word(word: str) -> str:
    return word.replace("_", " ")


def name_tasks(view: View) -> dict[str, Task]:
    """The tasks of a view by id."""
    return {task["id"]: task for task in view["tasks"]}


def tell_reason(task: Task, tasks: Mapping[str, Task], now: float) -> str:
    """Why a task stands as it does, without the name of the class where the rest says it; empty: not known.

    What was skipped names the first cause among all tasks of its session.
    """
    landing = task.get("landing")
    if task["status"] != "completed":
        until = task.get("held_until")
        # else it is why an attempt failed
        waits = task["word"] == HELD or task["reason_class"] == "paced" or until
        words = [clean_reason(task["reason"], task["reason_class"])] if waits else []
        return ", ".join([*filter(None, words), *([tell_until(until, now)] if until else [])])
    if landing and landing["reason"] and task["outcome"] == "succeeded" and landing["status"] != "landed":
        return clean_reason(landing["reason"], landing.get("reason_class"))
    cause = find_cause(task, tasks)
    if cause is None:
        return clean_reason(task["reason"], task["reason_class"])
    return f"because {cause['id']} {_tell_end(cause, tasks, now)}"


def with_reason(words: str, reason: str) -> str:
    """``failed: exit code 1``, ``skipped because a failed``; the words alone where there is no reason."""
    between = "" if not reason else " " if reason.startswith("because ") else ": "
    return f"{words}{between}{reason}"


def find_cause(task: Task, tasks: Mapping[str, Task]) -> Task | None:
    """The first task because of which one was skipped; None as with an empty `follow_chain`."""
    # The reason names it.  To walk from each task of a long chain takes the square of its length.
    if named := _NEEDED.match((task["word"] == "skipped" and task["reason"]) or ""):
        cause = tasks.get(named[1])
        if cause is not None and cause["word"] in _NO_SUCCESS and cause["reason_class"] != "need":
            return cause
    chain = follow_chain(task, tasks)
    return chain[-1] if chain else None


def follow_chain(task: Task, tasks: Mapping[str, Task]) -> list[Task]:
    """The tasks because of which one was skipped, from the nearest to the first.

    Empty if it was not for a need, or that is no longer so.
    """
    chain: list[Task] = []
    seen, at = {task["id"]}, task
    while at["word"] == "skipped" and at["reason_class"] == "need":
        needs = [tasks[need] for need in at["needs"] if need in tasks and need not in seen]
        broken = [need for need in needs if need["word"] in _NO_SUCCESS]
        # its reason names the first cause, or is that of the need which ended first
        named = [need for need in broken if f"{need['id']!r} " in (task["reason"] or "")]
        same = [need for need in broken if need["reason"] == task["reason"]]
        if not broken:
            return []
        at = (named or same or broken)[0]
        seen.add(at["id"])
        chain.append(at)
    return chain


def _tell_end(task: Task, tasks: Mapping[str, Task], now: float) -> str:
    word = tell_word(task["word"])
    reason = "" if task["word"] == "cancelled" else tell_reason(task, tasks, now)
    was = "was " if task["word"] in ("skipped", "cancelled", "lost") else ""
    return with_reason(f"{was}{word}", reason)


def clean_reason(reason: str | None, reason_class: str | None) -> str:
    """A reason on one line, without the name of its class or with that as words."""
    text = " ".join((reason or "").split()).removeprefix(f"{reason_class}: ")
    if reason_class == HELD and (met := text.partition(":")[0]) in REASONS:  # by a job of this or another task
        reason_class, text = met, text.removeprefix(f"{met}: ")
    known = REASONS.get(reason_class or "")
    if known is None or known.about in ("judged", "session"):
        text = text.replace(" of: ", ": ", 1)  # what a check or a gate came to, and its command
    if reason_class is None or reason_class in _SAID_ITSELF or not text:
        return text
    if reason_class == "gate_red":
        return f"gate failed, {text}"
    if reason_class == CHECK_NOT_RUN:
        return f"the check {text.removeprefix('it ')}"
    if known is not None and known.about != "outside" and reason_class.endswith(("_failed", "_timeout", "_run")):
        return f"{tell_word(reason_class)}, {text}"
    return f"{tell_word(reason_class)}: {text}"


def needs_look(task: Task) -> bool:
    """Whether a person may have to act: a task is bad, held or changed nothing, or its work did not land."""
    if task["status"] != "completed":
        return bool(task["word"] == HELD or task["held_until"])
    if task["outcome"] == "succeeded" and read_landing(task) not in (None, "landed", *IN_LANDING):
        return True
    return task["word"] in (*BAD, "bounced", "changed_nothing")


class Group(NamedTuple):
    """Tasks with the same word for the same reason."""

    word: Word
    reason: str
    tasks: list[Task]

    @property
    def head(self) -> str:
        """``7 failed: exit code 1``."""
        return with_reason(f"{len(self.tasks)} {tell_word(self.word)}", self.reason)


def group_tasks(chosen: Iterable[Task], tasks: Mapping[str, Task], now: float) -> list[Group]:
    """Tasks by word and reason: the words in their order, of one word the largest group first."""
    groups: dict[tuple[Word, str], list[Task]] = {}
    for task in chosen:
        groups.setdefault((task["word"], tell_reason(task, tasks, now)), []).append(task)
    found = [Group(word, reason, members) for (word, reason), members in groups.items()]
    return sorted(found, key=lambda group: (WORDS.index(group.word), -len(group.tasks)))


def short_id(task: Task) -> str:
    """The id of a task, of one that got a UUID the first digits: a beginning names it, too."""
    name = str(task["id"])
    return name[:SHORT_ID] if _UUID.fullmatch(name) else name


def name_agent(record: View) -> str:
    """Agent and model of a task or an attempt in one word, as `--fallback` spells them."""
    return "/".join(filter(None, (record["agent"], record["model"])))


def find_took_s(task: Task, now: float) -> float | None:
    """How long a task took, or runs already; None: it has not begun."""
    is_begun = task["status"] == "running" and task["started_at"]
    return took_s(task, now) if is_begun else task["duration_s"]


def tell_took(task: Task, now: float) -> str:
    """The same in words; empty: it has not begun."""
    seconds = find_took_s(task, now)
    return "" if seconds is None else tell_span(seconds)


def tell_changes(task: Task) -> str:
    """What a task with a worktree changed: ``2 files +3 -0``; empty where that is not known."""
    stat = task.get("diff_stat")
    if stat is None:
        return ""
    files = f"{stat['files']} file{'s' if stat['files'] != 1 else ''}"
    return f"{files} +{stat['insertions']} -{stat['deletions']}" if stat["files"] else "no change"


def tell_work(task: Task) -> Iterator[str]:
    """What a task left running, and where its work is if that is on no branch of its own."""
    left = task.get("leftovers") or ()
    yield from (f"left running: {one['command']} ({one['how']})" for one in left[:SHOWN_LEFT])
    if len(left) > SHOWN_LEFT:
        yield f"left running: {len(left) - SHOWN_LEFT} more"
    if task.get("worktree_kept"):
        yield f"worktree kept: {task['worktree_kept']}"
    if task.get("worktree_remark"):
        yield str(task["worktree_remark"])
    if task.get("worktree") and task["status"] == "completed":
        where = f" on node {task['node']}" if is_node_id(task.get("node")) else ""
        yield f"worktree{where}: {task['worktree']}"
    if task.get("rescue_branch"):
        yield f"its work is on: {task['rescue_branch']}"


def list_ids(tasks: Sequence[Task], room: int) -> str:
    """As many ids as fit in so many letters, one at least, and how many more there are."""
    ids = [short_id(task) for task in tasks]
    for shown in range(min(len(ids), room), 0, -1):
        line = " ".join(ids[:shown]) + (f" and {len(ids) - shown} more" if shown < len(ids) else "")
        if len(line) <= room:
            break
    return line


def name_source(source: str) -> str:
    """What the last lines of a source are called."""
    return {SAID: "the agent said", "work": "standard error, last lines"}.get(source, f"{source}, last lines")


# --- what ran ---


def tell_rounds(attempts: Sequence[View], newest: int) -> Iterator[str]:
    """A line for each round of a task's attempts, as `explain` has them: its phases, with what did not pass."""
    several = len({(attempt["agent"], attempt["model"]) for attempt in attempts}) > 1
    for attempt in attempts:
        named = f"attempt {attempt['attempt']}" + (f" ({name_agent(attempt)})" if several else "")
        rounds: dict[int, list[View]] = {}
        for job in attempt["jobs"]:
            rounds.setdefault(job["round"], []).append(job)
        for number, jobs in rounds.items():
            at = f"{named}, round {number}" if len(rounds) > 1 else named
            phases = ", ".join(_tell_job(job, attempt) for job in jobs)
            is_last = number < attempt["rounds"] or attempt["attempt"] == newest
            why = "" if is_last else _word_reason(attempt["reason"] or "")
            yield f"{at}: {phases}{f'; {why}' if why and why not in phases else ''}"


def _word_reason(reason: str) -> str:
    kind = reason.partition(": ")[0]
    return clean_reason(reason, kind if kind in REASONS else None)


def _tell_job(job: View, attempt: View) -> str:
    took = f" {tell_span(job['duration_s'])}" if job["duration_s"] is not None else ""
    verdict = "" if job["verdict"] == "passed" else f" {job['verdict'] or 'has not ended'}"
    more = "; ".join(_tell_unusual(job, attempt))
    return f"{job['phase']}{took}{verdict}{f' ({more})' if more else ''}"


def _tell_unusual(job: View, attempt: View) -> Iterator[str]:
    if job["start"] > 1:
        yield f"start {job['start']}"
    if job["timer"]:
        yield f"stopped by {job['timer']}"
    if job["exit_code"] and job["phase"] == "work":  # of others it is our program's, and means nothing
        yield f"exit code {job['exit_code']}"
    if job["signal"] is not None:
        yield f"signal {job['signal']}"
    if not (job["timer"] or job["signal"] or job["reason"] in (None, attempt["reason"])):
        yield _word_reason(job["reason"])
    if job["node"] is not None:
        yield f"on node {job['node']}" if job["started_at"] is not None else f"for {job['node']}"
    elif job["verdict"] in (None, "lost", "interrupted", "void"):
        yield job["ledger"]


# --- texts in little room ---

BRIEF_BYTES: Final = 1600
"""A short answer has no more, however many tasks there are; nor have all telling lines together in one."""


def clip(text: str, width: int, *, middle: bool = False) -> str:
    """The beginning of a line that fits `width` columns, or beginning and end, with dots where it was cut."""
    if columns(text) <= width:
        return text
    half = len(text) // 2 if middle else len(text)
    head, tail = text[:half], text[half:]
    while (head or tail) and columns(head) + columns(tail) > width - 3:
        head, tail = (head[:-1], tail) if columns(head) > columns(tail) else (head, tail[1:])
    return f"{head}...{tail}"


def columns(text: str) -> int:
    """How many columns a terminal needs; wide East Asian characters take two."""
    if text.isascii():
        return len(text)
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)


def measure_lines(lines: Iterable[str]) -> int:
    """How many bytes lines take, each with its end."""
    return sum(len(line.encode("utf-8", "backslashreplace")) + 1 for line in lines)


def cut_bytes(line: str, most: int) -> str:
    """The beginning of a line in so many bytes, with dots where it was cut."""
    content = line.encode("utf-8", "backslashreplace")
    return line if len(content) <= most else content[: most - 3].decode("utf-8", "ignore") + "..."
