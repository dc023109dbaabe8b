"""Limits of accounts, shared between the sessions of one user: a file for each account that met a limit.

A session writes what it met, and reads what others met before it decides what to start.  What it reads becomes
events, which the supervisor records: the journal alone says what a session knew.  At the end of a limit each
session sends a trial of its own.

The files lie in ``limits`` beside the user's index.  One is replaced whole; of two sessions that meet a limit in
the same moment the later writer holds, and both know it.  Nothing in them is trusted: a file that is not ours
alone, not regular, too large or not of the form counts as absent.  A failure here is logged once and never harms
the session: it then knows its own limits only.

An account is a provider together with what signs its agent in: the name of its file holds a digest of those
variables and of where the credentials are, so that two keys are two accounts.  No variable's value is written.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import orjson

from sessionrun.agents.programs import find_file, find_program
from sessionrun.engine.providers import LONGEST_S, SAME_S
from sessionrun.engine.state import State
from sessionrun.model.events import Event, LimitHeard
from sessionrun.model.spec import PROVIDER_PREFIX, AgentSpec, SessionSpec
from sessionrun.store.codec import build
from sessionrun.store.files import open_regular, replace_file
from sessionrun.store.index import limits_path

MAX_BYTES: Final = 64 * 1024
_MAX_TEXT: Final = 500
_LATER_S: Final = 60.0
"""A time that lies so far ahead was not written by a session that shares our clock."""

_SHOWN: Final = 8
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]")


class LimitSharing:
    """The part of one session in what all sessions of its user know of their accounts."""

    look_at: float | None = None
    fds: tuple[int, ...] = ()

    def __init__(self, spec: SessionSpec, environ: Mapping[str, str], log: Callable[[str], None]) -> None:
        self._session_id = spec.session_id
        self._environ, self._log = environ, log
        self._agents = spec.agents
        self._files = find_files(spec, environ)
        self._written: dict[str, float] = {}
        self._complaint = ""

    def hear(self, state: State, at: float, mono: float) -> list[Event]:
        """Write what is new here, and return what is new elsewhere, to be recorded; `at` is wall time."""
        if len(state.spec.agents) != len(self._agents):  # agents are added, and never changed or removed
            self._agents, self._files = state.spec.agents, find_files(state.spec, self._environ)
        if state.ended is not None:
            return []
        try:
            for provider in state.holds.keys() & self._files.keys():
                self._write_own(state, provider, at)
            found = [
                find_news(state, provider, limit, at)
                for provider, path in self._files.items()
                if (limit := load_limit(path, at)) is not None
            ]
            return [news for news in found if news is not None]
        except Exception as error:  # whatever it is, the session goes on
            why = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else repr(error)
            if self._complaint != why:
                self._log(f"limits are not shared with other sessions: {why}")
            self._complaint = why
            return []

    def _write_own(self, state: State, provider: str, at: float) -> None:
        """Write down a limit that this session itself met, once."""
        known = state.providers.get(provider)
        if known is None or known.heard is not None or (known.until_at or 0.0) <= at:
            return
        if self._written.get(provider) != known.met_at:
            self._written[provider] = known.met_at
            limit = LimitHeard(
                provider=provider.removeprefix(PROVIDER_PREFIX),
                effect=known.effect,
                reason=state.holds[provider].reason[:_MAX_TEXT],
                until_at=known.until_at or 0.0,
                met_at=known.met_at,
                session=self._session_id,
                strikes=max(1, known.strikes),
            )
            write_limit(self._files[provider], limit, at)


def find_news(state: State, provider: str, limit: LimitHeard, at: float) -> LimitHeard | None:
    """What a session learns from an account's file at a wall time; None: nothing new."""
    known, hold = state.providers.get(provider), state.holds.get(provider)
    if limit.until_at <= at or (hold is not None and hold.until is None):  # the second only a request ends
        return None
    if known is not None and limit.met_at <= known.met_at:
        return None  # after a release a limit may be met that ends earlier: the last that was met counts
    if hold is not None and known is not None and abs(limit.until_at - (known.until_at or 0.0)) <= SAME_S:
        return None
    reason = f"{limit.reason} (met by session {limit.session[:_SHOWN]})"
    return replace(limit, provider=provider, reason=reason)


def find_files(spec: SessionSpec, environ: Mapping[str, str]) -> dict[str, Path]:
    """The files of the accounts that a session uses, by provider; scripts have none."""
    named = {agent.provider or name for name, agent in spec.agents.items() if agent.prompt_kind != "script"}
    folder = limits_path() if named else Path()
    return {
        PROVIDER_PREFIX + name: folder / name_file(name, spec.agents.get(name), environ) for name in sorted(named)
    }


def name_file(provider: str, agent: AgentSpec | None, environ: Mapping[str, str]) -> str:
    """The name of an account's file; `agent` is the one of that name, `environ` what the session's agents get."""
    from hashlib import sha256  # a session of scripts starts without

    account = [provider]
    known = find_program(provider) or (find_program(agent.argv[0]) if agent else None)
    if known is not None:  # else nothing sets it apart from other accounts of the provider
        seen = {**environ, **(agent.env if agent else {})}
        values = (f"{variable}={seen.get(variable, '')}" for variable in (*known.keys, *known.servers))
        texts = (find_file(known, known.login, seen), *values)
        account += [text.encode("utf-8", "surrogateescape").hex() for text in texts]
    return f"{_UNSAFE.sub('_', provider)[:40]}-{sha256(orjson.dumps(account)).hexdigest()[:16]}.json"


def load_limit(path: Path, now: float) -> LimitHeard | None:
    """Read the file of an account; None if it does not exist, or cannot be believed."""
    try:
        fd = open_regular(path)
    except OSError:
        return None
    with os.fdopen(fd, "rb") as stream:
        content = stream.read(MAX_BYTES + 1) if _is_private(os.fstat(fd)) else b""
    try:
        limit = build(LimitHeard, orjson.loads(content))
    except (ValueError, RecursionError):
        return None
    is_ahead = limit.until_at > now + LONGEST_S + _LATER_S or limit.met_at > now + _LATER_S
    if is_ahead or limit.effect == "none" or len(content) > MAX_BYTES:
        return None
    return replace(limit, reason=" ".join(limit.reason.split())[:_MAX_TEXT])


def write_limit(path: Path, limit: LimitHeard, now: float) -> None:
    """Write an account's file, unless a limit that was met later is there already.

    Raises:
        OSError: the state directory cannot be written, or is not the user's alone.
    """
    folder = path.parent
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    inode = os.lstat(folder)
    if not stat.S_ISDIR(inode.st_mode) or not _is_private(inode):
        raise PermissionError(errno.EPERM, "it is not a directory that is yours alone", str(folder))
    known = load_limit(path, now)
    if known is None or known.met_at < limit.met_at:
        replace_file(path, orjson.dumps(limit), durable=False, sweeps=True)


def _is_private(inode: os.stat_result) -> bool:
    return inode.st_uid == os.geteuid() and not inode.st_mode & 0o077
