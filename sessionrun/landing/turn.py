"""One turn at the slot of a target: mend, then land batch after batch until all that is wanted is decided.

    choose a batch -> chain of merges -> gates -> land the longest green prefix -> judge the entry after it

Before the target moves a record says so (see `target`), and after a crash the next turn mends by it (see
`moving`).  Whether work has landed is asked of the target alone: its commit is an ancestor, or it is not.
"""

from __future__ import annotations

import os
import signal
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Final

from sessionrun.git.git import Git
from sessionrun.git.merging import open_merge_room
from sessionrun.git.private import Fence, open_fence
from sessionrun.landing import records
from sessionrun.landing.gates import WORK, GateRoom, open_gates
from sessionrun.landing.moving import follow_late, look_after, move, name_left, recover
from sessionrun.landing.queue import Link, Queue
from sessionrun.landing.target import Slot
from sessionrun.model.errors import InputError, SessionrunError
from sessionrun.model.frozen import frozen
from sessionrun.model.landings import LAND_FAILED
from sessionrun.store.files import make_directories
from sessionrun.store.trees import remove_tree

MOVES: Final = 50
"""So often the target may move under our hands before it is held."""

BATCH: Final = 8
"""So many tasks are gated together, if the request does not say: what is red among them costs few runs to find."""

RED_RUNS: Final = 2
"""An entry is bounced when its gates were red so often, and never green."""

MOST_NAMED: Final = 50
"""By so many files of a landing it is found what took it back."""

_HOW_TO_RUN: Final = (
    "gates run in a checkout of {} of their own, without the files that git ignores: commit the program, "
    'install it, or give its folder to worktrees with "links"'
)

Tell = Callable[[str], None]


@frozen
class Verdict:
    """How gates ended on a tree: whether ever green, how often red; `why` and `output` are of the last red run."""

    green: bool = False
    red: int = 0
    why: str = ""
    output: str = ""

    @property
    def could_not_run(self) -> bool:
        """Whether the last red run was none: the shell had no program to start."""
        return self.why.startswith(records.NOT_RUN)


def land(
    request: records.LandRequest, tell: Tell = lambda line: None, *, limit_s: float | None = None
) -> records.Report:
    """Land what is wanted, as far as it goes.

    Raises:
        InputError: there is no such branch.
        SessionrunError, OSError: git failed, or the disk, or another landing took longer than `limit_s`; a later
            turn mends what was begun.
    """
    slot, folder = Slot(request.repository, request.target), Path(request.folder)
    make_directories(folder, 0o700)
    with slot.hold(tell, limit_s=limit_s):
        work = folder / WORK
        remove_tree(work)
        make_directories(work, 0o700)
        try:
            with open_fence(request.repository, work, limit_s=records.GIT_LIMIT_S) as fence:
                remarks = recover(slot, fence)
                with closing(records.LandingLog(folder)) as log:
                    report = Turn(request, slot, fence, log, tell).run()
        finally:
            remove_tree(work)
    return replace(report, remarks=(*remarks, *report.remarks))


class Turn:
    """The turn of one holder of a slot; it ends with a report."""

    def __init__(
        self, request: records.LandRequest, slot: Slot, fence: Fence, log: records.LandingLog, tell: Tell
    ) -> None:
        self._request = request
        self._slot = slot
        self._fence = fence
        self._log = log
        self._tell = tell
        self._git = fence.main()
        self._work = Path(request.folder, WORK)
        self._hold: records.Hold | None = None
        self._gate_runs = 0
        self._moves = 0
        self._remarks: list[str] = []
        self._pinned: set[str] | None = None
        self._queue = Queue(request, self._git, log.history)
        self._gates: GateRoom | None = None
        self._candidates: dict[str, str] = {}
        self._verdicts: dict[tuple[str, str], Verdict] = {}

    def run(self) -> records.Report:
        begun = self._find_target()
        self._look_back()
        taken_back = find_taken_back(self._git, self._log.history.moves, begun)
        for commit, by in taken_back.items():
            self._tell(f"what landed with {commit[:12]} was taken back by {by}")
        size = self._request.batch or (BATCH if self._request.gates.commands else None)
        while True:
            old = self._find_target()
            with open_merge_room(self._fence, old, self._work) as room:
                self._queue.settle(old, room, taken_back)
                batch = [] if self._hold else self._queue.choose(size)
                if not batch:
                    break
                self._pin()
                links = self._queue.merge(room, old, batch)
            if links:
                self._land_prefix(old, links)
        self._look_back()
        fates, tips = self._queue.list_fates(self._hold), {entry.task: entry.tip for entry in self._queue.entries}
        self._log.note_fates(fates, tips, self._slot.target)
        self._pin()
        self._slot.clear_record()
        self._remarks += name_left(self._slot)
        return records.Report(begun, old, fates, self._hold, self._gate_runs, tuple(self._remarks))

    def _look_back(self) -> None:
        """A switch that read an old commit may have ended after all looks: so at both ends of a turn."""
        for landed in self._log.history.moves:
            self._remarks += follow_late(self._slot, self._fence, self._record(landed.old, landed.new), landed.at)

    def _find_target(self) -> str:
        commit = self._git.commit_of(self._slot.target)
        if commit is None:
            raise InputError(f"there is no branch {self._short}")
        return commit

    def _land_prefix(self, old: str, links: Sequence[Link]) -> None:
        count = green = len(links)
        if self._request.gates.commands:
            self._gates = open_gates(self._fence, self._request, old)
            self._tell(f"gates: {count} task{'s' if count > 1 else ''} on {self._short}")
            is_green = self._passes(old, links)
            could_not_run = self._verdict(links[-1].tree).could_not_run
            # where the target itself is at fault, no search finds a culprit, and no mend helps
            if not is_green and (count > 1 or could_not_run) and self._hold_if_red(old):
                return
            if not is_green:  # how many of the first pass together; the one after them is the culprit
                green = bisect_left(range(1, count), True, key=lambda some: not self._passes(old, links[:some]))
        if green and not self._land(old, links[:green]):
            return
        if green < count:
            self._judge(links[green].entry)

    def _passes(self, old: str, links: Sequence[Link]) -> bool:
        tree = links[-1].tree
        if self._verdict(tree) == Verdict():
            self._run_gates(self._candidate(old, links), tree)
        return self._verdict(tree).green

    def _verdict(self, tree: str) -> Verdict:
        if self._gates is None:
            return Verdict()
        key = tree, self._gates.digest
        return self._verdicts.get(key) or Verdict(green=key in self._log.history.green)

    def _run_gates(self, commit: str, tree: str) -> None:
        assert self._gates is not None
        self._pin(commit)
        self._gate_runs += 1
        known, (why, output) = self._verdict(tree), self._gates.run(commit)
        if why is None:
            self._log.note_green(tree, self._gates.digest)
            known = replace(known, green=True)
        else:
            known = replace(known, red=known.red + 1, why=why, output=output)
        self._verdicts[tree, self._gates.digest] = known
        self._tell(f"gates: {'green' if why is None else f'red: {why}'}")

    def _judge(self, entry: records.Entry) -> None:
        """Try one entry alone on the target as it is now, once more if it is red: then land it, or bounce it."""
        old = self._find_target()
        self._pin()
        with open_merge_room(self._fence, old, self._work) as room:
            links = self._queue.merge(room, old, [entry])
        if not links:
            return
        # what landed before it may have changed what they run
        self._gates = open_gates(self._fence, self._request, old)
        tree = links[0].tree
        if not self._is_red(tree, links[0].commit):
            self._land(old, links)
        elif not self._hold_if_red(old):
            verdict, against = self._verdict(tree), self._queue.find_sharing(entry)
            others = f"; {', '.join(against)} landed before it and changed the same files" if against else ""
            fate = records.Fate(
                entry.task, "bounced", "gate_red", f"{verdict.why}{others}", None, (), against, verdict.output
            )
            self._queue.decide(fate)

    def _hold_if_red(self, old: str) -> bool:
        """Hold if the gates do not pass, or cannot be run, on the target itself; whether that is so."""
        tree = self._git.line("rev-parse", f"{old}^{{tree}}")
        if not self._is_red(tree, old):
            return False
        verdict = self._verdict(tree)
        if verdict.could_not_run:
            self._hold = records.Hold("gate_not_run", f"the gate {verdict.why}", _HOW_TO_RUN.format(self._short))
        else:
            reason = f"{self._short} itself is red: {verdict.why}"
            self._hold = records.Hold("target_red", reason, f"commit on {self._short} what makes it green")
        return True

    def _is_red(self, tree: str, commit: str) -> bool:
        """Whether a tree is red, and not just once by chance; a gate that cannot be run is tried once."""
        while not (known := self._verdict(tree)).green and known.red < RED_RUNS and not known.could_not_run:
            self._run_gates(commit, tree)
        return not self._verdict(tree).green

    def _land(self, old: str, links: Sequence[Link]) -> bool:
        """Move the target to the candidate of these; whether that is done."""
        candidate = self._candidate(old, links)
        self._hold = self._examine_filters(old, candidate, links)
        if self._hold:
            return False
        self._pin(candidate)
        record = self._record(old, candidate, {link.entry.task: link.entry.tip for link in links})
        moved = move(self._slot, self._fence, record)
        if moved == "moved":
            self._log.note_moved(record)
            verdict = self._verdict(links[-1].tree)
            is_flaky = verdict.green and verdict.red
            remark = "its gates are flaky: red, then green on the same files" if is_flaky else ""
            for task in record.entries:
                self._queue.decide(records.Fate(task, "landed", reason=remark, commit=candidate))
            self._remarks += look_after(self._slot, self._fence, record, self._request.late_s)
            self._slot.clear_record()
            return True
        self._moves += 1
        if isinstance(moved, records.Hold):
            self._hold = moved
        elif self._moves > MOVES:
            reason = f"{self._short} moved {self._moves} times meanwhile"
            self._hold = records.Hold("target_moves", reason, "merge again")
        return False

    def _examine_filters(self, old: str, new: str, links: Sequence[Link]) -> records.Hold | None:
        """Work that was done inside of walls is not to choose what a filter of the user's runs outside of them."""
        names = [name.split(".") for name, command in self._fence.settings.config if command]
        drivers = {
            ".".join(words[1:-1]) for words in names if words[0] == "filter" and words[-1] in ("smudge", "process")
        }
        drivers.discard("lfs")  # Git LFS reads the files, and runs nothing of them
        if not drivers or not any(link.entry.walled for link in links):
            return None
        paths = "".join(f"{name}\0" for name in sorted(records.find_changed(self._git, old, new, "d")))
        with open_merge_room(self._fence, new, self._work) as room:
            fields = room.git.names("check-attr", "-z", "--stdin", "filter", stdin=os.fsencode(paths))
        filtered = [row for row in zip(fields[::3], fields[2::3], strict=True) if row[1] in drivers]
        if not filtered:
            return None
        path, driver = filtered[0]
        reason = f"git runs filter.{driver} at each checkout of {path}, which was made inside of walls"
        if self._request.by_person:
            self._remarks.append(reason)
            return None
        return records.Hold("filter", reason, f"sessionrun merge {self._request.session_id[:8]}")

    def _candidate(self, old: str, links: Sequence[Link]) -> str:
        """What lands with these: the same commit that the gates saw; its first parent is the old target."""
        last, count = links[-1], len(links)
        if count == 1:
            return last.commit
        if last.commit not in self._candidates:
            lines = [f"- {link.entry.task}: {link.entry.title}" for link in links]
            title = f"Land {count} tasks of session {self._request.session_id[:8]}"
            message = "\n".join([title, "", *lines, ""])
            self._candidates[last.commit] = self._git.commit_tree(last.tree, (old, last.commit), message)
        return self._candidates[last.commit]

    def _pin(self, *commits: str) -> None:
        pinned = {*commits, *self._queue.list_needed()}
        if self._pinned is None or not pinned or not pinned <= self._pinned:
            self._slot.move_pin(self._git, sorted(pinned))
            self._pinned = pinned

    def _record(self, old: str, new: str, entries: Mapping[str, str] | None = None) -> records.SlotRecord:
        return records.SlotRecord(self._request.folder, self._slot.target, old, new, entries or {})

    @property
    def _short(self) -> str:
        return records.shorten(self._slot.target)


def find_taken_back(git: Git, moves: Sequence[records.Landed], tip: str) -> dict[str, str]:
    """By commits of landings that the target has, but none of whose changes it still has: what took them back."""
    taken_back: dict[str, str] = {}
    after = [landed.old for landed in moves[1:]] + [tip]
    if [landed.new for landed in moves] == after[: len(moves)]:
        return taken_back  # nothing but landings since
    for landed in moves:
        if landed.new == tip or not records.is_ancestor(git, landed.new, tip):
            continue
        changed = records.find_changed(git, landed.old, landed.new)
        if changed and changed.isdisjoint(records.find_changed(git, landed.old, tip)):
            # of a folder of modules all names would be too long for a command, and a few tell as much
            named = [f":(literal){name}" for name in sorted(changed)[:MOST_NAMED]]
            found = git.line("rev-list", "-1", f"{landed.new}..{tip}", "--", *named)
            taken_back[landed.new] = (found or tip)[:12]
    return taken_back


MEND_LIMIT_S: Final = 600.0
"""So long a LAND that only mends waits for another landing: that one has mended the target as it began."""


def run(request: records.LandRequest, folder: Path) -> records.Report:
    """Land what is asked for, as far as it goes.  A LAND that was killed is mended by the next one.

    If something fails on the way, what landed before that counts, and all else is held.
    """
    asked, limit_s = request, None
    if request.only_mend:
        asked = replace(request, entries=tuple(replace(entry, wanted=False) for entry in request.entries))
        limit_s = MEND_LIMIT_S
    try:
        report = land(asked, lambda line: print(line, flush=True), limit_s=limit_s)
    except (SessionrunError, OSError) as error:
        if getattr(error, "signal", None) == signal.SIGKILL:
            raise
        hold = records.Hold(LAND_FAILED, " ".join(str(error).split()))
        landed = _find_landed(request)
        done = {fate.task for fate in landed}
        left = [entry.task for entry in request.entries if entry.wanted and entry.task not in done]
        held = (records.Fate(task, "held", hold.reason_class, hold.reason) for task in left)
        return records.Report("", "", (*landed, *held), hold)  # where the target stands is not known
    for remark in report.remarks:
        print(remark, flush=True)
    return replace(report, fates=tuple(_find_landed(request))) if request.only_mend else report


def _find_landed(request: records.LandRequest) -> list[records.Fate]:
    """What the log of the landing knows to have landed, of what is wanted."""
    try:
        history = records.load_history(Path(request.folder))[0]
        with open_fence(request.repository) as fence:
            entries = Queue(request, fence.main(), history).entries
    except (SessionrunError, OSError):
        return []
    known = [(entry.task, history.find_landed(entry.task, entry.tip)) for entry in entries if entry.wanted]
    return [records.Fate(task, "landed", commit=commit) for task, commit in known if commit is not None]
