"""Claude Code and Qwen Code: how to start them and how to read their ``stream-json`` output (2.1, 0.24).

Facts that are easy to get wrong: an API error ends in ``"subtype": "success"`` with ``is_error`` true; a refused
tool ends in exit code 0, and only ``permission_denials`` tells; a prompt like ``/help`` is taken for a command
of the program itself and succeeds without a turn.  Some versions gave out a limit or an API error as the answer,
with ``is_error`` false (anthropics/claude-code#79500).  A used up account answers HTTP 429 too; a
``rate_limit_event`` that names the limit tells it from mere haste and states its end (handarbeit/fabrik#1811,
#1815); mere haste has an event without them, and with an API key there is none.  In a conversation that goes on
``total_cost_usd`` and ``modelUsage`` are those of all its runs, while ``usage`` is the run's own, and without
what was used when a budget stopped it; ``model_usage_since_last_result`` has the run's own tokens and price. The
first ``result`` is not the end: while a job runs in the background it waits, and then takes another turn, which
begins with ``init`` and ends with a ``result`` of its own, where ``origin`` names the job's run unless the job
is a monitor.  Of a job that is stopped in the middle of a turn the model hears with its next request; of one
that claude stops at the end of the last turn it never hears.  A wake-up shows only in the call that asks for it,
and the turn that it begins starts with ``init``.

qwen prints the same kind of stream.  It names a shell in the answer to the call, and says nothing of its end: only
its own files do (`list_ended`).  Its process is a wrapper: the worker needs up to ten seconds to end after TERM.
A conversation of qwen's goes on only in the directory that it began in, and then its tokens are those of all its
runs so far (`table.COUNTS_ALL`).
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import replace
from typing import Any, Final

from sessionrun.agents.markers import is_no_answer
from sessionrun.agents.reading import (
    MAX_NAME,
    AgentResult,
    Logged,
    Problem,
    Step,
    class_of_failure,
    conversation_at,
    cost_at,
    count_at,
    dig,
    error_line,
    finished,
    list_at,
    model_at,
    one_line,
    parse_event,
    parse_time,
    read_log,
    sum_counts,
    text_at,
    tool_line,
    unfinished,
    whole_line,
)
from sessionrun.model.spec import AgentSpec
from sessionrun.model.usage import Usage

_SHELL_STARTED: Final = r"Background shell (\S{1,100}) started \(pid \d+\)\."
_WAKES: Final = frozenset(("ScheduleWakeup", "CronCreate"))


class Background:
    """Jobs that run beside the turn, and wake-ups, that a stream names, as far as it was read."""

    def __init__(self) -> None:
        self._called: dict[str, str] = {}  # the name of a call of a tool, by its id, until the call is answered
        self._open: dict[str, str] = {}  # the name of a job, by its id
        self._lost: dict[str, str] = {}  # likewise, of those that were stopped
        self._runs: dict[str, str] = {}  # the run of every job that was named, by its id
        self._listed: set[str] | None = None  # the ids of all jobs that run, where the stream lists them
        self._wakes: dict[str, str] = {}  # the name of a wake-up, by the id of the call
        self._in_turn = False
        self._stops: dict[str, str] = {}  # the job that a call stops, by the id of the call
        self._stopped_before: set[str] = set()  # jobs that were stopped when the turn began
        self._next: set[str] = set()  # jobs of whose stop the model hears with the next answer to a call

    @property
    def is_open(self) -> bool:
        """Whether something of it goes on, or is to begin later."""
        return bool(self._wakes or self._running())

    def list_left(self, ended: Set[str] = frozenset()) -> list[str]:
        """Names of what was lost if the stream ends here: what goes on, and what was stopped behind the model.

        Of jobs in `ended` it is known that they came to their end, though the stream does not say so.
        """
        running = (name for job, name in self._running().items() if job not in ended)
        return [*self._lost.values(), *running, *self._wakes.values()]

    def see(self, event: dict[str, Any]) -> None:
        kind, subtype = event.get("type"), event.get("subtype")
        if kind == "assistant":
            for block in list_at(event, "message", "content"):
                self._see_call(block)
        elif kind == "user":
            if event.get("parent_tool_use_id") is None:
                self._forget(self._next)
            for block in list_at(event, "message", "content"):
                self._see_answer(block)
        elif kind == "result":
            run = text_at(event, "origin", "runId")
            if run is None and text_at(event, "origin", "kind") == "task-notification":  # of a monitor
                self._forget(self._stopped_before)
            self._forget({job for job in self._lost if run and self._runs[job] == run})
            self._in_turn = False
            self._next.clear()
        elif kind == "system" and subtype == "init":
            self._in_turn, self._stopped_before = True, set(self._lost)
            self._wakes.clear()
        elif kind == "system":
            nested = event.get("data")  # qwen's form
            self._see_job(subtype, nested if isinstance(nested, dict) else event, nested=nested is not None)

    def _forget(self, jobs: set[str]) -> None:
        """The model knows that these were stopped."""
        for job in jobs:
            self._lost.pop(job, None)

    def _running(self) -> dict[str, str]:
        return {job: name for job, name in self._open.items() if self._listed is None or job in self._listed}

    def _see_call(self, block: object) -> None:
        call, tool, asked = text_at(block, "id"), text_at(block, "name"), dig(block, "input")
        if dig(block, "type") != "tool_use" or call is None or tool is None:
            return
        words = next(
            filter(None, (text_at(asked, key) for key in ("command", "description", "reason", "prompt"))), ""
        )
        if tool in _WAKES:
            self._wakes[call] = one_line(f"{tool}: {words}", MAX_NAME)
        elif tool == "CronDelete":
            self._wakes.clear()
        elif tool == "task_stop":  # qwen's; of claude's the stream tells
            self._stops[call] = text_at(asked, "task_id") or ""
        elif words:
            self._called[call] = one_line(words, MAX_NAME)

    def _see_answer(self, block: object) -> None:
        call, text = text_at(block, "tool_use_id") or "", text_at(block, "content") or ""
        stopped = self._stops.pop(call, "")
        if dig(block, "is_error") is True:
            self._wakes.pop(call, None)
        elif stopped:  # the model knows
            self._open.pop(stopped, None)
        elif match := re.fullmatch(_SHELL_STARTED, text.strip()):
            self._begin({"task_id": match.group(1), "tool_use_id": call}, again=True)
        self._called.pop(call, None)

    def _see_job(self, subtype: object, words: dict[str, Any], *, nested: bool) -> None:
        job = text_at(words, "task_id") or ""
        if subtype == "background_tasks_changed":
            self._listed = set()
            for task in list_at(words, "tasks"):
                self._begin(task, again=False)
        elif subtype == "task_started" and (nested or words.get("is_backgrounded") is True):
            self._begin(words, again=True)
        elif subtype in ("task_notification", "task_updated"):
            status = text_at(words, "status") or text_at(words, "patch", "status")
            if status in ("stopped", "killed") and job in self._open:
                self._lost[job] = self._open.pop(job)
                if self._in_turn:
                    self._next.add(job)
            elif status not in (None, "pending", "running"):
                self._open.pop(job, None)

    def _begin(self, task: object, *, again: bool) -> None:
        """A job runs; `again`: also if it had ended before."""
        job = text_at(task, "task_id")
        if job is None:
            return
        if self._listed is not None:
            self._listed.add(job)
        if again or job not in self._runs:
            called = self._called.get(text_at(task, "tool_use_id") or "")
            self._open[job] = called or one_line(text_at(task, "description") or job, MAX_NAME)
            self._lost.pop(job, None)
        self._runs[job] = text_at(task, "run_id") or ""


AGENT: Final = AgentSpec(
    name="claude",
    argv=("claude", "-p", "--output-format", "stream-json", "--verbose", "{model_args}", "{approve_args}"),
    model_args=("--model={model}",),
    approve_args=("--dangerously-skip-permissions",),
    continue_args=("--resume={conversation}",),
    budget_args=("--max-budget-usd={budget}",),
    output="claude",
)
QWEN: Final = AgentSpec(
    name="qwen",
    argv=("qwen", "--output-format", "stream-json", "{model_args}", "{approve_args}"),
    model_args=("--model={model}",),
    approve_args=("--yolo",),
    continue_args=("--resume={conversation}",),
    output="qwen",
    stop_grace_s=10.0,
)


_SUBTYPES: Final = {"error_max_turns": "max_turns", "error_max_budget_usd": "budget"}
_ENDINGS: Final = {"blocking_limit": "usage_limit", "aborted_tools": "aborted", "aborted_streaming": "aborted"}
"""Reason classes that `subtype` and `terminal_reason` of a result state by themselves."""


def read(events: Iterable[dict[str, Any]], ended: Set[str] = frozenset()) -> AgentResult:
    """The last ``result`` event, judged, and what became of the work in the background (`ended`: see there)."""
    model = conversation = result = usage = kind = None
    background, turn_is_open, erred = Background(), False, False
    limit: dict[str, Any] = {}
    last: dict[str, Any] = {}
    for event in events:
        kind = event.get("type")
        background.see(event)
        if kind == "system" and event.get("subtype") == "init":
            model, conversation = model_at(event, "model"), conversation_at(event, "session_id")
            turn_is_open = True
        elif kind == "assistant":
            last = event
        elif kind == "rate_limit_event":
            limit = event
        elif kind == "result":
            result, usage, turn_is_open = event, _add_usage(usage, event), False
            erred = erred or event.get("is_error") is True
    resets_at = count_at(limit, "rate_limit_info", "resetsAt")
    named = text_at(limit, "rate_limit_info", "rateLimitType") or resets_at
    rejected = bool(named) and text_at(limit, "rate_limit_info", "status") == "rejected"
    known = AgentResult(conversation=conversation, model=model, resets_at=resets_at)
    if result is None:
        is_last = rejected and kind == "rate_limit_event"
        return unfinished(known, Problem("usage_limit", f"the limit {named} is reached") if is_last else None)
    problem = _problem_of(result, last, limited=rejected)
    if problem is None and turn_is_open:
        problem = Problem("incomplete_output", "the output ends before the result of its last turn")
    known = replace(
        known,
        text=text_at(result, "result"),
        conversation=conversation_at(result, "session_id") or conversation,
        usage=usage,
        turns=count_at(result, "num_turns"),
        resets_at=resets_at if rejected else None,
        is_final=not turn_is_open and not background.is_open,
        mended=erred,
    )
    return finished(known, problem, background.list_left(ended))


def read_text(event: dict[str, Any]) -> str:
    blocks = list_at(event, "message", "content") if event.get("type") == "assistant" else []
    return "".join(whole_line(text_at(block, "text")) for block in blocks if dig(block, "type") == "text")


def list_steps(event: dict[str, Any]) -> Iterator[Step]:
    """Calls of tools, with their times in versions that print some, and the final error."""
    at = parse_time(text_at(event, "timestamp")) or None
    for block in list_at(event, "message", "content"):
        kind = dig(block, "type")
        if kind == "tool_use":
            line = tool_line(text_at(block, "name"), dig(block, "input"))
            yield Step(text_at(block, "id"), line, begun=at)
        elif kind == "tool_result":
            yield Step(text_at(block, "tool_use_id"), "", ended=at)
    if event.get("type") == "result" and event.get("is_error") is not False:
        yield Step(None, error_line(_message_of(event) or _ending_of(event)))


def _problem_of(result: dict[str, Any], last: dict[str, Any], *, limited: bool) -> Problem | None:
    """Why this result is a failure; None if it is a success.

    Args:
        last: the last message of the assistant; the program's own errors come as such, too.
        limited: whether the stream says that a limit of the account is reached.
    """
    message = _message_of(result) or ""
    if result.get("is_error") is True or result.get("subtype") != "success":
        return Problem(_class_of(result, message, last, limited=limited), message or _ending_of(result))
    if result.get("is_error") is not False or text_at(result, "result") is None:
        return Problem("bad_output", "the result event lacks is_error or result")
    if "refusal" in (result.get("stop_reason"), dig(last, "message", "stop_reason")):
        return Problem("refused", f"the model declined: {message}")
    if is_no_answer(message) or last.get("is_api_error_message") is True:
        return Problem(_class_of(result, message, last, limited=limited), message)
    if count_at(result, "num_turns") == 0:
        return Problem("agent_error", f"it answered without asking its model: {message}")
    denials = list_at(result, "permission_denials")
    if denials:
        tools = sorted({text_at(denial, "tool_name") or "?" for denial in denials})
        return Problem("denied", f"{len(denials)} tool calls were refused: {', '.join(tools)}")
    return None


def _class_of(result: dict[str, Any], message: str, last: dict[str, Any], *, limited: bool) -> str:
    stated = _SUBTYPES.get(str(result.get("subtype"))) or _ENDINGS.get(str(result.get("terminal_reason")))
    if stated is not None:
        return stated
    status = count_at(result, "api_error_status")
    if limited and status in (None, 429):
        return "usage_limit"
    if "refusal" in (result.get("stop_reason"), dig(last, "message", "stop_reason")):
        return "refused"
    reason_class = class_of_failure(message, status)
    if reason_class == "agent_error" and last.get("error") == "authentication_failed":
        return "auth"
    return "unknown" if reason_class == "agent_error" and not message else reason_class


def _message_of(result: dict[str, Any]) -> str | None:
    errors = [error for error in list_at(result, "errors") if isinstance(error, str)]
    return text_at(result, "result") or text_at(result, "error", "message") or (errors[0] if errors else None)


def _ending_of(result: dict[str, Any]) -> str:
    """What a failure without a message is called."""
    return text_at(result, "terminal_reason") or text_at(result, "subtype") or "the agent reports a failure"


def _add_usage(before: Usage | None, result: dict[str, Any]) -> Usage | None:
    """Tokens and cost of the run up to this result; versions that do not tell them by result state a total."""
    models = dig(result, "model_usage_since_last_result")
    if not isinstance(models, dict):
        return _usage_of(result)
    used = before or Usage(0, 0, 0.0, 0)
    for model in models.values():
        cached = count_at(model, "cacheReadInputTokens")
        sent = sum_counts(count_at(model, "inputTokens"), count_at(model, "cacheCreationInputTokens"), cached)
        used = used.plus(Usage(sent, count_at(model, "outputTokens"), cost_at(model, "costUSD"), cached))
    return used


def _usage_of(result: dict[str, Any]) -> Usage | None:
    """Tokens of the whole run; input counts what was written to and read from the cache as well.

    Claude counts those apart; qwen, which has no `cache_creation_input_tokens`, within `input_tokens`.
    """
    usage = dig(result, "usage")
    if not isinstance(usage, dict):
        return None
    read_apart = "cache_creation_input_tokens" in usage
    return Usage(
        input_tokens=sum_counts(
            count_at(usage, "input_tokens"),
            count_at(usage, "cache_creation_input_tokens"),
            count_at(usage, "cache_read_input_tokens") if read_apart else None,
        ),
        output_tokens=count_at(usage, "output_tokens"),
        cost_usd=cost_at(result, "total_cost_usd"),
        cached_input_tokens=count_at(usage, "cache_read_input_tokens"),
    )


# --- what qwen's own files say ---


def find_qwen_error(
    folder: str | None, environ: Mapping[str, str], cwd: str, conversation: str | None
) -> Logged | None:
    """The failure of the last request, as its record of the conversation has it: it prints nothing of it."""
    last: dict[str, Any] = {}
    for path in _find_files(folder, environ, "projects/*/chats/{}.jsonl", conversation):
        for line in read_log(path):
            last = parse_event(line) or last
    error = dig(last, "systemPayload", "uiEvent")
    message = text_at(error, "error_message")
    if text_at(error, "event.name") != "qwen-code.api_error" or message is None:
        return None
    reason_class = class_of_failure(message, count_at(error, "status_code"))
    return Logged(parse_time(text_at(last, "timestamp")), Problem(reason_class, message))


def list_ended(folder: str | None, environ: Mapping[str, str], conversation: str | None) -> frozenset[str]:
    """The shells in the background that came to their own end: its stream does not say so, its own files do."""
    ended = set()
    for path in _find_files(folder, environ, "tmp/*/background-shells/{}/*.status", conversation):
        status = parse_event(b"".join(read_log(path))) or {}
        if status.get("status") in ("completed", "failed"):
            ended.add(text_at(status, "id") or "")
    return frozenset(ended)


def _find_files(
    folder: str | None, environ: Mapping[str, str], pattern: str, conversation: str | None
) -> list[str]:
    home = environ.get("QWEN_HOME") or os.path.join(environ.get("HOME", ""), ".qwen")
    base = glob.escape(folder or environ.get("QWEN_RUNTIME_DIR") or home)
    return glob.glob(f"{base}/{pattern.format(glob.escape(conversation or '-'))}")
