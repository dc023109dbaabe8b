"""The task queue: the contract of its backends, `task_queue.json` with its shape and its rules, and Beads."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import beads_standin
import pytest
from beads_standin import STORE, answer
from conftest import Command, eventually
from hypothesis import given
from hypothesis import strategies as st
from stages import make_program

from sessionrun.model.errors import InputError, StoreError
from sessionrun.model.places import Repository
from sessionrun.queue import beads
from sessionrun.queue.beads import ASKED_AGAIN, PROGRAMS, BeadsFeed, Program
from sessionrun.queue.feed import Feed, settle_groups
from sessionrun.queue.file import FINDINGS, FileContents, FileFeed
from sessionrun.queue.open import load_tasks, parse_list
from sessionrun.queue.task import (
    LOCK_NAME,
    Changes,
    Draft,
    QueuePlace,
    QueueTask,
    Worker,
    find_circle,
    find_place,
)
from sessionrun.store import locks

# --- what every backend has to do: one story, told to a feed by the methods of `Feed` alone ---

ANN = Worker("w1", "11111111-1111-4111-8111-111111111111")
BOB = Worker("w2", "22222222-2222-4222-8222-222222222222")


def create(feed: Feed, title: str, **values: object) -> QueueTask:
    (task,) = feed.create([Draft(title, **values)])  # type: ignore[arg-type]
    assert task is not None
    return task


def ready(feed: Feed, group: str | None = None) -> list[str]:
    """The titles of what may be claimed, in its order."""
    return [task.title for task in load_tasks(feed, ready=True, group=group)]


def check_feed(feed: Feed) -> None:
    """The story: five tasks, one of them blocked, two in a group."""
    assert feed.load() == load_tasks(feed, ready=True) == []
    low = create(feed, "low", priority=-1)
    plain = create(feed, "plain", body="First line\n\n- second, with \u00fc\n")
    blocked = create(feed, "blocked", priority=2, depends=(plain.id,))
    parts = [create(feed, title, group="convoy") for title in ("part 1", "part 2")]
    expected = ("First line\n\n- second, with \u00fc", "open", True)
    assert (plain.body.strip(), plain.status, plain.is_ready) == expected
    assert (blocked.depends, blocked.blocked_by, blocked.is_ready) == ((plain.id,), (plain.id,), False)
    (group,) = (task for task in feed.load() if task.is_group)
    assert (group.title, group.is_ready) == ("convoy", False)
    assert {part.group for part in parts} == {group.id}
    assert ready(feed) == ["plain", "part 1", "part 2", "low"]
    assert ready(feed, "convoy") == ready(feed, group.id) == ["part 1", "part 2"]
    check_claims(feed, plain, blocked)
    check_groups(feed, group, parts)
    check_changes(feed, low)


def stand(task: QueueTask | None) -> tuple[str, Worker | None, str | None] | None:
    """Its status, which worker has it, and why."""
    return None if task is None else (task.status, task.worker, task.reason)


def check_claims(feed: Feed, plain: QueueTask, blocked: QueueTask) -> None:
    """One worker has a task; nothing that is blocked is ever claimed; a claim of a dead worker comes back."""
    assert feed.claim(blocked.id, ANN) is None
    claimed = feed.claim(plain.id, ANN)
    assert stand(claimed) == ("claimed", ANN, None)
    assert feed.claim(plain.id, BOB) is None
    assert feed.claim(plain.id, ANN) == claimed  # it asks again after a crash
    assert feed.close(plain.id, worker=BOB) is None
    assert feed.reopen(plain.id, worker=BOB) is None
    assert feed.show(plain.id).status == "claimed"
    assert feed.claim(blocked.id, BOB) is None  # what it depends on is only claimed
    free = feed.edit(blocked.id, Changes(depends=()))
    with pytest.raises(InputError, match=f"{plain.id}: it is claimed; close or reopen it first"):
        feed.remove(plain.id)
    assert feed.edit(free.id, Changes(depends=(plain.id,))).blocked_by == (plain.id,)
    gone = "its worker w1 is gone"
    assert stand(feed.reopen(plain.id, reason=gone, worker=ANN)) == ("open", None, gone)
    assert feed.close(plain.id, worker=ANN) is None  # which was not dead after all
    assert stand(feed.claim(plain.id, BOB)) == ("claimed", BOB, gone)  # for the prompt of the next worker
    assert stand(feed.close(plain.id, reason="merged", worker=BOB)) == ("closed", None, "merged")
    opened = feed.reopen(plain.id)
    assert opened is not None and opened.reason in (None, ASKED_AGAIN)  # not that of an earlier time
    assert feed.claim(plain.id, ANN) is not None
    assert feed.close(plain.id, worker=ANN) is not None
    assert ready(feed)[0] == "blocked"
    assert feed.claim(blocked.id, ANN) is not None
    failed = feed.reopen(blocked.id, reason="three attempts failed", worker=ANN)
    assert stand(failed) == ("open", None, "three attempts failed")
    for _ in range(2):  # the second time it is what was asked for
        assert feed.close(blocked.id) is not None


def check_groups(feed: Feed, group: QueueTask, parts: list[QueueTask]) -> None:
    """A group closes with its last task, and is open while one of them is."""
    assert feed.claim(group.id, ANN) is None
    with pytest.raises(InputError, match=f"{group.id}: it is a group.*{parts[0].id}, {parts[1].id}"):
        feed.close(group.id)
    with pytest.raises(InputError, match=f"{group.id}: it is the group of {parts[0].id}, {parts[1].id}"):
        feed.remove(group.id)
    feed.close(parts[0].id)
    assert feed.show(group.id).status == "open"
    feed.close(parts[1].id)
    assert feed.show(group.id).status == "closed"
    feed.reopen(parts[0].id)
    assert feed.show(group.id).status == "open"
    feed.close(parts[0].id)
    assert feed.show(group.id).status == "closed"
    check_outer_groups(feed, group)


def check_outer_groups(feed: Feed, group: QueueTask) -> None:
    """What a task does to its group, that does to the groups around it."""
    outer = feed.edit(group.id, Changes(group="fleet")).group
    assert outer is not None

    def stand() -> list[str]:
        return [feed.show(name).status for name in (group.id, outer)]

    assert stand() == ["closed", "closed"]
    late = create(feed, "late", group=group.id)
    assert stand() == ["open", "open"]
    feed.edit(late.id, Changes(group=""))
    assert stand() == ["closed", "closed"]
    feed.edit(late.id, Changes(group=group.id))
    assert stand() == ["open", "open"]
    feed.remove(late.id)
    assert stand() == ["closed", "closed"]


def check_changes(feed: Feed, low: QueueTask) -> None:
    other = create(feed, "other", depends=(low.id,))
    with pytest.raises(InputError):
        feed.edit(low.id, Changes(depends=(other.id,)))  # a circle
    with pytest.raises(InputError):
        create(feed, "lost", depends=("nosuch",))
    for refused in (lambda: feed.show("nosuch"), lambda: feed.close("nosuch"), lambda: ready(feed, "nosuch")):
        with pytest.raises(InputError, match="the queue has no"):
            refused()
    with pytest.raises(InputError, match=f"{low.id}: {other.id} depends on it"):
        feed.remove(low.id)
    changed = feed.edit(other.id, Changes("-new title", "new body", 1, (), None))
    assert (changed.title, changed.body, changed.priority, changed.depends) == ("-new title", "new body", 1, ())
    assert ready(feed) == ["-new title", "low"]
    feed.remove(low.id)
    assert ready(feed) == ["-new title"]
    assert feed.create([Draft("-new title"), Draft("newer"), Draft("newer")], unless_known=True)[::2] == [
        None,
        None,
    ]
    assert ready(feed) == ["-new title", "newer"]


# --- the task queue in a file ---

SEED = {
    "tasks": [
        {"id": "task-1", "title": "Add a chart", "status": "done", "note": "by hand"},
        {"id": "task-2", "title": "Fix it", "status": "pending", "description": "All of it", "parent": "task-4"},
        {"id": "task-3", "title": "Test it", "status": "in_progress", "parent": "task-4"},
        {"id": "task-4", "title": "A goal", "status": "pending"},
        {"id": "task-5", "title": "Later", "status": "someday"},
        {"id": "old", "title": "Old", "status": "closed"},
    ],
    "next_id": 5,
    "owner": {"name": "somebody"},
}
"""A file as the dispatcher writes it that the format comes from, with keys and words of others."""


@pytest.fixture
def feed(own_place: Path) -> FileFeed:
    return FileFeed(find_place(own_place), now=lambda: 0.0)


def load(feed: Feed) -> Any:
    return json.loads(feed.place.read_bytes())


def write(feed: Feed, value: object) -> None:
    feed.place.write_text(json.dumps(value))


def test_the_contract_of_backends(feed: FileFeed) -> None:
    checked: Feed = feed
    check_feed(checked)
    assert feed.sync() is False


def test_a_foreign_file_is_understood_and_kept(feed: FileFeed) -> None:
    write(feed, SEED)
    feed.place.chmod(0o640)
    tasks = {task.id: task for task in feed.load()}
    assert [(task.status, task.is_group) for task in tasks.values()] == [
        ("closed", False),
        ("open", False),
        ("claimed", False),
        ("open", True),
        ("deferred", False),
        ("closed", False),
    ]
    expected = ("All of it", None, "someday")
    assert (tasks["task-2"].body, tasks["task-3"].worker, tasks["task-5"].backend_status) == expected
    assert ready(feed) == ["Fix it"]
    assert feed.claim("task-2", ANN) is not None
    assert create(feed, "New").id == "task-6"  # task-5 is taken
    changed = load(feed)
    assert [*changed] == [*SEED]
    assert changed["owner"] == SEED["owner"]
    assert changed["next_id"] == 7
    claim = {"worker": "w1", "session": ANN.session, "at": "1970-01-01T00:00:00.000Z"}
    assert changed["tasks"][1] == {**SEED["tasks"][1], "status": "in_progress", "claim": claim}  # type: ignore[index]
    assert [changed["tasks"][place] for place in (0, 2, 3, 4, 5)] == [SEED["tasks"][n] for n in (0, 2, 3, 4, 5)]  # type: ignore[index]
    assert changed["tasks"][6] == {"id": "task-6", "title": "New", "status": "pending"}
    feed.close("task-2")
    assert load(feed)["tasks"][1] == {**SEED["tasks"][1], "status": "done"}  # type: ignore[index]
    assert feed.place.stat().st_mode & 0o777 == 0o640


def test_what_an_entry_may_hold_is_documented(feed: FileFeed) -> None:
    need = create(feed, "need")
    task = create(feed, "all", body="b", priority=1, depends=(need.id,), group="group")
    feed.close(need.id, reason="r")
    feed.claim(task.id, ANN)
    entries_by_title = {entry["title"]: entry for entry in load(feed)["tasks"]}
    text = (Path(__file__).parents[2] / "docs" / "files.md").read_text()
    rows = re.findall(r"^\| (`.*?) \|", text.split("### Task of the queue")[1].split("\n#")[0], re.MULTILINE)
    documented = {word for row in rows for word in re.findall(r"`(\w+)`", row)}
    assert documented == {key for entry in entries_by_title.values() for key in entry}
    assert [*load(feed)] == ["tasks", "next_id"]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b'{"tasks": [}', "line 1, column 12: not valid JSON"),
        (b"", "line 1, column 1: not valid JSON"),
        (b"\xff", "is not UTF-8"),
        (b"[]", 'is not an object with "tasks"'),
        (b'{"tasks": {}}', '"tasks" is not a list'),
        (b'{"next_id": "1"}', '"next_id" is not a whole number'),
        (b'{"tasks": [], "tasks": []}', 'key "tasks" is given twice'),
        (b'{"tasks": [1]}', "tasks[0]: is not an object"),
        (b'{"tasks": [{"id": "a", "title": "A"}, {"title": "B"}]}', 'tasks[1]: "id" is missing'),
        (b'{"tasks": [{"id": "a", "title": "A"}, {"id": "a", "title": "B"}]}', 'the id "a" is given twice'),
        (b'{"tasks": [{"id": "../a", "title": "A"}]}', 'the id "../a" must be'),
        (b'{"tasks": [{"id": "a", "title": "A", "status": 1}]}', '"status" is not text'),
        (b'{"tasks": [{"id": "a", "title": "A", "priority": "1"}]}', '"priority" is not a whole number'),
        (b'{"tasks": [{"id": "a", "title": "A", "depends_on": "b"}]}', '"depends_on" is not a list of ids'),
    ],
)
def test_a_damaged_file_is_one_line_and_stays(feed: FileFeed, content: bytes, problem: str) -> None:
    feed.place.write_bytes(content)
    for refused in (feed.load, lambda: create(feed, "x"), lambda: feed.close("a"), lambda: feed.claim("a", ANN)):
        with pytest.raises(InputError) as caught:
            refused()
        assert str(caught.value).startswith(f"{feed.place}: ")
        assert problem in str(caught.value)
        assert "\n" not in str(caught.value)
    assert feed.place.read_bytes() == content


def test_a_claim_without_its_parts_a_word_of_others_and_a_need_that_is_gone(feed: FileFeed) -> None:
    b, c = {"id": "b", "title": "B", "status": "open"}, {"id": "c", "title": "C", "depends_on": ["gone", "gone"]}
    write(feed, {"tasks": [{"id": "a", "title": "A", "status": "in_progress", "claim": {"worker": 1}}, b, c]})
    assert (feed.show("a").worker, feed.show("c").blocked_by, ready(feed)) == (None, ("gone",), ["B"])
    feed.reopen("a")
    feed.reopen("b", reason="why")
    assert load(feed)["tasks"] == [{"id": "a", "title": "A", "status": "pending"}, {**b, "reason": "why"}, c]


def test_tasks_wait_for_what_their_groups_wait_for(feed: FileFeed) -> None:
    gate = create(feed, "gate")
    inner = create(feed, "inner", group="inside")
    feed.edit("inside", Changes(group="outside"))
    feed.edit("outside", Changes(depends=(gate.id,)))
    assert feed.show(inner.id).blocked_by == (gate.id,)
    assert ready(feed) == ["gate"]
    around, own = Changes(depends=("outside",)), Changes(depends=(inner.id,))
    for name, changes, circle in (
        (gate.id, around, "task-1 -> outside -> task-1"),
        (inner.id, around, "outside -> inside -> task-2 -> outside"),
        ("inside", own, "inside -> task-2 -> inside"),
        ("outside", Changes(group="inside"), "outside -> inside -> outside"),
    ):
        with pytest.raises(InputError, match=f"in a circle: {circle}$"):
            feed.edit(name, changes)
    feed.close(gate.id)
    assert ready(feed, "outside") == ["inner"]
    feed.close(inner.id)
    assert [task.status for task in feed.load()] == ["closed"] * 4


names = st.sampled_from("abcdef")


@given(st.dictionaries(names, st.tuples(st.sets(names, max_size=2), st.none() | names), min_size=1))
def test_without_a_circle_all_tasks_get_their_turn(drawn: dict[str, tuple[set[str], str | None]]) -> None:
    """Close what is ready until nothing is: exactly the queues without a circle come to an end."""
    kept = {
        name: (needs & drawn.keys(), group if group in drawn else None) for name, (needs, group) in drawn.items()
    }
    contents = FileContents({"tasks": [], "next_id": 1})
    for name, (needs, group) in kept.items():
        contents.entries.append({"id": name, "title": name, "depends_on": sorted(needs), "parent": group})
    circle = find_circle(contents.load())
    while found := [task for task in contents.load().values() if task.is_ready]:
        contents.mark(found[0], "closed", None)
        settle_groups(contents, found[0].group)
    left = [task for task in contents.load().values() if task.status != "closed"]
    assert bool(left) == (circle is not None)
    assert circle is None or (circle[0] == circle[-1] and set(circle) <= kept.keys())


def test_a_refused_change_writes_nothing(feed: FileFeed) -> None:
    task = create(feed, "only")
    before = feed.place.stat()
    assert feed.create([Draft("only")], unless_known=True) == [None]
    assert feed.claim("nosuch", ANN) is None
    assert feed.close(task.id, worker=BOB) is None
    feed.reopen(task.id)
    with pytest.raises(InputError):
        feed.create([Draft("good"), Draft("bad", depends=("nosuch",))])
    after = feed.place.stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


def test_the_queue_is_that_of_the_main_checkout(own_place: Path) -> None:
    assert find_place(own_place) == (own_place, own_place / f".{LOCK_NAME}")
    git = ["git", "-c", "user.name=A", "-c", "user.email=a@localhost"]
    subprocess.run([*git, "init", "-q", "main"], check=True)
    main = own_place / "main"
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "first"], cwd=main, check=True)
    subprocess.run([*git, "worktree", "add", "-q", "../linked"], cwd=main, check=True)
    (own_place / "linked" / "deep").mkdir()
    wanted = (main, main / ".git" / LOCK_NAME)
    assert find_place(main) == find_place(own_place / "linked" / "deep") == wanted
    subprocess.run([*git, "clone", "-q", "--bare", "main", "bare.git"], check=True)
    subprocess.run([*git, "worktree", "add", "-q", "../of-bare"], cwd=own_place / "bare.git", check=True)
    assert find_place(own_place / "of-bare") == (own_place / "of-bare", own_place / "bare.git" / LOCK_NAME)
    repository = Repository(str(main), str(main / ".git"), "main", "", "")
    with FileFeed(find_place(own_place / "linked"))._hold():
        assert locks.is_held(wanted[1])
        FINDINGS.sweep_repository(repository)
        assert wanted[1].exists(), "clean leaves it while somebody holds it"
    FINDINGS.sweep_repository(repository)
    assert not wanted[1].exists()


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", []),
        ("# Head\n\ntext - no entry\n", []),
        ("- one\n* two\n+ three\n4. four\n5) five\n", ["one", "two", "three", "four", "five"]),
        ("- [ ] open\n- [x] done\n  its text\n- [X] done\n", ["open"]),
        ("- **Bold title** \u2013 why\n- __Other__: how\n- **whole**\n", ["Bold title", "Other", "whole"]),
        ("- one\n  - nested\n  more\n\n      code\n\ntext\n- two\n", ["one", "two"]),
        ("```\n- in code\n```\n- out\n", ["out"]),
        (
            "- long entry\n\n```sh\n$ bd create \"short\" -p 1  # why\nbr create 'two words'\nls\n```\n",
            ["short", "two words"],
        ),
        ('bd create "not in code"\n- entry\n', ["entry"]),
        ('~~~\nbd create "open quote\nbd create -h\n~~~\n- entry\n', ["entry"]),
        ("\ufeff- after a mark\n", ["after a mark"]),
        ("  - indented\n  - list\n    - nested\n", ["indented", "list"]),
        ("- one\n\t- nested by a tab\n- two\n", ["one", "two"]),
    ],
)
def test_task_lists(text: str, wanted: list[str]) -> None:
    assert [draft.title for draft in parse_list(text)] == wanted


def test_the_text_of_an_entry_of_a_list() -> None:
    drafts = parse_list("- **Title** \u2013 why\n  - nested\n\n    more\n- second\n\t- by a tab\n")
    assert drafts == [Draft("Title", "why\n- nested\n\n  more"), Draft("second", "- by a tab")]


def test_many_tasks_cost_little(feed: FileFeed) -> None:
    """Twice as many tasks make about twice as many steps, not four times: what is looked at is counted."""
    looks: list[int] = []
    events: list[str] = []
    first = create(feed, "first").id
    for count in (200, 400):
        drafts = [
            Draft(f"{count}-{number}", depends=(first,), group=f"{count}-{number % 7}") for number in range(count)
        ]
        events.clear()
        sys.setprofile(lambda frame, event, argument: events.append(event))
        feed.create(drafts)
        sys.setprofile(None)
        looks.append(events.count("call"))
        feed.place.unlink()
        first = create(feed, "first").id
    assert looks[1] < 3 * looks[0]


# --- the task queue in Beads ---

REAL = next((path for name in PROGRAMS if (path := shutil.which(name))), None)


@pytest.fixture
def place(own_place: Path) -> QueuePlace:
    (own_place / ".git").mkdir()
    (own_place / beads.PLACE).mkdir()
    return find_place(own_place)


class StandIn(Program):
    """The stand-in, called and not run: an interpreter for each command would cost most of the time."""

    old = False
    late: tuple[str, ...] = ()
    """A command that another program runs just before a claim."""
    is_locked = False
    """Whether no claim can be made now."""

    def execute(self, words: Sequence[str]) -> tuple[int, str, str]:
        if "--claim" in words and self.is_locked:
            return 1, "", "Error: database is locked\nmore\n"
        if "--claim" in words and self.late:
            answer(self.late, self.top)
        return answer(words, self.top, old=self.old)


@pytest.fixture
def program(place: QueuePlace) -> StandIn:
    return StandIn("/nowhere/bd", place.top)


@pytest.fixture
def bd(place: QueuePlace, program: StandIn) -> BeadsFeed:
    return BeadsFeed(place, program)


@pytest.mark.parametrize("old", [False, True], ids=["new version", "old version"])
def test_the_stand_in_written_from_the_documents(
    bd: BeadsFeed, program: StandIn, say: Callable[[str], None], old: bool
) -> None:
    program.old = old
    check_feed(bd)
    assert bd.sync() is False  # it has no such command
    say("Beads: with a stand-in for bd, written from its documents")


@pytest.fixture
def real(own_place: Path, say: Callable[[str], None]) -> BeadsFeed:
    """A feed of the real program, with no beads."""
    if REAL is None:
        pytest.skip("neither bd nor br is on PATH: only the stand-in for bd was tested")
    subprocess.run(["git", "init", "-q"], check=True)
    subprocess.run([REAL, "init"], check=True, capture_output=True)
    version = subprocess.run([REAL, "--version"], capture_output=True, text=True, check=True).stdout
    say(f"Beads: with the real program, {version.strip()}")
    found = beads.find(find_place(own_place))
    assert found is not None
    return found


@pytest.mark.slow
def test_the_real_program(real: BeadsFeed) -> None:
    check_feed(real)
    assert real.sync() is True


@pytest.mark.parametrize(
    ("late", "stand"),
    [
        (("dep", "add", "bd-1", "bd-2"), ("open", ("bd-2",))),
        (("update", "bd-1", "--claim", "--actor=eve"), ("claimed", ())),
    ],
    ids=["it gets a blocker", "another claims it"],
)
def test_a_bead_that_was_found_ready_and_is_not_any_more(
    bd: BeadsFeed, program: StandIn, late: tuple[str, ...], stand: tuple[str, tuple[str, ...]]
) -> None:
    first, _ = create(bd, "first"), create(bd, "second")
    bd.reopen(first.id, reason="why")
    program.late = late
    assert bd.claim(first.id, ANN) is None
    task = bd.show(first.id)
    assert ((task.status, task.blocked_by), task.worker) == (stand, None), "it is given back, or another's"
    assert task.reason == "why", "a claim that was none leaves no trace"


def test_a_claim_that_fails_is_no_bead_that_is_taken_and_one_that_was_deleted_is_none(
    bd: BeadsFeed, program: StandIn
) -> None:
    first = create(bd, "first")
    program.is_locked = True
    with pytest.raises(InputError, match=r"^bd update: database is locked$"):
        bd.claim(first.id, ANN)
    program.is_locked = False
    assert bd.claim(first.id, ANN) is not None
    program.run("update", first.id, "--status=tombstone")  # what a version leaves of it
    assert bd.load() == []
    with pytest.raises(InputError, match="the queue has no task 'bd-1'"):
        bd.show(first.id)


def test_what_is_somebody_s_is_not_ours(bd: BeadsFeed, program: StandIn) -> None:
    """A person's bead, one that waits for another reason, and one whose group is blocked."""
    mine, deferred, gate = (create(bd, title) for title in ("mine", "deferred", "gate"))
    program.run("update", mine.id, "--assignee=eve")
    program.run("update", deferred.id, "--status=deferred")
    part = create(bd, "part", group="epic")
    assert part.group is not None
    program.run("dep", "add", part.group, gate.id)
    program.run("update", gate.id, "--claim", "--actor=eve")
    assert ready(bd) == []
    by_title = {task.title: task for task in bd.load()}
    expected = {"mine": "deferred", "deferred": "deferred", "gate": "claimed", "part": "deferred", "epic": "open"}
    assert {title: task.status for title, task in by_title.items()} == expected
    assert by_title["gate"].worker is None
    for task in by_title.values():
        assert bd.claim(task.id, ANN) is None


@pytest.mark.parametrize(
    ("draft", "problem"),
    [
        (Draft("urgent", priority=3), r"the queue \(beads\) has priorities from -2 to 2, not 3"),
        (Draft("long", "x" * 100_001), "bd takes no text of more than 100000 bytes"),
        (Draft("\udcff"), "a title, text or reason is not UTF-8"),
    ],
    ids=["priority", "length", "letters"],
)
def test_what_beads_cannot_hold(bd: BeadsFeed, draft: Draft, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        bd.create([draft])
    assert bd.load() == []


@pytest.mark.slow
def test_the_command_line_finds_beads(
    place: QueuePlace, sessionrun: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = f'exec {sys.executable} -I -S {beads_standin.__file__} "$@"'
    bd = make_program(place.top.parent / "bin" / "bd", script)
    monkeypatch.setenv("PATH", f"{bd.parent}{os.pathsep}{os.defpath}")
    task_id = sessionrun("queue", "add", "a bead").stdout.strip()
    listed = sessionrun.load("queue", "list")
    assert (listed["backend"], [task["id"] for task in listed["tasks"]]) == ("beads", [task_id])
    assert sessionrun.load("queue", "list", "--backend", "file")["tasks"] == []
    (place.top / STORE).write_text("{")
    done = sessionrun("queue")
    assert done.returncode == 2
    assert done.stderr.startswith("sessionrun: error: bd ready: ")
    assert done.stderr.count("\n") == 1


def test_beads_without_its_program(place: QueuePlace, sessionrun: Command) -> None:
    done = sessionrun("queue", env={"PATH": os.defpath})
    assert done.returncode == 0
    assert "neither bd nor br is on PATH: the queue is task_queue.json" in done.stderr
    done = sessionrun("queue", "--backend", "beads", env={"PATH": os.defpath})
    assert (done.returncode, "there is no queue of beads here" in done.stderr) == (2, True)


def test_a_program_that_does_not_run(place: QueuePlace) -> None:
    program = make_program(place.top / "br", "")
    program.write_text("not a program")
    with pytest.raises(StoreError, match="Exec format error"):
        BeadsFeed(place, Program(str(program), place.top)).load()
    make_program(program, "echo no JSON")
    with pytest.raises(StoreError, match="br ready: what it printed is not JSON: 'no JSON'"):
        BeadsFeed(place, Program(str(program), place.top)).load()


@pytest.mark.slow
def test_a_program_that_hangs_is_ended_with_what_it_started(place: QueuePlace) -> None:
    pid = place.top / "pid"
    program = make_program(place.top / "bd", f"sleep 600 &\necho $! > {pid}\nwait")
    with pytest.raises(StoreError, match="bd ready did not end within 10 s"):
        BeadsFeed(place, Program(str(program), place.top)).load()
    eventually(lambda: not Path(f"/proc/{pid.read_text().strip()}/cmdline").exists())
