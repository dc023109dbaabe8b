"""Files through which the sessions of one user share limits: one for each account that met a limit.

The files lie in ``limits`` beside the user's index.  One is replaced whole; of two sessions that meet a limit in
the same moment the later writer holds, and both know it.  Nothing in them is trusted.  A file that is not ours
alone, not regular, too large or not of the form counts as absent.  `sharing` decides when a session writes or
reads one.

An account is a provider together with what signs its agent in: the name of its file holds a digest of those
variables and of where the credentials are, so that two keys are two accounts.  No variable's value is written.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias

import orjson

from sessionrun.agents.installed import PROGRAMS, find_known
from sessionrun.engine.providers import LONGEST_S
from sessionrun.model.frozen import frozen
from sessionrun.model.kinds import Moment
from sessionrun.model.reasons import Effect
from sessionrun.model.spec import PROVIDER_PREFIX, AgentSpec, SessionSpec
from sessionrun.store.codec import build
from sessionrun.store.files import open_regular, replace_file
from sessionrun.store.index import limits_path

VERSION: Final = 1
MAX_BYTES: Final = 64 * 1024
MAX_TEXT: Final = 500
_MAX_STRIKES: Final = 1000
_LATER_S: Final = 60.0
"""A time that lies so far ahead was not written by a session that shares our clock."""

_Strikes: TypeAlias = Annotated[int, lambda strikes: 0 < strikes < _MAX_STRIKES]
_Text: TypeAlias = Annotated[str, lambda text: len(text) <= MAX_TEXT and "\0" not in text]

_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]")


@frozen
class Limit:
    """What is known of an account that met a limit; times are wall time.

    `session` met it at `met_at`, `strikes` times in a row; it holds until `until_at`.
    """

    provider: _Text
    effect: Effect
    reason: _Text
    until_at: Moment
    met_at: Moment
    session: _Text
    strikes: _Strikes = 1


def find_files(spec: SessionSpec, environ: Mapping[str, str]) -> dict[str, Path]:
    """The files of the accounts that a session uses, by provider; scripts have none."""
    providers = {
        PROVIDER_PREFIX + (agent.provider or name)
        for name, agent in spec.agents.items()
        if agent.prompt_kind != "script"
    }
    if not providers:
        return {}
    folder = limits_path()
    return {provider: folder / name_file(provider, spec.agents, environ) for provider in sorted(providers)}


def name_file(provider: str, agents: Mapping[str, AgentSpec], environ: Mapping[str, str]) -> str:
    """The name of an account's file; `provider` is its resource, `environ` what the session's agents get."""
    from hashlib import sha256  # a session of scripts starts without

    name = provider.removeprefix(PROVIDER_PREFIX)
    account = orjson.dumps([name, *_account(name, agents.get(name), environ)])
    return f"{_UNSAFE.sub('_', name)[:40]}-{sha256(account).hexdigest()[:16]}.json"


def _account(name: str, agent: AgentSpec | None, environ: Mapping[str, str]) -> Iterator[str]:
    """Yield what sets this account apart from others of its provider; nothing if its program is not known."""
    known = PROGRAMS.get(name) or (find_known(agent) if agent else None)
    if known is None:
        return
    seen = {**environ, **(agent.env if agent else {})}
    texts = [
        known.credentials.path(seen),
        *(f"{variable}={seen.get(variable, '')}" for variable in known.account_variables),
    ]
    yield from (text.encode("utf-8", "surrogateescape").hex() for text in texts)


def find_damaged(folder: Path, now: float) -> list[Path]:
    """The files in the directory that cannot be believed."""
    return [path for path in sorted(folder.glob("*.json")) if load_limit(path, now) is None]


def load_limit(path: Path, now: float) -> Limit | None:
    """Read an account's file; None where there is no file, or its content cannot be believed."""
    try:
        fd = open_regular(path)
    except (OSError, ValueError):
        return None
    try:
        if not _is_private(os.fstat(fd)):
            return None
        content = os.read(fd, MAX_BYTES + 1)
    except OSError:
        return None
    finally:
        os.close(fd)
    try:
        return _parse_limit(orjson.loads(content), now) if len(content) <= MAX_BYTES else None
    except (ValueError, RecursionError):
        return None


def _parse_limit(record: Any, now: float) -> Limit:
    if not isinstance(record, dict) or record.get("version") != VERSION or "strikes" not in record:
        raise ValueError("it is not of this version")
    limit = build(Limit, record)
    if limit.effect == "none" or limit.until_at > now + LONGEST_S + _LATER_S or limit.met_at > now + _LATER_S:
        raise ValueError("it holds nothing, or a time is too far ahead")
    return replace(limit, reason=" ".join(limit.reason.split()))


def write_limit(path: Path, limit: Limit, now: float) -> None:
    """Write an account's file, unless a limit that was met later is there already.

    Raises:
        OSError: the state directory cannot be written, or is not the user's alone.
    """
    folder = path.parent
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    inode = os.lstat(folder)
    if not stat.S_ISDIR(inode.st_mode) or not _is_private(inode):
        raise PermissionError(errno.EPERM, "it is not a directory that is yours alone", str(folder))
    if path.is_dir() and not path.is_symlink():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    known = load_limit(path, now)
    if known is None or known.met_at < limit.met_at:
        replace_file(path, orjson.dumps({"version": VERSION, **asdict(limit)}), durable=False, sweeps=True)


def _is_private(inode: os.stat_result) -> bool:
    return inode.st_uid == os.geteuid() and not inode.st_mode & 0o077
