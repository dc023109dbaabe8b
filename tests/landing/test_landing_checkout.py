"""Landing where the target is checked out: files, ref, index; what is in the way holds it, and nothing changes."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from threading import Thread

import pytest
from calls import Calls, needs_calls
from conftest import eventually, slow
from landings import MAIN, Yard, make_yard
from stages import put_first

from sessionrun.git.git import version
from sessionrun.git.private import Fence, open_fence
from sessionrun.landing import moving
from sessionrun.landing.checkout import Tree
from sessionrun.landing.places import is_left
from sessionrun.landing.records import Checkout, Report, SlotRecord
from sessionrun.landing.target import Slot, show_head
from sessionrun.landing.turn import land

CHANGES = {
    "b.txt": None,
    "b.txt/inside": "was a file\n",
    "a.txt": "new\n",
    "gone.txt": None,
    "d/c.txt": "*c\n",
    "new/deep/file.txt": "n\n",
}


TABLES = (
    pytest.mark.check,
    pytest.mark.skipif(version(Path("/")) < (2, 46), reason="this git migrates no refs to a table"),
)


@pytest.fixture(params=["files", pytest.param("reftable", marks=TABLES)])
def yard(own_place: Path, request: pytest.FixtureRequest) -> Yard:
    """`main` is checked out in the repository's own work tree."""
    yard = make_yard(own_place)
    if request.param == "reftable":
        shutil.rmtree(yard.top / ".git/logs", ignore_errors=True)  # which not every git migrates
        yard.git("refs", "migrate", "--ref-format=reftable")
    return yard


def status(yard: Yard, cwd: Path | None = None) -> str:
    return yard.git("status", "--porcelain", "--ignored", cwd=cwd)


def has_table(yard: Yard) -> bool:
    """Whether git keeps the refs of the repository in a table."""
    return (yard.top / ".git/reftable").is_dir()


@pytest.mark.parametrize("linked", [False, True])
def test_files_ref_and_index_follow(yard: Yard, linked: bool) -> None:
    top = yard.top
    if linked:
        yard.git("checkout", "-q", "--detach")
        top = yard.top.parent / "linked"
        yard.git("worktree", "add", "-q", str(top), "main")
    yard.add("one", CHANGES)
    (top / "mine.txt").write_text("untracked")
    report = yard.land()
    assert yard.statuses(report) == {"one": "landed"}
    assert yard.git("rev-parse", "HEAD", cwd=top) == report.new
    assert status(yard, top) == "?? mine.txt" and (not linked or status(yard) == "")
    assert (top / "new/deep/file.txt").read_text() == "n\n"
    assert (top / "b.txt/inside").read_text() == "was a file\n"
    assert os.access(top / "d/c.txt", os.X_OK) and not (top / "gone.txt").exists()
    for ref in ("HEAD", "main"):
        assert yard.git("reflog", "-1", "--format=%gs", ref, cwd=top) == f"sessionrun: land {report.new[:12]}"
    assert yard.examine(["one"]) == []


def test_a_sparse_checkout_stays_sparse(yard: Yard) -> None:
    yard.git("sparse-checkout", "set", "--no-cone", "/a.txt")
    yard.add("one", {"a.txt": "landed\n", "d/c.txt": "unseen\n", "d/new.txt": "unseen\n"})
    assert yard.statuses(yard.land()) == {"one": "landed"}
    assert sorted(path.name for path in yard.top.iterdir()) == [".git", "a.txt"]
    assert status(yard) == ""


SIDE = "echo mine > a.txt; git commit -qam mine; ! git"
HIDE = "git update-index --{} a.txt; echo mine > a.txt"
RESTORE = "{hint}; git -C {top} checkout a.txt"
HOLDS = {
    "overlap": ("echo mine > a.txt", "checkout_dirty", "{hint}"),
    "staged": ("echo mine > a.txt; git add a.txt", "checkout_dirty", "{hint}"),
    "untracked": ("mkdir new; echo mine > new/deep", "checkout_untracked", "{hint}"),
    "ignored": (
        "echo new > .git/info/exclude; mkdir -p new/deep; echo mine > new/deep/file.txt",
        "checkout_untracked",
        "{hint}",
    ),
    "file for folder": ("rm b.txt; mkdir b.txt; echo mine > b.txt/inside", "checkout_untracked", "{hint}"),
    "assume-unchanged": (HIDE.format("assume-unchanged"), "checkout_hidden", RESTORE),
    "a pipe": (
        "git update-index --assume-unchanged a.txt; rm a.txt; mkfifo a.txt",
        "checkout_hidden",
        "rm {top}/a.txt; {hint}; git -C {top} checkout a.txt",
    ),
    "skip-worktree": (HIDE.format("skip-worktree"), "checkout_hidden", RESTORE),
    "merge": (f"{SIDE} merge -q side", "checkout_busy", "git -C {top} merge --abort"),
    "rebase": (f"{SIDE} rebase -q side", "rebase", "git -C {top} rebase --abort"),
    "index.lock": ("touch -d @0 .git/index.lock", "index_locked", "{hint}"),  # a younger one is waited for
    "ref lock": ("touch .git/refs/heads/main.lock", "ref_locked", "{hint}"),
    "checked out twice": ("git worktree add -q --force ../linked main", "checked_out_twice", "{hint}"),
}
"""What the user has done, the class of the hold, and what mends it: most often the command that the hold names."""


FAST = ("overlap", "ignored", "index.lock")


OURS = (".git/objects/", ".git/sessionrun-land", ".git/refs/sessionrun", ".git/reftable")


def snapshot(yard: Yard) -> dict[str, bytes]:
    names = [str(path.relative_to(yard.top)) for path in yard.top.rglob("*") if path.is_file()]
    left = {name: (yard.top / name).read_bytes() for name in names if not name.startswith(OURS)}
    refs = yard.git("for-each-ref", "--exclude=refs/sessionrun") if has_table(yard) else ""
    return {**left, "refs": refs.encode()}


@pytest.mark.parametrize("name", [*FAST, *slow(*(name for name in HOLDS if name not in FAST))])
def test_what_is_in_the_way_holds_it_and_it_lands_after_the_mend(yard: Yard, name: str) -> None:
    script, reason_class, mend = HOLDS[name]
    if name == "ref lock" and has_table(yard):
        pytest.skip("a table has one lock for all refs, which a gate needs as well: see tests/git")
    yard.git("update-ref", "refs/heads/side", yard.commit({"a.txt": "side\n"}))
    changes: dict[str, str | None] = {"b.txt": "b2\n"} if name in ("merge", "rebase") else {**CHANGES}
    if name == "file for folder":
        del changes["b.txt"]
        yard.git("rm", "-q", "--cached", "b.txt")
        (yard.top / ".git/info/exclude").write_text("b.txt\n")
        yard.git("commit", "-q", "-m", "no b.txt")
    yard.add("one", changes)
    gates = ("true",) if name == "overlap" else ()
    yard.sh(script)
    before = snapshot(yard)
    report = yard.land(*gates)
    assert report.hold is not None
    assert report.hold.reason_class == reason_class
    assert yard.statuses(report) == {"one": "held"}
    assert snapshot(yard) == before, "nothing was touched"
    yard.sh(mend.format(hint=report.hold.mend, top=yard.top), Path("/"))
    again = yard.land(*gates)
    assert yard.statuses(again) == {"one": "landed"}, again.hold
    assert again.gate_runs == 0, "a hold is tried again without gates"
    assert yard.examine(["one"]) == []


def test_a_switched_branch_is_left_alone(yard: Yard) -> None:
    """Where HEAD is counts when it lands, not what it was before."""
    yard.add("one", {"a.txt": "landed\n"})
    yard.git("switch", "-q", "-c", "other")
    assert yard.statuses(yard.land("git -C '" + str(yard.top) + "' switch -q main")) == {"one": "landed"}
    assert status(yard) == "" and (yard.top / "a.txt").read_text() == "landed\n"
    yard.add("two", {"a.txt": "again\n"}, "main")
    report = yard.land("git -C '" + str(yard.top) + "' switch -q other")
    assert yard.statuses(report) == {"one": "landed", "two": "landed"}
    assert status(yard) == "" and (yard.top / "a.txt").read_text() == "a\n"


@pytest.mark.parametrize("window", ["smudge", pytest.param("hook", marks=pytest.mark.slow), "hook, staged"])
def test_a_switch_to_the_target_that_is_under_way_is_waited_for(yard: Yard, window: str) -> None:
    """It has read the old commit, and says in HEAD only at its end where it is; a hook runs with its lock free."""
    go, begun = yard.top.parent / "go", yard.top.parent / "begun"
    yard.git("switch", "-q", "-c", "other")
    yard.git("rm", "-q", "b.txt")
    yard.git("commit", "-q", "-m", "other")
    yard.add("one", {"one.txt": "1\n"})
    if "staged" in window:
        (yard.top / "mine.txt").write_text("mine\n")
        yard.git("add", "mine.txt")
    waits = yard.top / ".git/hooks/post-index-change" if "hook" in window else yard.top.parent / "slow.sh"
    waits.parent.mkdir(exist_ok=True)
    waits.write_text(
        f"#!/bin/sh\n[ -e {begun} ] || {{ touch {begun}; while [ ! -e {go} ]; do sleep 0.02; done; }}\ncat\n"
    )
    waits.chmod(0o755)
    if window == "smudge":
        (yard.top / ".git/info/attributes").write_text("b.txt filter=slow\n")
        yard.git("config", "filter.slow.smudge", str(waits))
    switch = subprocess.Popen(["git", "switch", "-q", "main"], cwd=yard.top, stdin=subprocess.DEVNULL)
    try:
        eventually(begun.exists)
        reports: list[Report] = []
        landing = Thread(target=lambda: reports.append(yard.land()))
        landing.start()
        landing.join(1.0)  # it must not end before the switch does
        assert not reports
    finally:
        go.touch()
        switch.wait()
        landing.join()
    if reports[0].hold is not None:  # on a machine that stood still for ten seconds
        reports.append(yard.land())
    assert yard.statuses(reports[-1]) == {"one": "landed"}
    assert status(yard) == ("A  mine.txt" if "staged" in window else "")
    assert (yard.top / "one.txt").read_text() == "1\n"


def test_what_writes_an_index_just_before_all_are_locked_is_looked_at_again(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be a switch to the target, which has read the old commit and says so in HEAD a moment later."""
    yard.git("switch", "-q", "--detach")
    yard.add("one", {"one.txt": "1\n"})
    tries: list[str] = []

    def show(fence: Fence, head: str) -> None:
        tries.append(head)
        if len(tries) == 1:
            yard.git("read-tree", "HEAD")
        show_head(fence, head)

    monkeypatch.setattr(moving, "show_head", show)
    assert (yard.statuses(yard.land()), len(tries)) == ({"one": "landed"}, 2)


def test_a_switch_that_ended_after_all_looks_is_seen_by_the_next_turn(yard: Yard) -> None:
    """And what a person has staged since then is their wish: the landing is taken back, and that is said."""
    yard.git("switch", "-q", "--detach")
    yard.add("one", {"one.txt": "1\n"})
    index = (yard.top / ".git/index").read_bytes()
    for is_staged in (False, True):
        assert yard.statuses(yard.land()) == {"one": "landed"}
        new = yard.git("rev-parse", "main")
        (yard.top / ".git/index").write_bytes(index)
        # files and index are those of the old commit; a table tells by the log of HEAD when a switch was
        yard.sh(f"unset GIT_COMMITTER_DATE; git symbolic-ref -m switch HEAD {MAIN}")
        if is_staged:
            (yard.top / "mine.txt").write_text("mine\n")
            yard.git("add", "mine.txt")
            yard.git("commit", "-q", "-m", "mine")
            break
        assert yard.statuses(yard.land()) == {"one": "landed"}
        assert status(yard) == "" and (yard.top / "one.txt").exists()
        yard.git("switch", "-q", "--detach", "main^1")
        yard.git("update-ref", MAIN, "HEAD")
    taker, told = yard.git("rev-parse", "--short=12", "main"), list[str]()
    report = land(yard.request(), told.append)
    assert (report.fates[0].status, report.fates[0].reason) == ("landed", f"then taken back by {taker}")
    assert told == [f"what landed with {new[:12]} was taken back by {taker}"]


@pytest.mark.parametrize("staged", [False, True])
def test_a_landing_that_was_killed_before_a_late_switch_had_its_files_brings_them(
    yard: Yard, staged: bool
) -> None:
    yard.git("switch", "-q", "--detach")
    old = yard.git("rev-parse", "main")
    yard.add("one", {**CHANGES, "one.txt": "1\n"})
    request, new = yard.request(), yard.entries[0].tip
    Slot(request.repository, MAIN).write_record(SlotRecord(request.folder, MAIN, old, new))
    yard.git("update-ref", MAIN, new)
    yard.git("symbolic-ref", "HEAD", MAIN)  # the switch ends: files and index are those of `old`
    if staged:
        (yard.top / "mine.txt").write_text("mine\n")
        yard.git("add", "mine.txt")
    assert "one.txt" in status(yard)
    assert yard.statuses(yard.land()) == {"one": "landed"}
    assert status(yard) == ("A  mine.txt" if staged else "")
    assert (yard.top / "a.txt").read_text() == "new\n" and yard.examine() == []


@needs_calls
@pytest.mark.parametrize("killed", [None, "rename:1:kill:*/.git/index", "unlink:1:kill:*sessionrun-land-*.json"])
def test_what_a_person_has_taken_back_stays_so(yard: Yard, killed: str | None) -> None:
    """Index and files without it are as a switch that ended late leaves them, or a landing that was killed."""
    yard.add("one", {"a.txt": "1\n", "one.txt": "1\n"})
    if killed is None:
        yard.land()
        yard.git("checkout", "-q", "-B", "main", "main^")  # within ten seconds
        yard.entries = []
    else:
        yard.land_killed(rule=killed)
        (yard.top / ".git/index.lock").unlink(missing_ok=True)
        yard.git("reset", "-q", "--hard")
        yard.git("revert", "--no-edit", "-m", "1", "main")
    yard.land()
    assert status(yard) == "" and yard.examine() == []


def test_what_a_person_has_staged_since_is_their_wish(yard: Yard) -> None:
    """The index is as a switch that ended late leaves it, but it is younger than HEAD."""
    yard.add("one", {"one.txt": "1\n"})
    yard.land()
    written = (yard.top / ".git/index").stat().st_mtime - 0.1
    for name in ("HEAD", "reftable/tables.list") if has_table(yard) else ("HEAD",):
        os.utime(yard.top / ".git" / name, (written, written))
    yard.git("rm", "-q", "one.txt")
    yard.land()
    assert status(yard) == "D  one.txt"


def test_what_a_landing_on_one_target_began_is_not_that_of_another(yard: Yard) -> None:
    request, old = yard.request(), yard.git("rev-parse", "main")
    place = Checkout(str(yard.top), str(yard.top / ".git"))
    with open_fence(request.repository) as fence:
        slots = [Slot(request.repository, target) for target in (MAIN, "refs/heads/side")]
        trees = [Tree(slot, fence, place, old, old) for slot in slots]
        trees[0].index.touch()
        assert [tree.is_begun for tree in trees] == [True, False]


def test_what_took_back_a_landing_of_many_files_is_found(yard: Yard) -> None:
    yard.git("switch", "-q", "--detach")
    folder = "/".join("long" * 50 for _ in range(12))
    yard.add("many", {f"{folder}/{number}.txt": "1\n" for number in range(1000)})
    yard.land()
    back = yard.git("commit-tree", "-p", "main", "-m", "back", "main^^{tree}")
    yard.git("update-ref", MAIN, back)
    assert yard.land().fates[0].reason == f"then taken back by {back[:12]}"


def test_a_lock_that_a_killed_git_left_where_another_branch_is_stops_nothing(yard: Yard) -> None:
    other = yard.top.parent / "other"
    yard.git("worktree", "add", "-q", "-b", "side", str(other))
    lock = yard.top / ".git/worktrees/other/index.lock"
    with lock.open("w"):
        os.utime(lock, (0, 0))
        assert not is_left(lock), "a process has it open"
    yard.add("one", {"one.txt": "1\n"})
    yard.git("switch", "-q", "--detach")
    report = yard.land()
    assert yard.statuses(report) == {"one": "landed"} and lock.exists()
    assert report.remarks == (f"{lock} was left by a git that was killed: rm it",)


@needs_calls
@pytest.mark.parametrize("when", ["it is read", "it is locked"])
def test_a_work_tree_that_goes_while_a_landing_looks_at_it_stops_nothing(
    yard: Yard, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = yard.top.parent / "other"
    yard.git("worktree", "add", "-q", "-b", "side", str(other))
    yard.git("switch", "-q", "--detach")
    yard.add("one", {"one.txt": "1\n"})
    if when == "it is locked":
        calls = Calls(yard.top.parent / "calls", "land+:link:1:ENOENT:*/worktrees/other/index.lock")
        done = yard.land_apart(environ=calls.environ("land"))
        assert done.returncode == 0 and calls.has_hit() == [True]
    else:
        script = f'case "$PWD" in */other) rm -rf {other} {yard.top}/.git/worktrees/other;; esac'
        put_first(yard.top.parent, monkeypatch, script)
        yard.land()
        assert not other.exists()
    assert yard.read("one.txt") == "1" and yard.examine(["one"]) == []


@pytest.mark.parametrize("by_person", [True, False])
def test_walled_work_runs_no_filter_unless_a_person_lands_it(yard: Yard, by_person: bool) -> None:
    yard.git("config", "filter.nb.smudge", "cat")
    yard.git("config", "filter.lfs.smudge", "cat")
    yard.add("large", {"large.txt": "1\n", ".gitattributes": "large.txt filter=lfs\n"}, walled=True)
    assert yard.statuses(yard.land(by_person=by_person)) == {"large": "landed"}
    yard.entries = [yard.add("book", {"book.txt": "1\n", ".gitattributes": "book.txt filter=nb\n"}, walled=True)]
    why = "git runs filter.nb at each checkout of book.txt, which was made inside of walls"
    report = yard.land(by_person=by_person)
    if by_person:
        assert (yard.statuses(report), report.remarks) == ({"book": "landed"}, (why,))
    else:
        assert report.hold is not None and (report.hold.reason_class, report.hold.reason) == ("filter", why)


def test_a_target_that_moves_meanwhile_is_merged_anew(yard: Yard) -> None:
    yard.add("one", {"one.txt": "1\n"})
    mark = yard.top.parent / "moved"
    commit = "git -c user.name=B -c user.email=b@localhost commit -q --allow-empty -m theirs"
    report = yard.land(f"test -e '{mark}' || {{ touch '{mark}'; cd '{yard.top}'; {commit}; }}")
    assert yard.statuses(report) == {"one": "landed"}
    assert yard.git("log", "-1", "--format=%s", "main^1") == "theirs"
    assert status(yard) == "" and report.gate_runs == 1, "the merge has the same files"


def test_attributes_in_the_checkout_decide_nothing(yard: Yard) -> None:
    """With `merge=union` a conflict would vanish."""
    (yard.top / ".gitattributes").write_text("*.txt merge=union\n")
    yard.git("update-ref", "refs/heads/side", yard.commit({"a.txt": "theirs\n"}))
    yard.add("one", {"a.txt": "mine\n"})
    report = yard.land(target="refs/heads/side")
    assert yard.statuses(report) == {"one": "bounced"}
