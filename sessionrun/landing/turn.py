"""One turn at the slot of a target: mend, then land batch after batch until all that is wanted is decided.

    choose a batch -> chain of merges -> gates -> land the longest green prefix -> judge the entry after it

Before each step a record says what it will be (see `target`), and after a crash the next turn mends by it (see
`recovery`).  Whether work has landed is asked of the target alone: its commit is an ancestor, or it is not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from sessionrun.git.merging import open_merge_room
from sessionrun.git.private import Fence, open_fence
from sessionrun.landing.chain import Chain, build_chain, choose_size, find_green_prefix, make_candidate
from sessionrun.landing.checkout import Tree, follow, land_checked_out
from sessionrun.landing.gates import WORK, GateRoom, open_gates
from sessionrun.landing.history import LandingLog, open_log
from sessionrun.landing.queue import Queue
from sessionrun.landing.records import (
    CONFLICT,
    GIT_LIMIT_S,
    RED,
    Checkout,
    Entry,
    Fate,
    GateWalls,
    Hold,
    LandRequest,
    Report,
    SlotRecord,
    State,
    Taken,
    Verdict,
)
from sessionrun.landing.recovery import recover
from sessionrun.landing.target import Slot, await_indexes, find_checkout, find_late_checkout, move_ref
from sessionrun.model.errors import InputError
from sessionrun.model.phrases import name_some
from sessionrun.store.files import make_directories
from sessionrun.store.trees import remove_tree

MOVES: Final = 50
"""So often the target may move under our hands before it is held."""

RED_RUNS: Final = 2
"""An entry is bounced when its gates were red so often, and never green."""

MAX_NAMED: Final = 5
"""How many files of a conflict a reason names."""

_HOW_TO_RUN: Final = (
    "gates run in a checkout of {} of their own, without the files that git ignores: commit the program, "
    'install it, or give its folder to worktrees with "links"'
)

Tell = Callable[[str], None]


def land(
    request: LandRequest,
    tell: Tell = lambda line: None,
    *,
    limit_s: float | None = None,
    walls: GateWalls = GateWalls(),  # noqa: B008
) -> Report:
    """Land what is wanted, as far as it goes.

    Args:
        tell: is given a line for a person when something takes long.
        limit_s: how long to wait for another landing at most (seconds); None: until it ends.
        walls: those that the gates wish for.

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
            with open_fence(request.repository, work, limit_s=GIT_LIMIT_S) as fence:
                remarks = recover(slot, fence)
                with open_log(folder) as log:
                    report = Turn(request, slot, fence, log, tell, walls).run()
        finally:
            remove_tree(work)
    return replace(report, remarks=(*remarks, *report.remarks))


class Turn:
    """The turn of one holder of a slot; it ends with a report."""

    def __init__(
        self, request: LandRequest, slot: Slot, fence: Fence, log: LandingLog, tell: Tell, walls: GateWalls
    ) -> None:
        self._request = request
        self._slot = slot
        self._fence = fence
        self._log = log
        self._tell = tell
        self._walls = walls
        self._git = fence.main()
        self._work = Path(request.folder, WORK)
        self._hold: Hold | None = None
        self._gate_runs = 0
        self._moves = 0
        self._remarks: list[str] = []
        self._pinned: set[str] = set()
        self._queue = Queue(request, self._git, log.history)
        self._gates: GateRoom | None = None
        self._candidates: dict[str, str] = {}

    def run(self) -> Report:
        """Land until nothing is left that could."""
        begun = None
        while True:
            old = self._find_target()
            begun = begun or old
            self._settle(old)
            batch = [] if self._hold else self._queue.choose(self._size())
            if not batch:
                break
            chain = self._build(old, batch)
            if chain.links:
                self._land_prefix(chain)
        fates = self._queue.list_fates(self._hold)
        for fate in fates:
            if fate.status in ("landed", "bounced", "held"):
                mend = self._hold.mend if self._hold and fate.status == "held" else ""
                self._log.note_fate(fate, self._slot.target, mend)
        self._log.note_end()
        self._slot.clear_record()
        return Report(begun, old, fates, self._hold, self._gate_runs, tuple(self._remarks))

    def _settle(self, old: str) -> None:
        if not self._request.setups:
            self._queue.settle(old)
            return
        with open_merge_room(self._fence, old, self._work) as room:
            self._queue.settle(old, room)

    def _find_target(self) -> str:
        commit = self._git.commit_of(self._slot.target)
        if commit is None:
            raise InputError(f"there is no branch {self._short}")
        return commit

    def _size(self) -> int | None:
        if self._request.batch is not None or not self._request.gates.commands:
            return self._request.batch
        return choose_size(self._log.history.decided, self._log.history.red)

    def _build(self, old: str, batch: Sequence[Entry]) -> Chain:
        """Merge a batch; what conflicts with the target itself is bounced."""
        self._write("building", old)
        self._pin()
        with open_merge_room(self._fence, old, self._work) as room:
            chain = build_chain(self._git, room, old, batch, self._queue.tip_of)
        for entry, files in chain.conflicts:
            against = self._queue.find_sharing(entry, files)
            others = f", which {', '.join(against)} changed" if against else ""
            reason = f"it conflicts with {self._short} in {name_some(files, MAX_NAMED)}{others}"
            self._bounce(entry, Fate(entry.task, "bounced", CONFLICT, reason, None, tuple(files), against))
        for entry in chain.there:
            self._queue.decide(Fate(entry.task, "landed", reason="already there by content"))
        return chain

    def _land_prefix(self, chain: Chain) -> None:
        """Land the longest green prefix of a batch, then decide on the entry after it."""
        count = len(chain.links)
        green = count
        if self._request.gates.commands:
            self._gates = self._open_gates(chain.old)
            self._tell(f"gates: {count} task{'s' if count > 1 else ''} on {self._short}")
            is_green = self._passes(chain, count)
            could_not_run = self._verdict(chain.links[-1].tree).could_not_run
            # where the target itself is at fault, no search finds a culprit, and no mend helps
            if not is_green and (count > 1 or could_not_run) and self._hold_if_red(chain):
                return
            green = find_green_prefix(count, lambda some: self._passes(chain, some))
        if green and not self._land(chain, green):
            return
        if green < count:
            self._judge(chain.links[green].entry)

    def _open_gates(self, old: str) -> GateRoom:
        return open_gates(self._fence, self._request, self._slot.target, old, self._walls)

    def _passes(self, chain: Chain, count: int) -> bool:
        tree = chain.links[count - 1].tree
        known = self._verdict(tree)
        if not known.green and not known.red:
            candidate = self._candidate(chain, count)
            self._write("gating", chain.old, candidate, chain, count)
            self._pin(candidate)
            self._run_gates(candidate, tree)
        return bool(self._verdict(tree).green)

    def _verdict(self, tree: str) -> Verdict:
        assert self._gates is not None
        return self._log.history.verdicts.get((tree, self._gates.digest), Verdict())

    def _run_gates(self, commit: str, tree: str) -> None:
        assert self._gates is not None
        self._gate_runs += 1
        ran = self._gates.run(commit, next_number(self._gates.folder))
        self._log.note_verdict(tree, self._gates.digest, ran.why, ran.output)
        self._tell(f"gates: {'green' if ran.why is None else f'red: {ran.why}'}")

    def _judge(self, entry: Entry) -> None:
        """Try one entry alone on the target as it is now, once more if it is red: then land it, or bounce it."""
        old = self._find_target()
        chain = self._build(old, [entry])
        if not chain.links:
            return
        self._gates = self._open_gates(old)  # what landed before it may have changed what they run
        tree = chain.links[0].tree
        candidate = self._candidate(chain, 1)
        if self._is_red(tree, candidate, chain):
            if not self._hold_if_red(chain):
                self._bounce_red(entry, self._verdict(tree))
        else:
            self._land(chain, 1)

    def _hold_if_red(self, chain: Chain) -> bool:
        """Hold if the gates do not pass, or cannot be run, on the target itself; whether that is so."""
        tree = self._git.line("rev-parse", f"{chain.old}^{{tree}}")
        if not self._is_red(tree, chain.old, chain):
            return False
        verdict = self._verdict(tree)
        if verdict.could_not_run:
            self._hold = Hold("gate_not_run", f"the gate {verdict.why}", _HOW_TO_RUN.format(self._short))
        else:
            reason = f"{self._short} itself is red: {verdict.why}"
            self._hold = Hold("target_red", reason, f"commit on {self._short} what makes it green")
        return True

    def _is_red(self, tree: str, commit: str, chain: Chain) -> bool:
        """Whether a tree is red, and not just once by chance; a gate that cannot be run is tried once."""
        while not (known := self._verdict(tree)).green and known.red < RED_RUNS and not known.could_not_run:
            self._write("gating", chain.old, commit, chain, 1)
            self._pin(commit)
            self._run_gates(commit, tree)
        return not self._verdict(tree).green

    def _bounce_red(self, entry: Entry, verdict: Verdict) -> None:
        against = self._queue.find_sharing(entry)
        others = f"; {', '.join(against)} landed before it and changed the same files" if against else ""
        reason = f"{verdict.why}{others}"
        self._bounce(entry, Fate(entry.task, "bounced", RED, reason, None, (), against, verdict.output))

    def _bounce(self, entry: Entry, fate: Fate) -> None:
        self._log.note_bounced(fate, entry.tip, self._slot.target)
        self._queue.decide(fate)

    def _land(self, chain: Chain, count: int) -> bool:
        """Move the target to the candidate of a prefix; whether that is done."""
        candidate = self._candidate(chain, count)
        repository, target = self._request.repository, self._slot.target
        checkout = await_indexes(repository, target) or find_checkout(repository, target)
        if isinstance(checkout, Hold):
            self._hold = checkout
            return False
        self._pin(candidate)
        self._write("landing", chain.old, candidate, chain, count, checkout)
        if checkout is None:
            moved = move_ref(self._slot, self._fence, candidate, chain.old)
            if moved == "moved":
                self._follow(chain, count, candidate)
        else:
            moved = land_checked_out(Tree(self._slot, self._fence, checkout, chain.old, candidate))
        if moved == "moved":
            self._note_landed(chain, count, candidate)
            return True
        self._moves += 1
        if isinstance(moved, Hold):
            self._hold = moved
        elif self._moves > MOVES:
            self._hold = Hold("target_moves", f"{self._short} moved {self._moves} times meanwhile", "merge again")
        return False

    def _follow(self, chain: Chain, count: int, candidate: str) -> None:
        """A user may have checked out the target just when it moved."""
        late = find_late_checkout(self._request.repository, self._slot.target, self._request.late_s)
        if late is not None:
            self._write("landing", chain.old, candidate, chain, count, late)
            hold = follow(Tree(self._slot, self._fence, late, chain.old, candidate))
            self._remarks += [f"{hold.reason}: {late.top} is behind {self._short}"] if hold else []

    def _note_landed(self, chain: Chain, count: int, commit: str) -> None:
        taken = tuple(Taken(link.entry.task, link.entry.tip) for link in chain.links[:count])
        self._log.note_landed(taken, commit, self._slot.target)
        for link in chain.links[:count]:
            flaky = self._gates is not None and self._verdict(chain.links[count - 1].tree).is_flaky
            remark = "its gates are flaky: red, then green on the same files" if flaky else ""
            self._queue.decide(Fate(link.entry.task, "landed", reason=remark, commit=commit))
        self._slot.clear_record()

    def _candidate(self, chain: Chain, count: int) -> str:
        """What lands with a prefix: the same commit that the gates saw."""
        last = chain.links[count - 1].commit
        if last not in self._candidates:
            self._candidates[last] = make_candidate(self._git, chain, count, self._request.session_id)
        return self._candidates[last]

    def _pin(self, *commits: str) -> None:
        pinned = {*commits, *(self._queue.tip_of(entry) for entry in self._queue.open)}
        if not pinned <= self._pinned:
            self._slot.move_pin(self._git, sorted(pinned))
            self._pinned = pinned

    def _write(
        self,
        state: State,
        old: str,
        new: str = "",
        chain: Chain | None = None,
        count: int = 0,
        checkout: Checkout | None = None,
    ) -> None:
        links = chain.links[:count] if chain else []
        taken = tuple(Taken(link.entry.task, link.entry.tip) for link in links)
        request = self._request
        self._slot.write_record(
            SlotRecord(state, request.session_id, request.folder, request.target, old, new, taken, checkout)
        )

    @property
    def _short(self) -> str:
        return self._slot.target.removeprefix("refs/heads/")


def next_number(folder: Path) -> int:
    """A number that no file of an earlier run of the gates has."""
    numbers = [int(path.stem[5:]) for path in folder.glob("gate-*.txt") if path.stem[5:].isdecimal()]
    return max(numbers, default=0) + 1
