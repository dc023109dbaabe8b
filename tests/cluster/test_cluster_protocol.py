"""The protocol of a cluster, without processes: permits, leases, heads and links on a virtual clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cluster_simulation import TIMERS, play
from conftest import slow_seed

from sessionrun.cluster.dask_executor import choose_node
from sessionrun.cluster.ends import Head, Link, Opened, Timers, find_fault, name_epoch, parse_timers
from sessionrun.cluster.messages import LEASE_OVER, NEVER_DELIVERED, NEVER_SUBMITTED, NOT_THERE, STOPPED, Message
from sessionrun.cluster.permits import CLOSED_S, Permits
from sessionrun.keeper.lease import Lease, LeaseFile
from sessionrun.model.asked import Sandbox
from sessionrun.walls.trial import list_problems

NO_BWRAP = {"project": "bubblewrap is not installed"}
JOB = "s/t/1/1/work/1"


class Cluster:
    """Permits, one session and nodes, with messages that a test delivers by hand."""

    def __init__(self) -> None:
        self.now = 0.0
        self.permits = Permits("e1", self.now, TIMERS)
        self.head = Head("s", 1, {})
        self.links: dict[str, Link] = {}
        self.call()
        self.call()
        self.tick("a")

    def call(self, head: Head | None = None) -> Any:
        head = head or self.head
        call = head.make_call(0.0)
        return self.deliver(head, call)

    def deliver(self, head: Head, call: Message) -> Any:
        state = self.permits.take_call(self.now, call)
        reply = self.permits.reply(self.now, "s") if state == "ok" else self.permits.reply_nothing(state)
        head.take(call, reply)
        return reply

    def make(self, node: str = "a", *, held: Any = (), ends: Any = (), out: Any = ()) -> Message:
        link = self.links.setdefault(node, Link(node, node, 2, "1"))
        return link.make_tick(round(self.now * 1e9), held=held, ends=ends, out=out, wait_s=0.0)

    def tick(self, node: str = "a", *, held: Any = (), ends: Any = (), out: Any = ()) -> Any:
        assert self.permits.take_tick(self.now, self.make(node, held=held, ends=ends, out=out))
        answer = self.permits.answer_node(self.now, node)
        assert self.links[node].take(answer)
        return answer

    def submit(self, job: str = JOB, node: str = "a") -> Any:
        self.head.submit(job, Opened(node, self.head.epoch or ""), {"argv": ["true"]})
        return self.call()

    def restart(self) -> None:
        self.permits = Permits("e2", self.now, TIMERS)


def end(job: str = JOB) -> Message:
    return {"job": job, "kind": "exit", "files": {}}


def test_a_job_goes_to_its_node_and_its_end_comes_back_until_it_is_dropped() -> None:
    cluster = Cluster()
    cluster.submit()
    assert cluster.tick()["orders"] == {JOB: {"argv": ["true"]}}
    assert cluster.tick(held=[JOB])["orders"] == {}
    assert cluster.tick(ends=[end()])["ack"] == []
    (told,) = cluster.call()["ends"]
    assert told == end()
    cluster.head.drop(JOB)
    cluster.call()
    assert cluster.tick(ends=[end()])["ack"] == [JOB]


def test_that_an_end_may_be_forgotten_is_in_the_next_answer_and_is_no_reason_for_one() -> None:
    cluster = Cluster()
    cluster.submit()
    cluster.tick()
    tick = cluster.make(ends=[end()])
    assert cluster.permits.take_tick(cluster.now, tick)
    cluster.call()
    cluster.head.drop(JOB)
    cluster.call()
    assert not cluster.permits.node_has_news("a")
    assert cluster.permits.answer_node(cluster.now, "a")["ack"] == [JOB]
    assert cluster.permits.take_tick(cluster.now, cluster.make(held=[JOB]))
    assert cluster.permits.node_has_news("a")  # what no session wants is killed at once


def test_an_order_whose_answer_was_dropped_is_offered_again_and_only_then() -> None:
    cluster = Cluster()
    cluster.submit()
    link = cluster.links["a"]
    cluster.permits.take_tick(cluster.now, cluster.make())
    answer = cluster.permits.answer_node(cluster.now, "a")
    cluster.make()  # sent before the answer came: so that answer counts for nothing
    assert not link.take(answer)
    assert cluster.tick()["orders"].keys() == {JOB}
    assert cluster.tick(held=[JOB])["orders"] == {}


def test_a_node_that_does_not_tick_is_silent_within_its_lease_until_it_ticks() -> None:
    cluster = Cluster()

    def shown() -> tuple[float | None, bool]:
        cluster.call()
        return cluster.head.nodes["a"]["silent_s"], cluster.head.nodes["a"]["lives"]

    assert shown() == (None, True)
    cluster.now += TIMERS.silence - 0.1
    assert shown() == (None, True)
    cluster.now += 0.2
    assert shown() == (round(TIMERS.silence + 0.1, 1), True)
    cluster.tick()
    assert shown() == (None, True)
    cluster.now += TIMERS.lease + 0.1
    assert shown() == (round(TIMERS.lease + 0.1, 1), False)
    cluster.tick()
    assert shown() == (None, True)


def test_without_a_tick_a_job_is_dead_when_the_lease_and_the_margin_are_over() -> None:
    cluster = Cluster()
    cluster.submit()
    cluster.tick()
    cluster.now = TIMERS.lease + TIMERS.margin - 0.01
    assert cluster.call()["dead"] == []
    cluster.now += 0.02
    (dead,) = cluster.call()["dead"]
    assert (dead["job"], dead["reason"], dead["ran"]) == (JOB, LEASE_OVER, True)
    (order,) = cluster.tick(held=[JOB])["stop"]  # it is killed; its end is kept until the session has its say
    assert order[0] == JOB
    cluster.head.drop(JOB)
    cluster.call()
    assert cluster.tick(held=[JOB])["void"] == [JOB]


def test_a_new_scheduler_takes_up_what_it_is_told_and_kills_nothing_before() -> None:
    cluster = Cluster()
    cluster.submit()
    cluster.tick()
    gone = "s/u/1/1/work/1"
    cluster.submit(gone)
    cluster.restart()
    early = cluster.tick(held=[JOB])
    assert (early["renew"], early["void"], early["stop"]) == (False, [], [])
    cluster.call()
    cluster.call()
    assert cluster.call()["dead"] == []
    assert cluster.tick(held=[JOB])["renew"]
    (dead,) = cluster.call()["dead"]
    assert (dead["job"], dead["reason"], dead["ran"]) == (gone, NOT_THERE, False)
    cluster.tick(ends=[end()])
    assert cluster.call()["ends"] == [end()]


def test_a_new_scheduler_with_a_shorter_lease_waits_for_the_longer_one_of_before() -> None:
    cluster = Cluster()
    cluster.head.opened[JOB] = Opened("a", name_epoch("old", replace(TIMERS, lease=60.0)))
    cluster.restart()
    cluster.call()
    cluster.call()
    cluster.now = 61.0
    assert cluster.call()["dead"] == []
    cluster.now = 60.0 + TIMERS.margin + 0.1
    assert [dead["reason"] for dead in cluster.call()["dead"]] == [LEASE_OVER]


def test_a_new_scheduler_kills_jobs_of_a_session_that_does_not_come_and_keeps_their_ends() -> None:
    cluster = Cluster()
    cluster.submit()
    cluster.tick()
    cluster.restart()
    cluster.tick(held=[JOB])
    cluster.now = TIMERS.lease + TIMERS.margin + 0.1
    told = cluster.tick(held=[JOB])
    assert ([job for job, _ in told["stop"]], told["void"]) == ([JOB], [])
    assert cluster.tick(ends=[end()])["ack"] == []
    cluster.call()
    cluster.call()
    cluster.tick(ends=[end()])
    assert cluster.call()["ends"] == [end()]


def test_a_call_that_was_delayed_beyond_a_later_one_is_stale() -> None:
    """Counter-proof: without the order of calls the job would be offered though another attempt may run."""

    def delay(*, ordered: bool) -> bool:
        cluster = Cluster()
        cluster.head.submit(JOB, Opened("a", "e1"), {})
        late = cluster.head.make_call(0.0)
        cluster.head.fail()
        cluster.call()
        cluster.now = TIMERS.lease + 0.1
        assert [dead["reason"] for dead in cluster.call()["dead"]] == [NEVER_DELIVERED]
        cluster.head.drop(JOB)
        cluster.call()
        cluster.tick()
        if not ordered:
            cluster.permits.sessions["s"].seq = -1
        cluster.deliver(cluster.head, late)
        return JOB in cluster.tick()["orders"]

    assert not delay(ordered=True)
    assert delay(ordered=False)


def test_an_earlier_supervisor_is_told_that_it_was_superseded() -> None:
    cluster = Cluster()
    cluster.submit()
    cluster.tick()
    second = Head("s", 2, {JOB: Opened("a", "e1"), "s/u/1/1/work/1": Opened("a", "e1")})
    cluster.call(second)
    assert cluster.tick(held=[JOB])["renew"], "leases go on though this one has not said yet what is open"
    news = cluster.call(second)
    assert [(dead["job"], dead["reason"]) for dead in news["dead"]] == [("s/u/1/1/work/1", NEVER_SUBMITTED)]
    cluster.call()
    assert cluster.head.superseded and not second.superseded
    cluster.tick(ends=[end()])
    assert cluster.call(second)["ends"] == [end()]


@pytest.mark.parametrize("arrives", [True, False])
def test_an_order_in_the_last_answer_of_a_scheduler_counts_until_the_next_tick(arrives: bool) -> None:
    """The scheduler is killed when its answer has left."""
    cluster = Cluster()
    cluster.submit()
    link = cluster.links["a"]
    assert cluster.permits.take_tick(cluster.now, cluster.make())
    answer = cluster.permits.answer_node(cluster.now, "a")
    cluster.restart()
    held = []
    if arrives:
        assert link.take(answer) and answer["orders"].keys() == {JOB}
        held = [JOB]
    cluster.tick(held=held)
    cluster.call()
    cluster.call()
    cluster.tick(held=held)
    if arrives:
        cluster.tick(ends=[end()])
        news = cluster.call()
        assert (news["ends"], news["dead"]) == ([end()], [])
    else:
        assert not link.take(answer)
        assert [(dead["reason"], dead["ran"]) for dead in cluster.call()["dead"]] == [(NOT_THERE, False)]


@pytest.mark.parametrize("journaled", [True, False])
def test_a_supervisor_that_was_killed_with_an_end_hears_it_again_unless_its_journal_has_it(
    journaled: bool,
) -> None:
    cluster = Cluster()
    cluster.submit()
    cluster.tick()
    cluster.tick(ends=[end()])
    assert cluster.call()["ends"] == [end()]
    second = Head("s", 2, {} if journaled else {JOB: Opened("a", "e1")})
    cluster.call(second)
    assert cluster.call(second)["ends"] == ([] if journaled else [end()])
    assert cluster.tick(ends=[end()])["ack"] == ([JOB] if journaled else [])


def test_a_machine_that_was_started_again_is_a_node_again() -> None:
    """Its clock begins anew: its ticks come after those of the boot before all the same."""
    cluster = Cluster()
    cluster.now = 1000.0
    cluster.tick()
    cluster.submit()
    cluster.tick()
    cluster.now += TIMERS.lease + TIMERS.margin + 1.0
    late = cluster.make()
    cluster.links["a"] = Link("a", "a", 2, "1", boot=1)
    tick = cluster.links["a"].make_tick(10, held=[], ends=[end()], out=[], wait_s=0.0)
    assert cluster.permits.take_tick(cluster.now, tick)
    assert not cluster.permits.take_tick(cluster.now, late)
    assert not cluster.permits.take_tick(cluster.now, tick)
    cluster.call()
    assert cluster.head.nodes["a"]["lives"]
    later = cluster.links["a"].make_tick(11, held=[], ends=[], out=[], wait_s=0.0)
    assert cluster.permits.take_tick(cluster.now, later)
    assert cluster.links["a"].take(cluster.permits.answer_node(cluster.now, "a"))


def test_what_a_lost_reply_told_is_told_again() -> None:
    cluster = Cluster()
    cluster.submit()
    cluster.tick()
    cluster.tick(ends=[end()])
    call = cluster.head.make_call(0.0)
    assert cluster.permits.take_call(cluster.now, call) == "ok"
    assert cluster.permits.reply(cluster.now, "s")["ends"] == [end()]
    cluster.head.fail()
    assert cluster.call()["ends"] == [end()]


def test_a_stop_is_in_each_answer_until_the_end() -> None:
    cluster = Cluster()
    cluster.submit()
    cluster.tick()
    cluster.head.stop(JOB, 1)
    cluster.call()
    assert cluster.permits.node_has_news("a")
    assert cluster.tick(held=[JOB])["stop"] == cluster.tick(held=[JOB])["stop"] == [[JOB, 1]]
    assert not cluster.permits.node_has_news("a")
    cluster.head.stop(JOB, 2)
    cluster.call()
    assert cluster.tick(held=[JOB])["stop"] == [[JOB, 2]]
    assert cluster.tick(ends=[end()])["stop"] == []


def test_a_stopped_job_that_was_not_delivered_is_dead_at_once_and_what_was_goes_on() -> None:
    cluster = Cluster()
    jobs = [f"s/t{number}/1/1/work/1" for number in range(3)]
    for job in jobs:
        cluster.submit(job)
    assert list(cluster.tick()["orders"]) == jobs[:2]  # it has two slots
    assert cluster.tick(held=jobs[:2])["orders"] == {} and not cluster.permits.node_has_news("a")
    cluster.head.stop(jobs[2], 1)
    assert [(dead["job"], dead["ran"]) for dead in cluster.call()["dead"]] == [(jobs[2], False)]
    told = cluster.tick(held=jobs[:2])
    assert (told["stop"], told["orders"]) == ([], {})
    cluster.head.stop(jobs[0], 1)
    cluster.call()
    assert cluster.tick(held=jobs[:2])["stop"] == [[jobs[0], 1]]


def test_an_order_may_wait_for_a_node_that_is_gone_until_it_is_stopped() -> None:
    cluster = Cluster()
    cluster.now = TIMERS.lease + TIMERS.margin + 1
    for name in ("s/a/1/1/release/1", "s/b/1/1/release/1"):
        cluster.head.submit(name, Opened("a", "e1"), {}, waits=True)
    cluster.call()
    cluster.now += 1000
    assert cluster.call()["dead"] == []
    cluster.head.stop("s/b/1/1/release/1", 2)
    assert [dead["reason"] for dead in cluster.call()["dead"]] == [STOPPED]
    assert list(cluster.tick()["orders"]) == ["s/a/1/1/release/1"]


def test_a_session_that_has_ended_leaves_nothing_and_its_late_calls_do_nothing() -> None:
    cluster = Cluster()
    cluster.submit()
    cluster.tick()
    late = cluster.head.make_call(0.0)
    cluster.head.close()
    cluster.call()
    assert cluster.tick(held=[JOB])["void"] == [JOB]
    cluster.deliver(cluster.head, late)
    assert cluster.head.superseded
    cluster.now += CLOSED_S + 1
    cluster.tick()
    assert cluster.permits.sessions == {}


def test_output_goes_through_and_is_not_kept_where_no_session_fetches_it() -> None:
    cluster = Cluster()
    cluster.submit()
    cluster.tick()
    chunk = {"job": JOB, "name": "out", "at": 0, "content": "eA=="}
    cluster.tick(held=[JOB], out=[chunk])
    assert cluster.call()["out"] == [chunk]
    assert cluster.call()["out"] == []
    cluster.head.wrote(JOB, "out", 1)
    cluster.call()
    assert cluster.tick(held=[JOB])["wrote"] == [[JOB, "out", 1]]
    cluster.now += TIMERS.call_timeout + 0.1
    cluster.tick(held=[JOB], out=[chunk])
    assert cluster.call()["out"] == []


@pytest.mark.parametrize(
    ("until", "now", "taken"),
    [(10, 5, True), (10, 10, False), (9, 10, False), (7, 5, True)],
)
def test_a_lease_is_renewed_only_before_its_new_end(until: int, now: int, taken: bool) -> None:
    lease = Lease(8, 2)
    assert lease.renew(until, 3, now) is taken
    assert lease.until_ns == (until if taken else 8)
    edge = lease.until_ns - lease.grace_ns
    assert lease.may_start(edge - 1) and not lease.may_start(edge)


def test_a_lease_of_another_boot_or_a_damaged_one_is_over(tmp_path: Path) -> None:
    file = LeaseFile(tmp_path)
    assert file.read().is_over(1)
    file.write(Lease(10**18, 5))
    assert not file.read().is_over(10**17)
    text = (tmp_path / "lease").read_bytes()
    for damage in (text[:30], text[:-10] + b"another-b\n", b""):
        (tmp_path / "lease").write_bytes(damage)
        assert file.read().is_over(1)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("lease=5", "three ticks"),
        ("margin=1", "margin must be at least 2.12"),
        ("tick=0", "more than 0"),
        ("speed=3", "'speed' is not one of grace, lease, margin, tick"),
        ("lease=many", "'lease=many' is no time"),
        ("lease=nan", "'lease=nan' is no time"),
        ("tick=inf", "'tick=inf' is no time"),
    ],
)
def test_times_that_do_not_go_together(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_timers(text)
    assert find_fault(Timers()) is find_fault(TIMERS) is None
    assert parse_timers("lease=70, tick=5") == replace(Timers(), lease=70.0, tick=5.0)


# --- the simulation ---


def test_faults_of_all_kinds_break_no_promise() -> None:
    jobs = 0
    for seed in range(8):
        truth = play(seed)
        assert truth.violations == [], f"seed {seed}"
        jobs += len(truth.spans)
    assert jobs > 80


@pytest.mark.slow
def test_many_faults_break_no_promise(say: Callable[[str], None]) -> None:
    first = slow_seed()
    totals = [0, 0, 0, 0]
    for seed in range(first, first + 1000):
        truth = play(seed)
        assert truth.violations == [], f"seed {seed}"
        found = (truth.faults, len(truth.spans), truth.lost, truth.late)
        totals = [total + more for total, more in zip(totals, found, strict=True)]
    say("cluster, simulated: {} faults, {} jobs, {} lost and said so, {} late ends refused".format(*totals))


@pytest.mark.slow
def test_without_a_margin_jobs_are_called_dead_while_they_run() -> None:
    """The counter-proof: the simulation sees what the margin is for."""
    without = replace(TIMERS, margin=0.0)
    found = (violation for seed in range(3000) for violation in play(seed, timers=without).violations)
    assert any("while it runs" in violation for violation in found)


@pytest.mark.slow
def test_without_the_order_of_calls_an_attempt_runs_beside_the_next_one() -> None:
    """The counter-proof: the simulation sees what the number of a session's call is for.

    A call that was overtaken brings the order of an attempt that was given up since.  About one seed of a hundred
    shows it.
    """
    found = (violation for seed in range(1000) for violation in play(seed, ordered=False).violations)
    assert any("begins while" in violation for violation in found)


def test_what_walls_a_node_cannot_build_is_known_where_sessions_are() -> None:
    cluster = Cluster()
    cluster.links["b"] = Link("b", "b", 2, "1", NO_BWRAP)
    cluster.tick("b")
    cluster.call()
    assert {name: seen["walls"] for name, seen in cluster.head.nodes.items()} == {"a": {}, "b": NO_BWRAP}
    cluster.links["b"] = Link("b", "b", 2, "1")
    cluster.now += 1
    cluster.tick("b")
    cluster.call()
    assert cluster.head.nodes["b"]["walls"] == {}, "it was started again, with bubblewrap"


def test_a_job_goes_to_the_node_with_most_room_of_those_that_can_do_it() -> None:
    slots, used = {"a": 4, "b": 2}, {"a": 3}
    assert [choose_node(slots, used, without) for without in ("", "b", "ab")] == ["b", "a", None]
    assert choose_node({"a": 4}, used, {"b"}) == "a"


def test_what_a_sandbox_needs_of_a_machine(tmp_path: Path) -> None:
    assert Sandbox("project").needs == ("project",)
    assert Sandbox("strict", network="proxy", cpus=2.0).needs == ("strict without the network", "cpus")
    assert set(list_problems(str(tmp_path))) <= {
        *(f"{policy}{end}" for policy in ("project", "strict") for end in ("", " without the network")),
        *("memory", "cpus"),
    }
