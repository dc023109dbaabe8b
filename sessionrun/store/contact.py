"""With what of its cluster a session has no contact: `contact.json`, which is there only while that is so.

The supervisor writes it, beside the logs: nothing is decided by it, and a reader needs it before a lease is over.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from sessionrun.store.files import read_regular, replace_file
from sessionrun.store.session import SessionDir

NAME: Final = "contact.json"


def write_silences(session: SessionDir, silences: Sequence[dict[str, Any]]) -> None:
    """Replace what was written; nothing is left if the list is empty.

    Each has `node` (the id of a node; None: the head), `since` and `lease_ends_at` (ISO times).

    Raises:
        OSError: the disk refuses.
    """
    path = session.path / NAME
    if silences:
        replace_file(path, json.dumps(silences).encode(), durable=False)
    else:
        path.unlink(missing_ok=True)


def read_silences(session: SessionDir) -> list[dict[str, Any]]:
    """What was written last."""
    with suppress(OSError, ValueError):
        found: list[dict[str, Any]] = json.loads(read_regular(session.path / NAME))
        return found
    return []
