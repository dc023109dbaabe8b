"""Notes for readers with which nodes a session has no contact, or that it has none with the head: `contact.json`.

It is beside the logs: nothing is decided by it, and a reader needs it before a lease is over.  A time is that of
this machine: what the scheduler tells are seconds from when it tells it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterable
from typing import Any

from sessionrun.cluster.messages import Message
from sessionrun.cluster.timers import lease_of
from sessionrun.model.times import format_time
from sessionrun.store.files import replace_file
from sessionrun.store.session import SessionDir


class Contact:
    """All of it is done in the carrier's thread."""

    def __init__(self, session: SessionDir, log: Callable[[object], None]) -> None:
        """`log` takes a line for the session's log."""
        self._session = session
        self._log = log
        self._silent: dict[str, dict[str, Any]] = {}
        self._written: list[dict[str, Any]] | None = None
        self._heard_at = time.time()

    def see(self, nodes: Iterable[Message], epoch: str) -> None:
        """The nodes as the scheduler shows them now."""
        now = time.time()
        self._silent = {
            seen["id"]: _describe(seen["id"], now - seen["silent_s"], epoch)
            for seen in nodes
            if seen["silent_s"] is not None
        }

    def heard(self, busy: Collection[str]) -> None:
        """The head has answered; these nodes have jobs of the session."""
        self._heard_at = time.time()
        self._write([silence for node, silence in self._silent.items() if node in busy])

    def failed(self, epoch: str | None) -> None:
        """The head has not answered: unless others reach it, no lease is renewed any more."""
        self._write([_describe(None, self._heard_at, epoch or "")])

    def _write(self, silences: list[dict[str, Any]]) -> None:
        if silences == self._written:
            return
        try:
            if silences:
                replace_file(self._session.contact_path, json.dumps(silences).encode(), durable=False)
            else:
                self._session.contact_path.unlink(missing_ok=True)
            self._written = silences
        except OSError as error:
            self._log(f"contact.json cannot be written: {error.strerror}")


def _describe(node: str | None, since: float, epoch: str) -> dict[str, Any]:
    ends_at = since + lease_of(epoch)
    return {"node": node, "since": format_time(since), "lease_ends_at": format_time(ends_at)}
