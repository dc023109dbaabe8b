"""The queue of one turn: which entries have landed, which are decided, and which are to be tried next.

A forecast of it changes nothing, and no gate runs: new objects go to a directory of their own, which is deleted.
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

from sessionrun.git.git import Git
from sessionrun.git.merging import MergeRoom, open_merge_room
from sessionrun.git.private import open_fence
from sessionrun.landing import records
from sessionrun.landing.gates import take_off
from sessionrun.landing.places import find_checkout
from sessionrun.model.errors import name_some, printable

_LINK: Final = "160000"
"""Mode of a commit of another repository, which no object of this one need hold."""

MAX_NAMED: Final = 5
"""How many files of a conflict a reason names."""

_CHOSEN: Final = {
    "landed": "{} landed",
    "ready": "{} would land",
    "held": "{} was chosen, and is held",
    "waiting": "{} was chosen, and waits",
}


class Queue:
    """The entries of a request, and what became of them so far."""

    def __init__(self, request: records.LandRequest, git: Git, history: records.History) -> None:
        self._request = request
        self._git = git
        self._history = history
        self._fates: dict[str, records.Fate] = {}
        self.tips: dict[str, str] = {}  # by task, the commit that lands: its work, without what setups left
        self._changes: dict[str, tuple[frozenset[str], list[str]]] = {}
        self._present: set[str] = set()
        self._astray: dict[str, str] = {}
        named = any(entry.branch for entry in request.entries)
        branches = git.list_branches() if named else {}
        self.entries = [self._follow(entry, branches) for entry in request.entries]
        self.landed: set[str] = set()

    @property
    def open(self) -> list[records.Entry]:
        """The entries that are wanted and not decided."""
        return [entry for entry in self.entries if entry.wanted and entry.task not in self._fates]

    def list_needed(self) -> set[str]:
        """The commits that no collection of garbage may take: of what may land yet, now or later."""
        passed_over = {task for task, fate in self._fates.items() if fate.reason_class == "not_chosen"}
        needed = [entry for entry in self.entries if entry.task not in self.landed | passed_over]
        left = {entry.tip for entry in needed if entry.tip in self._present}
        return left | {self.tips[entry.task] for entry in needed if entry.task in self.tips}

    def settle(self, old: str, room: MergeRoom, taken_back: Mapping[str, str] = MappingProxyType({})) -> None:
        """Ask the target at `old` what has landed, by whatever way."""
        entries = [entry for entry in self.entries if entry.task not in self._fates]
        asked = "".join(f"{entry.tip}\n" for entry in entries if entry.task not in self.tips).encode()
        if asked:
            answers = self._git("cat-file", "--batch-check=%(objectname) %(objecttype)", stdin=asked).decode()
            self._present |= {line.split(" ")[0] for line in answers.split("\n") if line.endswith(" commit")}
        present = [entry for entry in entries if self._find_tip(entry, old, room)]
        listed = "".join(f"{self.tips[entry.task]}\n" for entry in present) + f"^{old}\n"
        ahead = set(self._git("rev-list", "--stdin", stdin=listed.encode()).decode().split()) if present else ()
        for entry in present:
            if self.tips[entry.task] not in ahead:
                commit = self._history.find_landed(entry.task, entry.tip)
                by = taken_back.get(commit or "")
                reason = f"then taken back by {by}" if by else ""
                self.decide(records.Fate(entry.task, "landed", reason=reason, commit=commit))

    def decide(self, fate: records.Fate) -> None:
        """Nothing more is tried of this task in this turn."""
        files = tuple(map(printable, fate.files))
        self._fates[fate.task] = replace(fate, reason=printable(fate.reason), files=files)
        if fate.status in ("landed", "ready"):
            self.landed.add(fate.task)

    def merge(
        self, room: MergeRoom, old: str, batch: Sequence[records.Entry], there: records.Status = "landed"
    ) -> list[Link]:
        """Merge a batch on `old`, whose attributes the room has, each entry on top of those before it.

        What conflicts with `old` itself is bounced, as the second of two that conflict is in the end.  What it has
        by its content is `there`.  What cannot be merged with an entry before it waits for the next batch.
        """
        links: list[Link] = []
        head, tree = old, self._git.line("rev-parse", f"{old}^{{tree}}")
        left_out: set[str] = set()
        for entry in batch:
            if left_out.intersection(entry.needs):
                left_out.add(entry.task)
                continue
            tip = self.tips[entry.task]
            merged = room.merge(head, tip)
            if merged.tree is None:
                left_out.add(entry.task)
                alone = room.merge(old, tip) if links else merged
                if alone.tree is None:
                    self._bounce_conflict(entry, alone.files)
            elif merged.tree != tree:
                head, tree = self._git.commit_tree(merged.tree, (head, tip), _word_merge(entry)), merged.tree
                links.append(Link(entry, head, tree))
            elif links:
                left_out.add(entry.task)
            else:
                reason = "already there by content" if there == "landed" else ""
                self.decide(records.Fate(entry.task, there, reason=reason))
        return links

    def _bounce_conflict(self, entry: records.Entry, files: list[str]) -> None:
        target, against = records.shorten(self._request.target), self.find_sharing(entry, files)
        others = f", which {', '.join(against)} changed" if against else ""
        reason = f"it conflicts with {target} in {name_some(files, MAX_NAMED)}{others}"
        self.decide(records.Fate(entry.task, "bounced", "conflict", reason, None, tuple(files), against))

    def choose(self, size: int | None) -> list[records.Entry]:
        """The next batch: entries whose needs have landed, or stand before them in it; empty: none is left.

        What needs a task that will not land in this turn waits.
        """
        for entry in self.open:
            if entry.task in self._astray:
                self.decide(records.Fate(entry.task, "held", "branch_astray", self._astray[entry.task]))
            elif inside := self._changes_of(entry)[1]:
                reason = f"{', '.join(inside)} is a repository of its own: the work has none of its files"
                self._bounce(entry, "repository_inside", reason, inside)
        batch: dict[str, records.Entry] = {}
        later = self._pass_over()
        for entry in self.open:
            unmet, opened = set(entry.needs) - self.landed, {one.task for one in self.open}
            if not unmet <= opened:
                named = ", ".join(need for need in entry.needs if need in unmet)
                self.decide(records.Fate(entry.task, "waiting", "needs", f"it needs {named}, not landed"))
            elif entry.task not in later and len(batch) != size and unmet <= batch.keys():
                batch[entry.task] = entry
        if not batch and self._pass_over() != later:
            return self.choose(size)  # what was the best of its group waits: the others of it are decided with it
        return list(batch.values())

    def _pass_over(self, hold: bool = False) -> set[str]:
        """The attempts that are not tried now, since a better one is; of a group that is done they are decided.

        With a `hold` the turn is over, and that better one is held.
        """
        later: set[str] = set()
        for group in self._request.groups:
            opened = {entry.task for entry in self.open}
            waiting = [attempt for attempt in group if attempt in opened]
            known = [self._fates[attempt] for attempt in group if attempt in self._fates]
            known.sort(key=lambda fate: fate.task not in self.landed)
            chosen = [_CHOSEN[fate.status].format(fate.task) for fate in known if fate.status in _CHOSEN]
            if not chosen and hold and waiting:
                chosen = [_CHOSEN["held"].format(waiting.pop(0))]
            for attempt in waiting if chosen else ():
                self.decide(records.Fate(attempt, "none", "not_chosen", chosen[0]))
            later |= set(waiting[1:])
        return later

    def find_sharing(self, entry: records.Entry, files: Collection[str] = ()) -> tuple[str, ...]:
        """The tasks that landed and changed these files, or any that the entry changes."""
        paths = frozenset(files) or self._changes_of(entry)[0]
        others = [other for other in self.entries if other.task in self.landed]
        return tuple(other.task for other in others if other is not entry and paths & self._changes_of(other)[0])

    def list_fates(self, hold: records.Hold | None) -> tuple[records.Fate, ...]:
        """What became of each entry that is wanted, or whose landing was taken back."""
        if hold is not None:
            self._pass_over(hold=True)
        why, fates = hold or records.Hold("", ""), []
        for entry in self.entries:
            fate = self._fates.get(entry.task)
            if entry.wanted:
                fates.append(fate or records.Fate(entry.task, "held", why.reason_class, why.reason, mend=why.mend))
            elif fate is not None and fate.reason:
                fates.append(fate)
        return tuple(fates)

    def _follow(self, entry: records.Entry, branches: Mapping[str, str]) -> records.Entry:
        """The entry with the tip of its branch where that went on: a conflict is mended there.

        A branch that a person deleted or moved elsewhere is no consent to land what the task left: it is astray.
        """
        tip, take, left = branches.get(entry.branch), self._request.take, entry.tip[:12]
        if not entry.branch or tip == entry.tip or take == "recorded":
            return entry
        if tip is not None and (take == "branches" or records.is_ancestor(self._git, entry.tip, tip)):
            return replace(entry, tip=tip)
        again = f"sessionrun merge {self._request.session_id[:8]} {entry.task}"
        if tip is None:
            why = f"its branch {entry.branch} was deleted; if that was a mistake: git branch {entry.branch} {left}"
        else:
            why = f"its branch {entry.branch} is no longer what the task left ({left}); if it was amended: {again}"
            why += " --take-branches; to land what was left: --take-recorded"
        self._astray[entry.task] = why
        return entry

    def _find_tip(self, entry: records.Entry, old: str, room: MergeRoom) -> bool:
        """Whether it is known what is to land for an entry; else it is bounced."""
        if entry.task in self.tips:
            return True
        if entry.tip not in self._present:
            self._bounce(entry, "work_gone", f"its commit {entry.tip[:12]} is not in the repository any more")
            return False
        commit, files = take_off(self._git, room, entry.tip, old, self._request.setups)
        if commit is None:
            reason = f"its work changes what its setup had changed: {', '.join(files)}"
            self._bounce(entry, "setup_conflict", reason, files)
            return False
        self.tips[entry.task] = commit
        return True

    def _bounce(self, entry: records.Entry, reason_class: str, reason: str, files: Sequence[str] = ()) -> None:
        if entry.wanted:
            self.decide(records.Fate(entry.task, "bounced", reason_class, reason, files=tuple(files)))

    def _changes_of(self, entry: records.Entry) -> tuple[frozenset[str], list[str]]:
        """The files that an entry changes, and which of them are links to other repositories that it adds."""
        if entry.task not in self._changes:
            fields = self._git.names("diff-tree", "-r", "-z", "--no-renames", "--raw", entry.base, entry.tip)
            modes = dict(zip(fields[1::2], fields[::2], strict=True))
            added = [path for path, about in modes.items() if about[8:14] == _LINK and about[1:7] != _LINK]
            self._changes[entry.task] = frozenset(modes), added
        return self._changes[entry.task]


def forecast(request: records.LandRequest) -> records.Report:
    """What would land if every gate was green."""
    with (
        tempfile.TemporaryDirectory(prefix="sessionrun-") as made,
        open_fence(request.repository, limit_s=records.GIT_LIMIT_S) as fence,
    ):
        objects = Path(made, "objects")
        git = fence.main().on_trial(objects, Path(request.repository.common_dir))
        queue = Queue(request, git, records.load_history(Path(request.folder))[0])
        at = old = git.line("rev-parse", "--verify", f"{request.target}^{{commit}}")
        with open_merge_room(fence, old, Path(made), trial=objects) as room:
            queue.settle(old, room)
            while batch := queue.choose(None):
                for link in queue.merge(room, at, batch, "landed" if at == old else "ready"):
                    queue.decide(records.Fate(link.entry.task, "ready"))
                    at = link.commit
    held = find_checkout(request.repository, request.target)
    return records.Report(old, old, queue.list_fates(None), held if isinstance(held, records.Hold) else None)


class Link(NamedTuple):
    """The merge of one task on top of those before it."""

    entry: records.Entry
    commit: str
    tree: str


def _word_merge(entry: records.Entry) -> str:
    subject = f"Merge task {entry.task}: {entry.title}" if entry.title else f"Merge task {entry.task}"
    return "\n".join([subject, "", *entry.trailers, ""] if entry.trailers else [subject, ""])
