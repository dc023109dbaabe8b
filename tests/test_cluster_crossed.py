"""What crosses on its way in a cluster: ends and deaths, a scheduler's last answer, ticks of another boot."""

from __future__ import annotations

import pytest
from cluster_simulation import TIMERS
from test_cluster_protocol import JOB, Cluster, end

from sessionrun.cluster.head import Head, Opened
from sessionrun.cluster.link import Link
from sessionrun.cluster.messages import LEASE_OVER, NEVER_SUBMITTED, NOT_THERE

NEXT = "s/t/2/1/work/1"


def test_an_end_of_behind_a_cut_counts_before_its_job_is_given_up() -> None:
    cluster = Cluster()
    cluster.submit()
    cluster.tick()
    cluster.now = TIMERS.lease + TIMERS.margin - 0.01
    assert cluster.call().dead == ()
    cluster.tick(ends=[end()])
    news = cluster.call()
    assert (news.ends, news.dead) == ((end(),), ())


def test_an_end_of_behind_a_cut_is_refused_once_the_next_attempt_is_open() -> None:
    cluster = Cluster()
    cluster.submit()
    cluster.tick("b")
    cluster.tick()
    cluster.now = TIMERS.lease + TIMERS.margin + 0.01
    assert [dead["reason"] for dead in cluster.call().dead] == [LEASE_OVER]
    cluster.head.drop(JOB)
    cluster.tick("b")
    cluster.submit(NEXT, "b")
    assert cluster.tick("b").orders.keys() == {NEXT}
    assert cluster.tick(ends=[end()]).forget == [JOB]
    assert cluster.call().ends == ()
    cluster.tick("b", ends=[end(NEXT)])
    assert cluster.call().ends == (end(NEXT),)


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
        tasks = link.take(answer)
        assert tasks is not None and tasks.orders.keys() == {JOB}
        held = [JOB]
    cluster.tick(held=held)
    cluster.call()
    cluster.call()
    cluster.tick(held=held)
    if arrives:
        cluster.tick(ends=[end()])
        news = cluster.call()
        assert (news.ends, news.dead) == ((end(),), ())
    else:
        assert link.take(answer) is None
        assert [(dead["reason"], dead["ran"]) for dead in cluster.call().dead] == [(NOT_THERE, False)]


def test_a_supervisor_that_was_killed_before_its_order_left_hears_that_it_never_did() -> None:
    cluster = Cluster()
    opened = {JOB: Opened("a", cluster.head.epoch or "")}  # its journal has the claim
    second = Head("s", 2, opened)
    cluster.call(second)
    assert [dead["reason"] for dead in cluster.call(second).dead] == [NEVER_SUBMITTED]
    assert cluster.tick().orders == {}


@pytest.mark.parametrize("journaled", [True, False])
def test_a_supervisor_that_was_killed_with_an_end_hears_it_again_unless_its_journal_has_it(
    journaled: bool,
) -> None:
    cluster = Cluster()
    cluster.submit()
    cluster.tick()
    cluster.tick(ends=[end()])
    assert cluster.call().ends == (end(),)
    second = Head("s", 2, {} if journaled else {JOB: Opened("a", "e1")})
    cluster.call(second)
    assert cluster.call(second).ends == (() if journaled else (end(),))
    assert cluster.tick(ends=[end()]).forget == ([JOB] if journaled else [])


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
    assert cluster.head.nodes["a"].lives
    later = cluster.links["a"].make_tick(11, held=[], ends=[], out=[], wait_s=0.0)
    assert cluster.permits.take_tick(cluster.now, later)
    assert cluster.links["a"].take(cluster.permits.answer_node(cluster.now, "a")) is not None


def test_two_machines_with_one_name_are_two_nodes() -> None:
    cluster = Cluster()
    for node in ("n@1", "n@2"):
        cluster.links[node] = Link(node, "n", 2, "1")
        cluster.tick(node)
    cluster.call()
    assert {node.node_id for node in cluster.head.nodes.values() if node.name == "n"} == {"n@1", "n@2"}
    cluster.submit(JOB, "n@1")
    assert cluster.tick("n@2").orders == {}
    assert cluster.tick("n@1").orders.keys() == {JOB}
    cluster.tick("n@2", held=[])
    assert cluster.tick("n@1", held=[JOB]).orders == {}
