"""The queue of one turn: which entries have landed, which are decided, and which are to be tried next."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from sessionrun.git.git import Git
from sessionrun.git.merging import MergeRoom
from sessionrun.landing.chain import find_unmet, sort_entries
from sessionrun.landing.gates import take_off
from sessionrun.landing.history import History
from sessionrun.landing.records import ASTRAY, GONE, INSIDE, NEEDS, SETUP, Entry, Fate, Hold, LandRequest

_LINK: Final = "160000"
"""Mode of a commit of another repository, which no object of this one need hold."""


class Queue:
    """The entries of a request, and what became of them so far."""

    def __init__(self, request: LandRequest, git: Git, history: History) -> None:
        self._request = request
        self._git = git
        self._history = history
        self._fates: dict[str, Fate] = {}
        self._tips: dict[str, str] = {}
        self._paths: dict[str, frozenset[str]] = {}
        self._repositories: dict[str, list[str]] = {}
        self._present: set[str] = set()
        self.landed: set[str] = set()

    @property
    def open(self) -> list[Entry]:
        """The entries that are wanted and not decided."""
        return [entry for entry in self._request.entries if entry.wanted and entry.task not in self._fates]

    def tip_of(self, entry: Entry) -> str:
        """The commit that lands for an entry: its work, without what setups left."""
        return self._tips[entry.task]

    def settle(self, old: str, room: MergeRoom | None = None) -> None:
        """Ask the target at `old` what has landed, by whatever way; `room` is needed if setups left anything.

        Raises:
            GitError: git failed.
        """
        entries = [
            entry
            for entry in self._request.entries
            if entry.task not in self.landed and entry.task not in self._fates
        ]
        for entry in self._find_tips(entries, old, room):
            known = self._history.landed.get(entry.task)
            commit = known[1] if known is not None and known[0] == entry.tip else None
            self.decide(Fate(entry.task, "landed", commit=commit))

    def decide(self, fate: Fate) -> None:
        """Nothing more is tried of this task in this turn."""
        self._fates[fate.task] = fate
        if fate.status == "landed":
            self.landed.add(fate.task)

    def choose(self, size: int | None) -> list[Entry]:
        """The next batch: entries whose needs have landed, or stand before them in it; empty: none is left.

        What needs a task that will not land in this turn waits.
        """
        for entry in self.open:
            if entry.astray:
                self.decide(Fate(entry.task, "held", ASTRAY, entry.astray))
            elif self.paths_of(entry) and (inside := self._repositories[entry.task]):
                reason = f"{', '.join(inside)} is a repository of its own: the work has none of its files"
                self.decide(Fate(entry.task, "bounced", INSIDE, reason, files=tuple(inside)))
        batch: dict[str, Entry] = {}
        for entry in sort_entries(self.open, self._history.bounced):
            unmet, is_lost = find_unmet(entry, self.landed, self._settled())
            if is_lost:
                self.decide(Fate(entry.task, "waiting", NEEDS, f"it needs {', '.join(unmet)}, not landed"))
            elif len(batch) != size and set(unmet) <= set(batch):
                batch[entry.task] = entry
        return list(batch.values())

    def find_sharing(self, entry: Entry, files: Collection[str] = ()) -> tuple[str, ...]:
        """The tasks that landed and changed these files, or any that the entry changes."""
        paths = frozenset(files) or self.paths_of(entry)
        others = [other for other in self._request.entries if other.task in self.landed]
        return tuple(other.task for other in others if other is not entry and paths & self.paths_of(other))

    def list_fates(self, hold: Hold | None) -> tuple[Fate, ...]:
        """What became of each entry that is wanted."""
        fates = []
        for entry in self._request.entries:
            if entry.wanted:
                why = hold or Hold("", "")
                fates.append(self._fates.get(entry.task) or Fate(entry.task, "held", why.reason_class, why.reason))
        return tuple(fates)

    def _settled(self) -> dict[str, object]:
        """The tasks that have not landed and will not in this turn."""
        opened = {entry.task for entry in self.open}
        needed = {need for entry in self._request.entries for need in entry.needs}
        return {task: None for task in needed if task not in self.landed and task not in opened}

    def _find_tips(self, entries: Sequence[Entry], old: str, room: MergeRoom | None) -> list[Entry]:
        """Find what is to land for each entry; return those whose commit is an ancestor of `old`."""
        asked = "".join(f"{entry.tip}\n" for entry in entries if entry.task not in self._tips).encode()
        if asked:
            answers = self._git("cat-file", "--batch-check=%(objectname) %(objecttype)", stdin=asked).decode()
            self._present |= {line.split(" ")[0] for line in answers.split("\n") if line.endswith(" commit")}
        present = [entry for entry in entries if self._find_tip(entry, old, room)]
        if not present:
            return []
        listed = "".join(f"{self._tips[entry.task]}\n" for entry in present) + f"^{old}\n"
        ahead = set(self._git("rev-list", "--stdin", stdin=listed.encode()).decode().split())
        return [entry for entry in present if self._tips[entry.task] not in ahead]

    def _find_tip(self, entry: Entry, old: str, room: MergeRoom | None) -> bool:
        if entry.task in self._tips:
            return True
        if entry.tip not in self._present:
            if entry.wanted:
                reason = f"its commit {entry.tip[:12]} is not in the repository any more"
                self.decide(Fate(entry.task, "bounced", GONE, reason))
            return False
        taken = take_off(self._git, room, entry.tip, old, self._request.setups)
        if taken.commit is None:
            if entry.wanted:
                files = tuple(taken.files)
                reason = f"its work changes what its setup had changed: {', '.join(files)}"
                self.decide(Fate(entry.task, "bounced", SETUP, reason, files=files))
            return False
        self._tips[entry.task] = taken.commit
        return True

    def paths_of(self, entry: Entry) -> frozenset[str]:
        """The files that an entry changes, repositories that it adds as links among them.

        Raises:
            GitError: git failed.
        """
        if entry.task not in self._paths:
            words = ("diff-tree", "-r", "-z", "--no-renames", "--raw", entry.base, entry.tip)
            fields = self._git.names(*words)
            self._paths[entry.task] = frozenset(fields[1::2])
            modes = zip(fields[::2], fields[1::2], strict=True)
            self._repositories[entry.task] = [
                path for about, path in modes if about[8:14] == _LINK and about[1:7] != _LINK
            ]
        return self._paths[entry.task]
