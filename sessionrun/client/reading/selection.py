"""Chooses the sessions that a verb is about: those that are named, or those of which something is true."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from sessionrun.client.lookup import choose_tasks, find_results_dir, match_tasks, open_session
from sessionrun.client.reading.listing import load_summaries
from sessionrun.client.reading.view import load_summary_view, load_view
from sessionrun.model.errors import InputError, SessionNotFound
from sessionrun.model.times import format_time, parse_time
from sessionrun.store.lookup import match_sessions
from sessionrun.store.session import SessionDir

STATES: Final = (
    *("running", "recovering", "completed", "cancelled", "interrupted", "succeeded", "failed"),
    *("held", "stopped", "ended", "bounced"),
)
"""What `--state` takes: statuses, states and results of a session (see `is_in_state`)."""

_LEAST: Final = 6
"""Of a session's id a word behind the first has so much: a shorter one may be a mistyped task."""


class Wanted(NamedTuple):
    """What has to be true of a session: all these labels, one of these states, a start not before `since`."""

    labels: tuple[tuple[str, str], ...] = ()
    states: tuple[str, ...] = ()
    since: float | None = None

    @property
    def is_empty(self) -> bool:
        """Whether it takes every session."""
        return self == ANY

    def takes(self, view: Mapping[str, Any]) -> bool:
        """Whether it is true of a session, given its summary."""
        return (
            all(view["labels"].get(key) == value for key, value in self.labels)
            and (not self.states or is_in_state(view, self.states))
            and (self.since is None or parse_time(view["started_at"]) >= self.since)
        )

    def describe(self) -> str:
        """The same as a caller asks for it on the command line."""
        words = [f"--label {key}={value}" for key, value in self.labels]
        words += [f"--state {','.join(self.states)}"] if self.states else []
        words += [f"--since {format_time(self.since)}"] if self.since is not None else []
        return " ".join(words)


ANY: Final = Wanted()


class Chosen(NamedTuple):
    """The sessions that a verb is about, in the order of the words or the newest first, and tasks of the only one.

    `several` is whether the caller asked in a way that may mean more than one session.
    """

    sessions: list[SessionDir]
    tasks: tuple[str, ...]
    several: bool


def is_in_state(view: Mapping[str, Any], states: Sequence[str]) -> bool:
    """Whether a session is in one of the states; `failed`, `held` or `bounced` is one that has such a task."""
    counts = view["counts"]
    has_such = any(counts[word] for word in ("held", "bounced") if word in states)
    is_failed = "failed" in states and view["failed"] > 0
    return has_such or is_failed or not {view["status"], view["state"], view["result"]}.isdisjoint(states)


def find_views(results_dir: Path | None, wanted: Wanted, *, everywhere: bool = False) -> list[dict[str, Any]]:
    """The summaries of the sessions of which `wanted` is true, the newest first."""
    views = load_summaries(find_results_dir(results_dir), everywhere=everywhere)
    return [view for view in views if wanted.takes(view)]


def find_sessions(results_dir: Path | None, names: Sequence[str], wanted: Wanted) -> list[SessionDir]:
    """The named sessions, or all of the results directory if none is named, of which `wanted` is true.

    Raises:
        SessionNotFound: a name means no session, or several.
    """
    if not names:
        return [SessionDir(Path(view["results_dir"])) for view in find_views(results_dir, wanted)]
    named = [open_session(results_dir, name) for name in names]
    once = {session.path.absolute(): session for session in named}.values()
    return [session for session in once if wanted.is_empty or wanted.takes(load_summary_view(session))]


def choose_sessions(
    results_dir: Path | None, words: Sequence[str], wanted: Wanted, *, only_open: bool = False
) -> Chosen:
    """The sessions that a verb with `ID [TASK]...` and selectors is about; never none.

    Args:
        results_dir: where the sessions are, else the results directory in use.
        words: a session and tasks of it, or several sessions.
        wanted: what has to be true of them; without words this alone chooses.
        only_open: leave out sessions that have ended, unless they are named.

    Raises:
        SessionNotFound: a word means no session, or several, or `wanted` is true of none.
        InputError: neither chooses, or a word is no task of the session.
    """
    if not words and wanted.is_empty:
        raise InputError("say which session: an ID, or choose by --label, --state or --since")
    names, tasks = _sort_words(results_dir, words)
    sessions = find_sessions(results_dir, names, wanted)
    if only_open and not words:
        sessions = [one for one in sessions if load_summary_view(one)["ended_at"] is None]
    if not sessions:
        runs = "that has not ended " if only_open and not words else ""
        where = f"of {', '.join(names)}" if names else f"in {find_results_dir(results_dir)}"
        raise SessionNotFound(f"no session {runs}{where} matches {wanted.describe()}; `sessionrun list` shows all")
    return Chosen(sessions, tasks, len(names) != 1 or not wanted.is_empty)


def _sort_words(results_dir: Path | None, words: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """Which words are sessions, and which are tasks of the first session: a task goes first, and all are alike."""
    names, rest = list(words[:1]), tuple(words[1:])
    if not rest:
        return names, rest
    first = load_view(open_session(results_dir, names[0]))
    known = {name for task in first["tasks"] for name in (task["id"], str(task["num"]))}
    sessions = [word for word in rest if word not in known and _is_session(results_dir, word)]
    matches = zip(sessions, match_tasks(first["tasks"], sessions), strict=True)
    both = next((word for word, begun in matches if begun), None)
    if both is not None:
        raise InputError(
            f"{both!r} is a session, and begins a task's id of {first['session_id']}: give more of the id"
        )
    if sessions and len(sessions) < len(rest):
        choose_tasks(first, [word for word in rest if word not in sessions])
        raise InputError(f"name several sessions, or tasks of one session, not both: {' '.join(words)}")
    return (list(words), ()) if sessions else (names, rest)


def _is_session(results_dir: Path | None, word: str) -> bool:
    found = match_sessions(find_results_dir(results_dir), word)
    return any(len(word) >= _LEAST or not session.session_id.startswith(word) for session in found)
