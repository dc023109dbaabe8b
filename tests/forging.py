"""Logs of a session as they might have been: damaged, or with other records whose checksums are right."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from sessionrun.store.logs import AppendLog, read_log

Change = Callable[[bytes], bytes]


def forge(path: Path, change: Change = lambda payload: payload, *more: bytes) -> None:
    """Write a log anew, with each of its records changed, and with more of them."""
    payloads = [*map(change, read_log(path).payloads), *more]
    path.unlink()
    log = AppendLog(path)
    log.append(payloads)
    log.close()


def set_words(kind: bytes, changes: dict[int, bytes]) -> Change:
    """A change of words in the ledger's records of one kind."""

    def change(payload: bytes) -> bytes:
        found = payload.split()
        if found[0] != kind:
            return payload
        for place, word in changes.items():
            found[place] = word
        return b" ".join(found)

    return change


def damage(content: bytes, kind: str, place: int) -> bytes:
    """Cut it there, or flip a bit of the byte there."""
    if kind == "cut":
        return content[:place]
    flipped = bytearray(content)
    flipped[place] ^= 1 << (place % 8)
    return bytes(flipped)


def find_places(content: bytes, step: int) -> list[int]:
    """Each so many-th byte, and where records end: to be cut there looks like nothing at all."""
    return sorted({*range(0, len(content), step), *(at + 1 for at, byte in enumerate(content[:-1]) if byte == 10)})
