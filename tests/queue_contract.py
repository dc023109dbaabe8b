"""What every backend of the task queue has to do: one story, told to a feed by the methods of `Feed` alone."""

from __future__ import annotations

import pytest

from sessionrun.model.errors import InputError
from sessionrun.queue.beads import ASKED_AGAIN
from sessionrun.queue.feed import Feed
from sessionrun.queue.open import load_tasks
from sessionrun.queue.task import Changes, Draft, QueueTask, Worker

ANN = Worker("w1", "11111111-1111-4111-8111-111111111111")
BOB = Worker("w2", "22222222-2222-4222-8222-222222222222")


def create(feed: Feed, title: str, **values: object) -> QueueTask:
    (task,) = feed.create([Draft(title, **values)])  # type: ignore[arg-type]
    assert task is not None
    return task


def ready(feed: Feed, group: str | None = None) -> list[str]:
    """The titles of what may be claimed, in its order."""
    return [task.title for task in find_ready(feed, group)]


def find_ready(feed: Feed, group: str | None = None) -> list[QueueTask]:
    """What may be claimed, in its order."""
    return load_tasks(feed, ready=True, group=group)


def check_feed(feed: Feed) -> None:
    """The story: five tasks, one of them blocked, two in a group."""
    assert feed.load() == find_ready(feed) == []
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
    for refused in (lambda: feed.show("nosuch"), lambda: feed.close("nosuch"), lambda: find_ready(feed, "nosuch")):
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
