"""The background work that a stream of claude or qwen names: jobs that run beside the turn, and wake-ups.

Facts that are easy to get wrong: claude prints ``result`` while a job runs, and takes another turn when the job
ends; that turn's result names the job's run in ``origin``, unless the job is a monitor. Of a job that is
stopped in the middle of a turn the model hears with its next request. Of a job that claude stops at the end of
the last turn it never hears. A wake-up shows only in the call that asks for it, and the turn that it begins
starts with ``init``. qwen names a shell in the answer to the call, and says nothing of its end: only its own
files do (`qwen.list_ended`).
This module must not know what becomes of a result.
"""

from __future__ import annotations

import re
from collections.abc import Set
from typing import Any, Final

from sessionrun.agents.reading import dig, list_at, short_name, text_at

_SHELL_STARTED: Final = r"Background shell (\S{1,100}) started \(pid \d+\)\."
_WAKES: Final = frozenset(("ScheduleWakeup", "CronCreate"))


class Background:
    """The background work of one stream, as far as the stream was read."""

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
        """Take in the next event of the stream."""
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
            self._wakes[call] = short_name(f"{tool}: {words}")
        elif tool == "CronDelete":
            self._wakes.clear()
        elif tool == "task_stop":  # qwen's; of claude's the stream tells
            self._stops[call] = text_at(asked, "task_id") or ""
        elif words:
            self._called[call] = short_name(words)

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
            self._open[job] = called or short_name(text_at(task, "description") or job)
            self._lost.pop(job, None)
        self._runs[job] = text_at(task, "run_id") or ""
