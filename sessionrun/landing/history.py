"""The log of a session's landings on one branch: verdicts of gates, what landed, what was bounced.

Read from its end, it says what became of each task's work.

It is an append-only log in the folder of the landing.  Its writer is the holder of the slot, so a session whose
supervisor runs and one that has ended land alike.

For readers: nothing here writes, and nothing asks git.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field, fields
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final

import orjson

from sessionrun.landing.records import Fate, Landed, SlotRecord, Verdict
from sessionrun.model.errors import StoreError
from sessionrun.model.frozen import changeable, frozen
from sessionrun.store.codec import build
from sessionrun.store.files import make_directories
from sessionrun.store.logs import AppendLog, read_log

LOG: Final = "log"
MAX_BYTES: Final = 64 * 2**20
"""A longer log is not read to show something."""

KEPT: Final = 8
"""Of so many landings it is looked whether they are still in the branch."""


@frozen
class End(Fate):
    """What became of a task's work at last.

    `target` is the full name of the branch, `tip` the commit that was tried; `mend` is the command that ends a
    hold, `at` a time as UTC.
    """

    target: str = ""
    tip: str = ""
    mend: str = ""
    at: str = ""


@changeable
class History:
    """What the log says.

    Verdicts are by tree and digest of the gates; red runs count until the landing that made them ends.  `ends`
    are by task, `moves` are the last landings.
    """

    verdicts: dict[tuple[str, str], Verdict] = field(default_factory=dict)
    ends: dict[str, End] = field(default_factory=dict)
    moves: list[Landed] = field(default_factory=list)

    def apply(self, record: dict[str, Any]) -> None:
        """Take in one record; unknown kinds are those of a later version."""
        kind = record["kind"]
        if kind == "fate":
            self.ends[record["task"]] = build(End, record)
        elif kind == "verdict":
            key = record["tree"], record["gates"]
            before = self.verdicts.get(key, Verdict())
            passed = record["passed"]
            why, output = (before.why, before.output) if passed else (record["why"], record["output"])
            self.verdicts[key] = Verdict(before.green + passed, before.red + (not passed), why, output)
        elif kind == "moved":
            at = datetime.fromisoformat(record["at"]).timestamp()
            self.moves = [*self.moves, Landed(record["old"], record["new"], at)][-KEPT:]
        elif kind == "ended":  # what made a gate red may be mended outside of the repository
            self.verdicts = {
                key: Verdict(one.green, 0, one.why, one.output) for key, one in self.verdicts.items() if one.green
            }

    def find_landed(self, task: str, tip: str) -> str | None:
        """The commit of the target with which the work of a task landed whose end is `tip`, if it is known."""
        end = self.ends.get(task)
        return end.commit if end is not None and (end.status, end.tip) == ("landed", tip) else None


class LandingLog:
    """The writing end of the log, and what it says."""

    def __init__(self, folder: Path) -> None:
        """Open the log of a folder, for the holder of the slot.

        Raises:
            StoreError, OSError: it is damaged, or cannot be written.
        """
        make_directories(folder, 0o700)
        self.history, end = load_history(folder)
        self._log = AppendLog(folder / LOG)
        self._log.cut(end)

    def note_verdict(self, tree: str, gates: str, why: str | None, output: str) -> None:
        """The gates ended on a tree; without `why` they passed."""
        self._append("verdict", tree=tree, gates=gates, passed=why is None, why=why, output=output)

    def note_moved(self, record: SlotRecord) -> None:
        """The target has moved, and with its new commit the work of the tasks of the record is in it."""
        self._append("moved", old=record.old, new=record.new)
        for task, tip in record.entries.items():
            if self.history.find_landed(task, tip) != record.new:
                self._note_fate(Fate(task, "landed", commit=record.new), record.target, tip)
        self._log.sync()

    def note_fates(self, fates: Iterable[Fate], tips: Mapping[str, str], target: str, mend: str) -> None:
        """What became of tasks in this turn, for readers; `tips` are the commits that were tried.

        Work that came into the target by another way, and was never tried, is passed over.
        """
        for fate in fates:
            known = self.history.ends.get(fate.task)
            is_new = fate.reason if known is None else (known.status, known.reason) != ("landed", fate.reason)
            if fate.status in ("bounced", "held") or (fate.status == "landed" and is_new):
                self._note_fate(fate, target, tips[fate.task], mend if fate.status == "held" else "")

    def note_end(self) -> None:
        """The landing came to its end."""
        self._append("ended")
        self._log.sync()

    def close(self) -> None:
        """Give up the file."""
        self._log.close()

    def _note_fate(self, fate: Fate, target: str, tip: str, mend: str = "") -> None:
        about = {each.name: getattr(fate, each.name) for each in fields(fate)}
        self._append("fate", **about, target=target, tip=tip, mend=mend)

    def _append(self, kind: str, **about: Any) -> None:
        record = {"kind": kind, **about, "at": datetime.now(timezone.utc).isoformat()}
        self._log.append([orjson.dumps(record)])
        self.history.apply(record)


def load_history(folder: Path, limit: int | None = None) -> tuple[History, int]:
    """What the log in a folder says, and where its last record ends; nothing if there is none.

    Raises:
        StoreError: it is damaged, or cannot be read.
    """
    history, path = History(), folder / LOG
    contents = read_log(path, limit)
    if contents.damage_at is not None:
        raise StoreError(f"{path} is damaged at byte {contents.damage_at}: put it aside")
    try:
        for payload in contents.payloads:
            history.apply(orjson.loads(payload))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise StoreError(f"{path} is damaged: put it aside") from error
    return history, contents.end
