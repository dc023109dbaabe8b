"""Sessions on a cluster of dask that its user started, without a word of ours on its command lines."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from clusters import RealCluster
from conftest import Command, eventually
from test_cluster import start

from sessionrun.cluster.address import make_certs
from sessionrun.cluster.messages import PROTOCOL

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc"),
]


class OwnCluster(RealCluster):
    """A scheduler and workers of dask."""

    def start_scheduler(self, env: dict[str, str] | None = None, *words: str) -> None:
        """Start the scheduler, and wait for it."""
        argv = (sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", self.address, "--no-dashboard")
        self.start_program("scheduler", *argv, *self.name_certs(), *words, env=env)
        said = "its scheduler has no plug-ins", "it speaks version"
        # a session that waits for it may have registered the plug-ins by now
        eventually(lambda: self.show() or any(words in self.ask() for words in said))

    def start_worker(self, name: str, env: dict[str, str] | None = None) -> None:
        """Start a worker of two slots."""
        argv = (sys.executable, "-m", "distributed.cli.dask_worker", self.address, "--name", name, "--no-nanny")
        self.start_program(
            name, *argv, *self.name_certs(), "--nthreads", "1", "--resources", "slot=2", "--no-dashboard", env=env
        )
        log = self.command.cwd / f"{name}.log"
        eventually(lambda: "Registered to" in log.read_text())

    def name_certs(self) -> list[str]:
        """The words of dask's for the files of `cluster certs`."""
        folder = Path(self.env["SESSIONRUN_CERTS"])
        if not folder.exists():
            make_certs(folder)
        names = {"--tls-ca-file": "ca.pem", "--tls-cert": "cert.pem", "--tls-key": "key.pem"}
        return [word for option, name in names.items() for word in (option, str(folder / name))]

    def ask(self) -> str:
        """What `cluster status` says on standard error."""
        return self.command("cluster", "status", self.address, env=self.env).stderr

    def launch(self) -> tuple[int, str]:
        """The exit code and standard error of a launch of one job."""
        words = ("--agent", "shell", "--cluster", self.address, "-p", "true")
        done = self.command(*words, env=self.env)
        return done.returncode, done.stderr


@pytest.fixture
def cluster(sessionrun: Command, monkeypatch: pytest.MonkeyPatch) -> Iterator[OwnCluster]:
    """Nothing runs yet."""
    own = {"DASK_TEMPORARY_DIRECTORY": str(sessionrun.cwd / "dask")}
    made = OwnCluster(sessionrun, "", {**own, "SESSIONRUN_CERTS": str(sessionrun.cwd / "certs")})
    monkeypatch.setenv("SESSIONRUN_CERTS", made.env["SESSIONRUN_CERTS"])
    try:
        yield made
    finally:
        made.close()


def test_a_session_registers_what_the_cluster_lacks_also_after_a_new_start(cluster: OwnCluster) -> None:
    cluster.start_scheduler()
    cluster.start_worker("w0")
    command = cluster.command
    code, said = cluster.launch()
    assert code == 0 and "no adaptive scaling" in said and "start it again under the same --name" in said
    session_id = start(cluster, cluster.command.waiting("a"))  # and is not told again
    eventually(lambda: cluster.command.is_up(session_id, "a"))
    for process in cluster.find("dask_scheduler"):
        process.kill()
    cluster.programs["w0"].wait(60)  # it closes without its scheduler; the job goes on
    cluster.start_scheduler()
    cluster.start_worker("w0")
    cluster.command.let_go("a")
    (task,) = command.wait(session_id)["tasks"]
    assert (task["outcome"], task["attempt"]) == ("succeeded", 1) and "-w0@" in task["node"]
    cluster.start_worker("w1")  # a later worker gets the bridge by itself
    cluster.wait_for_nodes(2)


def test_a_worker_without_our_programs_lives_on_and_gets_no_jobs(cluster: OwnCluster) -> None:
    without = cluster.command.cwd / "without"
    without.mkdir()
    (without / "sessionrun.py").write_text("raise ModuleNotFoundError(\"No module named 'sessionrun'\")\n")
    env = {"PYTHONPATH": str(without)}
    cluster.start_scheduler()
    cluster.start_worker("bare", env)
    cluster.start_worker("good")
    code, said = cluster.launch()
    assert code == 0 and "No module named 'sessionrun'; sessionrun has to be installed there" in said
    cluster.wait_for_nodes(1)
    cluster.start_worker("later", env)
    view = cluster.command.wait(start(cluster, ["true"] * 4))
    assert view["outcome"] == "succeeded" and all("-good@" in task["node"] for task in view["tasks"])
    for name in ("bare", "later"):
        assert cluster.programs[name].poll() is None


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("BLOCKED_HANDLERS", "start it with --preload sessionrun.cluster.dask_scheduler"),
        ("IDLE_TIMEOUT", "start it without distributed.scheduler.idle-timeout"),
    ],
)
def test_what_a_cluster_of_ones_own_must_not_be(setting: str, words: str, cluster: OwnCluster) -> None:
    value = '["register_scheduler_plugin"]' if setting == "BLOCKED_HANDLERS" else "'1 hour'"
    cluster.start_scheduler({f"DASK_DISTRIBUTED__SCHEDULER__{setting}": value})
    code, said = cluster.launch()
    assert code == 2 and words in said and len(said.splitlines()) == 1
    assert not cluster.command.results.exists()


def test_a_scheduler_without_our_programs(cluster: OwnCluster) -> None:
    without = cluster.command.cwd / "without"
    without.mkdir()
    (without / "sessionrun.py").write_text("raise ModuleNotFoundError(\"No module named 'sessionrun'\")\n")
    cluster.start_scheduler({"PYTHONPATH": str(without)})
    code, said = cluster.launch()
    assert code == 2 and "sessionrun has to be installed where the scheduler runs" in said


def test_a_scheduler_that_speaks_another_version_of_the_protocol(cluster: OwnCluster) -> None:
    other = cluster.command.cwd / "other.py"
    other.write_text(
        "from sessionrun.cluster import dask_scheduler as scheduler\n"
        "scheduler.PROTOCOL = 99\n"
        "dask_setup = scheduler.dask_setup\n"
    )
    cluster.start_scheduler(None, "--preload", str(other))
    code, said = cluster.launch()
    assert code == 2 and f"speaks version {PROTOCOL} of the protocol, and this scheduler 99" in said
