"""`explain`, and `status TASK`: why a task does not run, or what became of it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from sessionrun.cli.options import Answer, flag, session_verb
from sessionrun.cli.render import escape_line, local_time
from sessionrun.cli.standing import (
    IDS_WIDTH,
    fact_lines,
    head_lines,
    indented,
    place_lines,
    section_lines,
    word_lines,
)
from sessionrun.client.lookup import name_for_command
from sessionrun.client.reading.telling import read_sections
from sessionrun.model.wording import (
    clip,
    find_cause,
    list_ids,
    name_session,
    name_tasks,
    short_id,
    tell_changes,
    tell_reason,
    tell_rounds,
    tell_until,
    tell_word,
)
from sessionrun.model.words import BAD, HELD
from sessionrun.store.session import SessionDir

_CAUSE_WORDS: Final = {
    "token": "waiting for a slot or resource",
    "hold": "held",
    "budget": "waiting for money",
    "backoff": "waiting to be tried again",
    "need": "waiting for another task",
    "no_process": "without a process of the session",
}
_SHOWN_HOSTS: Final = 8
_LANDING_WORDS: Final = {"ready": "is next to land", "waiting": "waits to land"}


@session_verb("explain")
@flag("--files", "With TASK: also name the files with what it printed.")
def command(session: SessionDir, tasks: tuple[str, ...], *, files: bool) -> Answer:
    """Say why tasks of session ID do not run, or what became of them.

    Without TASK: which process runs the session, what holds it, and each task that has not ended, by cause.  With
    TASK: the whole story of that task, as `status` ID TASK tells it, too.
    """
    from sessionrun.client.explain import explain

    view, explanation = explain(session, tasks)
    if tasks:
        return Answer(explanation, story_lines(session, view, explanation, files=files))
    return Answer(explanation, _tell_all(view, explanation))


def _tell_all(view: Mapping[str, Any], explanation: dict[str, Any]) -> Iterator[str]:
    yield from head_lines(view, time.time())
    yield from _tell_session(explanation)
    yield from _list_tasks(view, explanation)


def _tell_session(explanation: dict[str, Any]) -> Iterator[str]:
    supervisor = (explanation["processes"] or {}).get("supervisor")
    if explanation["status"] == "interrupted":
        from sessionrun.client.reading.waiting import gone_words

        yield escape_line(gone_words(explanation))
    elif supervisor and explanation["ended_at"] is None:
        yield f"Run by: process {supervisor['pid']}, supervisor number {explanation['epoch']}"
    for name in explanation["stopped"]:
        pid = (explanation["processes"] or {})[name]["pid"]
        yield f"Stopped: its {name}, process {pid}.  To let it go on: kill -CONT {pid}"
    for hold in () if explanation["ended_at"] else explanation["holds"]:
        until = f" until {local_time(hold['until'])}" if hold["until"] else ""
        yield escape_line(f"Held: {hold['resource']}{until}: {hold['reason']}")
    if explanation["landings"]:
        yield "Landing: " + ", ".join(f"{count} {status}" for status, count in explanation["landings"].items())


def _word_denied(found_of: Sequence[Mapping[str, Any]]) -> str:
    host, port = found_of[0]["host"], found_of[0]["port"]
    named = host if port in (0, 80, 443) else f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    count = sum(found["count"] for found in found_of)
    return f"denied {named} ({count} time{'s' if count != 1 else ''})"


def _list_tasks(view: Mapping[str, Any], explanation: Mapping[str, Any]) -> Iterator[str]:
    from sessionrun.client.explain import CAUSES

    hosts: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    for found in explanation["denied"]:
        hosts.setdefault((found["host"], found["port"]), []).append(found)
    for found_of in list(hosts.values())[:_SHOWN_HOSTS]:
        names = ", ".join(found["task"] for found in found_of[:_SHOWN_HOSTS])
        yield escape_line(f"Network: {_word_denied(found_of)}, asked for by {names}")
    if len(hosts) > _SHOWN_HOSTS:
        yield f"Network: denied {len(hosts) - _SHOWN_HOSTS} other hosts"
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    by_id, now = name_tasks(view), time.time()
    for task in sorted(explanation["tasks"], key=lambda task: CAUSES.index(task["cause"])):
        why = _tell_why(task, by_id[task["id"]], by_id, now)
        groups.setdefault((task["cause"], why), []).append(task)
    for (cause, why), tasks in groups.items():
        ids = list_ids(tasks, IDS_WIDTH)
        word = _CAUSE_WORDS.get(cause, tell_word(cause))
        yield escape_line(f"{len(tasks) if len(tasks) > 1 else f'{ids}:'} {word}: {why}")
        if len(tasks) > 1:
            yield "  " + escape_line(ids)
        for task in tasks if cause == "no_process" else ():
            if task["status"] == "running":
                stop = f"process group {task['pid']}; to stop it: kill -TERM -{task['pid']}"
                yield "  " + escape_line(f"{task['id']}: {stop}")


def story_lines(
    session: SessionDir, view: Mapping[str, Any], explanation: Mapping[str, Any], *, files: bool = False
) -> Iterator[str]:
    """What became of each explained task, or why it does not run: also what `status TASK` prints."""
    tasks, now = name_tasks(view), time.time()
    yield from place_lines(view)
    for place, facts in enumerate(explanation["tasks"]):
        task = tasks[facts["id"]]
        name = clip(escape_line(task["title"]), 50)
        yield from [""] * bool(place)
        yield f"{escape_line(task['id'])} ({name}), in {escape_line(name_session(view))}"
        yield from word_lines(task, _tell_why(facts, task, tasks, now))
        cause = find_cause(task, tasks)
        if cause is not None:
            # what the first task said because of which it was skipped
            for section in read_sections(session, cause)[:1]:
                yield "  " + escape_line(f"{cause['id']}: {section.lines[-1]}")
            if len(facts["chain"]) > 1:
                yield escape_line(f"way: {' needs '.join([facts['id'], *facts['chain']])}")
        sections = read_sections(session, task) if task["status"] == "completed" else []
        yield from [""] * bool(sections)
        for section in sections:
            yield from section_lines(*section, "", "{}:")
        yield from [""] * bool(facts["attempts"])
        yield from indented(tell_rounds(facts["attempts"], facts["attempt"]), "")
        yield from _tell_rest(task, facts, explanation["denied"])
        for path in (session.path.absolute() / task[key] for key in ("output", "stderr")):
            if files and path.exists():
                yield escape_line(f"file: {path}")
        yield from _tell_next(view, task, cause)


def _tell_why(facts: Mapping[str, Any], task: Mapping[str, Any], tasks: Mapping[str, Any], now: float) -> str:
    """Why a task stands as it does, in one line for people; `why` of the JSON object has times of the world."""
    if task["status"] == "completed" or task["word"] == HELD:
        # of work that is about to land the rest of the sentence says how many are before it
        return tell_reason(task, tasks, now) or str(facts["why"]).partition("; ")[2]
    if facts["retry_at"] and facts["cause"] == "backoff":
        return f"attempt {facts['attempt']} waits {tell_until(facts['retry_at'], now)}"
    return str(facts["why"])


def _tell_rest(
    task: Mapping[str, Any], facts: Mapping[str, Any], denied: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    if task["branch"] and task["diff_stat"] and not task["rescue_branch"]:
        yield escape_line(f"branch {task['branch']}: {tell_changes(task)}")
    yield from indented(_tell_landing(task), "") if task["word"] != "bounced" else ()
    yield from fact_lines(task, "", notes=True)
    if facts["follow_up"] is not None:
        yield f"last follow-up: {clip(escape_line(facts['follow_up']), 200)}"
    for found in denied:
        if found["task"] == task["id"]:
            yield escape_line(f"network: {_word_denied([found])}: {found['why']}")
    for need in facts["needs"] if facts["cause"] == "need" else ():
        yield escape_line(f"needs {need['id']}: {need['outcome'] or need['status'] or 'no such task'}")
    for token in facts["tokens"][1:]:
        yield escape_line(f"also lacks: {token['resource']}, held by {', '.join(token['holders'])}")


def _tell_landing(task: Mapping[str, Any]) -> Iterator[str]:
    """What became of a task's work when it was to land, or what it waits for."""
    landing = task.get("landing")
    if not landing:
        return
    commit = f" with {landing['commit'][:12]}" if landing["commit"] else ""
    status = landing["status"]
    where = f" on {landing['target']}" if landing["target"] and status not in ("bounced", "held") else ""
    why = f": {landing['reason']}" if landing["reason"] and status != "landed" else ""
    yield f"{_LANDING_WORDS.get(status, status)}{where}{commit}{why}"
    if landing["output"]:
        yield f"see {landing['output']}"
    if landing["mend"]:
        yield f"mend: {landing['mend']}"


def _tell_next(view: Mapping[str, Any], task: Mapping[str, Any], cause: Mapping[str, Any] | None) -> Iterator[str]:
    name, word = name_for_command(view), task["word"]
    if cause is not None:
        yield f"next: sessionrun retry {name} {short_id(cause)}    # what it held back runs again, too"
    elif word in (*BAD, "cancelled"):
        yield f"next: sessionrun retry {name} {short_id(task)}"
    elif word == "bounced":
        yield f"next: sessionrun merge {name} {short_id(task)}    # once it is mended on its branch"
    elif word == HELD and task["status"] == "completed":
        yield f"next: sessionrun merge {name} {short_id(task)}    # once nothing keeps it from landing"
    elif word == HELD:
        yield f"next: sessionrun release {name} {short_id(task)}"
