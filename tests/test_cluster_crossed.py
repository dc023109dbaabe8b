"""What crosses on its way in a cluster: ends and deaths, a scheduler's last answer, ticks of another boot."""

from __future__ import annotations

from cluster_simulation import TIMERS
from test_cluster_protocol import Cluster, end

from sessionrun.cluster.link import Link


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
