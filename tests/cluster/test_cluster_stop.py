"""The end of a cluster's programs: by hand with virtual time, and of real ones on loopback."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

import pytest
from clusters import RealCluster, processes_of, real_cluster
from conftest import Command, eventually, is_gone
from stages import git
from test_cluster import make_repository, start
from test_cluster_protocol import JOB, Cluster, end

from sessionrun.cluster.messages import ABANDON, NEVER_DELIVERED, NODE_STOPPED, QUIET_S
from sessionrun.cluster.permits import AWAY_S, LONGEST_S, stop_nodes

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")

RELEASE = "s/t/1/1/release/1"


def test_a_node_without_jobs_goes_when_it_has_been_quiet() -> None:
    cluster = Cluster()
    told = stop_nodes(cluster.permits, cluster.now, force=False)
    assert (told["begun"], told["nodes"][0]["state"]) == (True, "leaving")
    cluster.call()
    assert not cluster.head.nodes["a"]["lives"]
    cluster.now += QUIET_S
    assert not cluster.tick()["leave"]
    cluster.now += 0.1
    assert cluster.tick()["leave"]
    cluster.now += AWAY_S + 0.1
    assert stop_nodes(cluster.permits, cluster.now, force=False)["nodes"][0]["state"] == "left"
    cluster.links.clear()  # it is started again by a person
    assert not cluster.tick()["leave"]
    cluster.call()
    assert cluster.head.nodes["a"]["lives"]


def test_jobs_are_named_and_their_node_stays_unless_it_is_forced() -> None:
    cluster = Cluster()
    cluster.submit()
    told = stop_nodes(cluster.permits, cluster.now, force=False)
    assert not told["begun"] and told["busy"] == [{"job": JOB, "node": "a"}]
    assert cluster.tick()["orders"] and told["nodes"][0]["state"] == "up"
    cluster.tick(held=[JOB])
    assert not stop_nodes(cluster.permits, cluster.now, force=False)["begun"]
    assert stop_nodes(cluster.permits, cluster.now, force=True)["begun"]
    assert cluster.tick(held=[JOB])["stop"] == [[JOB, ABANDON]]
    cluster.tick(ends=[{**end(), "kind": "lease"}])
    (told_end,) = cluster.call()["ends"]
    assert told_end["reason"] == NODE_STOPPED
    cluster.now += QUIET_S + 1
    assert not cluster.tick(ends=[end()])["leave"]  # its session has not taken the end
    cluster.head.drop(JOB)
    cluster.submit(RELEASE)  # the work of the task comes home first
    cluster.now += QUIET_S + 1
    answer = cluster.tick()
    assert answer["orders"].keys() == {RELEASE} and not answer["leave"]
    cluster.now += LONGEST_S
    assert cluster.tick(held=[RELEASE])["leave"]


def test_an_order_that_waits_at_a_node_that_goes_starts_anew_elsewhere() -> None:
    cluster = Cluster()
    cluster.submit()
    stop_nodes(cluster.permits, cluster.now, force=True)
    (dead,) = cluster.call()["dead"]
    assert (dead["reason"], dead["ran"]) == (NEVER_DELIVERED, False)


def test_a_job_whose_session_has_not_come_back_counts() -> None:
    cluster = Cluster()
    cluster.restart()
    cluster.tick(held=[JOB])
    told = stop_nodes(cluster.permits, cluster.now, force=False)
    assert not told["begun"] and told["busy"] == [{"job": JOB, "node": "a"}]


@pytest.fixture
def cluster(sessionrun: Command) -> Iterator[RealCluster]:
    """Two nodes of two slots."""
    with real_cluster(sessionrun) as made:
        yield made


def stop(cluster: RealCluster, *words: str) -> tuple[int, str, str]:
    done = cluster.command("cluster", "stop", cluster.address, *words, env=cluster.env)
    return done.returncode, done.stdout, done.stderr


def check_gone(cluster: RealCluster) -> None:
    """All programs of the cluster have ended, by themselves."""
    for program in cluster.programs.values():
        assert program.wait(60) == 0
    eventually(lambda: not processes_of(str(cluster.nodes_dir)))
    assert not processes_of(f":{cluster.port}")


@pytest.mark.slow
def test_stop_ends_everything_and_a_node_that_is_started_again_stays(cluster: RealCluster) -> None:
    assert "say --yes" in stop(cluster)[2]
    session_id = start(cluster, cluster.command.waiting("a"))
    eventually(lambda: cluster.command.is_up(session_id, "a"))
    code, out, said = stop(cluster, "--yes")
    assert (code, out) == (2, "") and f"task a of session {session_id} on n" in said and "--force" in said
    cluster.command.let_go("a")
    assert cluster.command.wait(session_id)["outcome"] == "succeeded"
    eventually(lambda: not cluster.show()["sessions"])
    code, out, _ = stop(cluster, "--yes", "--json")
    told = json.loads(out)
    assert code == 0 and told["head"] == "left" and {one["state"] for one in told["nodes"]} == {"left"}
    check_gone(cluster)
    cluster.start_head()
    cluster.start_node("n0")
    eventually(cluster.show)
    cluster.wait_for_nodes(1)
    assert cluster.command.wait(start(cluster, ["echo again"]))["outcome"] == "succeeded"


@pytest.mark.slow
def test_by_force_jobs_are_lost_and_said_so_and_their_work_comes_home(cluster: RealCluster) -> None:
    repository = make_repository(cluster.command.cwd)
    plan = [{"id": "a", "prompt": "echo work > work; echo up; while :; do sleep 0.1; done"}]
    session_id = start(cluster, plan, "--worktree")
    eventually(lambda: cluster.command.is_up(session_id, "a"))
    code, out, _ = stop(cluster, "--yes", "--force")
    assert code == 0 and "The head has ended." in out
    (task,) = cluster.command.wait(session_id)["tasks"]
    assert task["outcome"] == "lost" and "its node was stopped with the cluster" in task["reason"]
    assert git(repository, "show", f"{task['branch']}:work") == "work"
    check_gone(cluster)


@pytest.mark.slow
def test_the_processes_of_a_node_whose_program_was_ended_go_by_themselves(sessionrun: Command) -> None:
    with real_cluster(sessionrun, nodes=1, timers="tick=0.3,lease=3,grace=0.5,margin=2.2") as cluster:
        assert processes_of(str(cluster.site("n0")))
        cluster.programs["n0"].terminate()
        assert cluster.programs["n0"].wait(60) == 0
        eventually(lambda: not processes_of(str(cluster.site("n0"))))
        cluster.start_node("n0")
        eventually(lambda: processes_of(str(cluster.site("n0"))))


@pytest.mark.slow
def test_the_programs_of_a_killed_head_and_a_killed_node_go_and_the_jobs_go_on(sessionrun: Command) -> None:
    with real_cluster(sessionrun, nodes=1) as cluster:
        session_id = start(cluster, cluster.command.waiting("a", "b"))
        eventually(lambda: cluster.command.is_up(session_id, "a", "b"))
        left = [*cluster.find("dask_scheduler"), *cluster.find("dask_worker")]
        for program in cluster.programs.values():
            program.kill()
            program.wait()
        assert len(left) == 2
        eventually(lambda: all(map(is_gone, left)))
        cluster.command.let_go("a")
        cluster.start_head()
        cluster.start_node("n0", 3)
        eventually(
            lambda: [(node["lives"], node["slots"]) for node in cluster.show().get("nodes", ())] == [(True, 3)]
        )
        cluster.command.let_go("b")
        tasks = cluster.command.wait(session_id)["tasks"]
        assert [(task["outcome"], task["attempt"]) for task in tasks] == [("succeeded", 1)] * 2
        for name in ("head", "n0"):
            assert cluster.programs[name].poll() is None


def test_doctor_says_why_a_configured_cluster_cannot_be_asked(sessionrun: Command) -> None:
    (sessionrun.cwd / "sessionrun.toml").write_text('cluster = "tls://192.0.2.1:8786"\n')
    done = sessionrun("doctor", env={"SESSIONRUN_CERTS": str(sessionrun.cwd)})
    assert done.returncode == 1 and f"{sessionrun.cwd}/ca.pem is not there" in done.stdout
    (sessionrun.cwd / "sessionrun.toml").write_text('cluster = "slurm"\n')
    assert sessionrun("doctor").returncode == 0


@pytest.mark.slow
def test_doctor_names_the_cluster_and_a_node_that_is_gone(sessionrun: Command) -> None:
    with real_cluster(sessionrun, timers="tick=0.3,lease=4,grace=0.5,margin=2.2") as cluster:
        session_id = start(cluster, cluster.command.waiting("a"))
        eventually(lambda: cluster.command.is_up(session_id, "a"))
        done = sessionrun("doctor", session_id)
        words = f"cluster {cluster.address} (named by session {session_id}): 2 of 2 nodes up, 1 of 4 slots in use"
        assert words in done.stdout and "Nothing is wrong" in done.stdout
        (idle,) = [node["name"] for node in cluster.show()["nodes"] if not node["used"]]
        cluster.kill_all(idle)
        cluster.wait_for_nodes(1)
        done = sessionrun("doctor", session_id)
        assert done.returncode == 1 and f"cluster node {cluster.address} --name {idle}" in done.stdout
        cluster.programs["head"].kill()
        for process in cluster.find("dask_scheduler"):
            process.kill()
        told = json.loads(sessionrun("doctor", session_id, "--json").stdout)
        assert told["clusters"][0]["answers"] is False
        assert [one["check"] for one in told["findings"]] == ["cluster"]
