"""The records of a session's directory, made of what spec.json and the journal hold.  Must not know files."""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import fields
from typing import Final

import msgspec

from sessionrun.model.errors import InputError
from sessionrun.model.events import EVENTS, Entry
from sessionrun.model.frozen import frozen
from sessionrun.model.kinds import Count, Moment
from sessionrun.model.spec import SessionSpec, TaskSpec
from sessionrun.model.words import SCHEMA_VERSION, is_time
from sessionrun.store.codec import build, decode


@frozen
class _When:
    """The place of an entry of the journal in the order, and its time."""

    seq: Count
    at: Moment
    mono: float


@frozen
class _Version:
    schema_version: int


@frozen
class _Draft(SessionSpec):
    """A spec whose tasks are not read yet."""

    tasks: tuple[msgspec.Raw, ...]  # type: ignore[assignment]


@frozen
class _Tasks:
    tasks: tuple[TaskSpec, ...]


_AT_ONCE: Final = 200
"""So many tasks are read at a time: what `_share` replaces in them leaves memory that the next ones fill."""

_USUAL: Final = TaskSpec("-", ())
_SHARED: Final = ("workspace", "linger_s", "uses", "env", "labels")
_INTERNED: Final = ("agent", "model", "cwd")
"""What most tasks of a session have in common: each text is in memory once, and so is what is as by default."""


def parse_spec(content: bytes) -> SessionSpec:
    """Make a session's spec of the bytes of its spec.json.

    Raises:
        ValueError: it is no JSON, its values have not the types that a spec declares, or a task has an agent that
            is not there.
        InputError: a newer version wrote it.
    """
    try:
        draft = decode(_Draft, content)
    except (msgspec.DecodeError, ValueError) as error:
        with suppress(msgspec.DecodeError, ValueError):  # of another version not even the keys are known
            _refuse_version(decode(_Version, content).schema_version)
        raise ValueError(str(error)) from None
    _refuse_version(draft.schema_version)
    if not is_time(draft.created_at):
        raise ValueError(f"created_at is no time: {draft.created_at!r:.40}")
    tasks: list[TaskSpec] = []
    try:
        for begin in range(0, len(draft.tasks), _AT_ONCE):
            part = b",".join(draft.tasks[begin : begin + _AT_ONCE])
            tasks += map(_share, decode(_Tasks, b'{"tasks":[%b]}' % part).tasks)
    except ValueError:
        decode(SessionSpec, content)  # the same, told with its place among all tasks
        raise
    named = {task.agent for task in tasks}.union(other.agent for task in tasks for other in task.fallback)
    for agent in sorted(named - draft.agents.keys()):
        raise ValueError(f"a task has the agent {agent!r:.80}, which is not there")
    values = {field.name: getattr(draft, field.name) for field in fields(SessionSpec)}
    return SessionSpec(**values | {"tasks": tuple(tasks)})


def _share(task: TaskSpec) -> TaskSpec:
    for name in _INTERNED:
        if text := getattr(task, name):
            object.__setattr__(task, name, sys.intern(text))
    for name in _SHARED:
        if getattr(task, name) == getattr(_USUAL, name):
            object.__setattr__(task, name, getattr(_USUAL, name))
    return task


def _refuse_version(version: int) -> None:
    if version != SCHEMA_VERSION:
        raise InputError(f"spec.json has schema_version {version}; this sessionrun reads {SCHEMA_VERSION}")


def read_entry(record: object) -> Entry:
    """Read what `model.events.to_record` wrote.

    Raises:
        ValueError: an event of a later version, or no event at all.
    """
    if not isinstance(record, dict) or not isinstance(record.get("ev"), str):
        raise ValueError("it is not an event")
    cls = EVENTS.get(record["ev"])
    if cls is None:
        raise ValueError(f"unknown event {record['ev']!r:.80}; was it written by a newer version?")
    when = build(_When, record)
    return Entry(when.seq, when.at, when.mono, build(cls, record))
