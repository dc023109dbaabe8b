"""Slurm as a session's cluster: the pure parts, and sessions on a real one where there can be one."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import psutil
import pytest
from clusters import RealSlurm, marker_of, real_slurm, start_waiting
from conftest import Command, eventually, slow_seed

from sessionrun.cli.options import Parsed
from sessionrun.cluster import slurm_executor, slurm_jobs, slurm_node
from sessionrun.cluster.address import check_options
from sessionrun.cluster.slurm_executor import Desk, SlurmExecutor, find_poll
from sessionrun.cluster.slurm_jobs import (
    LARGEST_ARRAY,
    Row,
    SlurmFault,
    describe,
    parse_answering,
    parse_rows,
)
from sessionrun.cluster.slurm_node import END, claim, dump, load, make_job_environment
from sessionrun.input.rows import BY_NAME
from sessionrun.model.asked import Cluster
from sessionrun.model.events import HoldPlaced, JobLost, JobStarted
from sessionrun.model.keys import PHASES, JobKey, parse_job_key
from sessionrun.model.spec import Job, SessionSpec
from sessionrun.session.executor import Exit
from sessionrun.store.session import SessionDir

SID = "11111111-1111-4111-8111-111111111111"
PREFIX = f"sessionrun-{SID}-"

# --- words ---


def test_the_command_lines() -> None:
    words = slurm_jobs.submit_words(Path("/s p"), "1-2", "name", 40, {"partition": "p", "exclusive": ""})
    assert words[:3] == ["sbatch", "--partition=p", "--exclusive"]
    assert "--array=0-39" in words and "--no-requeue" in words and "--job-name=name" in words
    assert words[-1].startswith("--wrap=exec ") and words[-1].endswith("'/s p' '/s p/slurm/batch-1-2.json'")
    assert "--array=0-0" in slurm_jobs.submit_words(Path("/s"), "1-1", "n", 1, {})


def test_what_slurm_is_given_of_the_environment() -> None:
    given = {
        "PATH": "/bin",
        "SECRET": "x",
        "SLURM_CONF": "/c",
        "SLURM_JOB_ID": "5",
        "SBATCH_ACCOUNT": "a",
        "SBATCH_WAIT": "1",
        "SCANCEL_INTERACTIVE": "1",
    }
    assert slurm_jobs.make_environment(given) == {"PATH": "/bin", "SLURM_CONF": "/c", "SBATCH_ACCOUNT": "a"}
    job = make_job_environment({"A": "\udcff", "SLURM_JOB_ID": "outer"}, {b"SLURM_JOB_ID": b"7", b"HOME": b"/n"})
    assert job == {b"A": b"\xff", b"SLURM_JOB_ID": b"7"}


def test_the_options_of_a_user() -> None:
    word = Parsed("slurm", BY_NAME["slurm"].read_word)
    said = dict(word.convert(text, None, None) for text in ("partition=a=b", "--exclusive"))
    assert check_options(said, "") == {"partition": "a=b", "exclusive": ""}
    assert check_options({"cpus-per-task": 2, "exclusive": True, "contiguous": False}, "slurm") == {
        "cpus-per-task": "2",
        "exclusive": "",
    }
    assert (find_poll({}), find_poll({"SESSIONRUN_SLURM_POLL": "x"})) == (5.0, 5.0)
    assert find_poll({"SESSIONRUN_SLURM_POLL": "0"}) == 0.1


def test_the_lines_of_squeue() -> None:
    printed = (
        f"12|3|RUNNING|n1|{PREFIX}1-2\n"
        f"12|4|PENDING||{PREFIX}1-2\n"
        f"12|N/A|PENDING||{PREFIX}1-2\n"
        "9|0|RUNNING|n1|another\n"
        "garbage\n\n"
    )
    rows = parse_rows(printed, PREFIX)
    assert rows == {
        ("1-2", 3): Row("12_3", "RUNNING", "n1"),
        ("1-2", 4): Row("12_4", "PENDING", ""),
    }
    assert rows["1-2", 4].waits and not rows["1-2", 3].waits


def test_the_table_of_states() -> None:
    def row(state: str) -> Row:
        return Row("1_0", state, "n1")

    for state in ("SOMETHING_NEW", "PENDING", "COMPLETING", "REQUEUED"):
        assert row(state).meaning == "lives"
    assert describe(row("TIMEOUT")).endswith("time limit in Slurm (Slurm job 1_0 on n1: TIMEOUT)")
    assert "not by this session" in describe(row("CANCELLED"))
    nodes = "n1 idle\nn2 down*\nn3 mixed*\nn4 down\nn5 allocated\nn6 drained\nn7 unknown\nn8 reboot\n"
    assert parse_answering(nodes) == {"n1", "n4", "n5", "n6"}


def test_why_a_program_failed() -> None:
    said = "sbatch: error: invalid partition: x\nallocation failure: Invalid partition name specified\nbye"
    for script, limit_s, words in (
        (f"echo '{said}' >&2; exit 1", 60, "^allocation failure: Invalid partition name specified$"),
        ("echo; exit 3", 60, "^sh ended with 3$"),
        ("exec sleep 60", 0.1, "did not end within"),
    ):
        with pytest.raises(SlurmFault, match=words):
            slurm_jobs.run_program({"PATH": os.environ["PATH"]}, ["sh", "-c", script], limit_s)
    with pytest.raises(SlurmFault, match="cannot be started"):
        slurm_jobs.run_program({"PATH": os.environ["PATH"]}, ["no-such-program"])


# --- the desk, with a Slurm of words ---


class Words:
    """Stands in for Slurm's programs: records what is run, and answers what the test says."""

    def __init__(self) -> None:
        self.ran: list[Sequence[str]] = []
        self.rows: list[str] = []
        self.nodes = ""
        self.fault: dict[str, str] = {}
        self.now = 100.0

    def run(self, words: Sequence[str], limit_s: float = 0.0) -> str:
        self.ran.append(words)
        if words[0] in self.fault:
            raise SlurmFault(self.fault[words[0]])
        return {"sbatch": "12\n", "squeue": "\n".join(self.rows), "sinfo": self.nodes}.get(words[0], "")

    def commands(self, program: str) -> list[Sequence[str]]:
        return [words for words in self.ran if words[0] == program]


@pytest.fixture
def words() -> Words:
    return Words()


@pytest.fixture
def session(own_place: Path) -> SessionDir:
    path = own_place / f"session-{SID}"
    path.mkdir()
    return SessionDir(path)


@pytest.fixture
def desk(session: SessionDir, words: Words) -> Desk:
    return open_desk(session, words)


def open_desk(session: SessionDir, words: Words) -> Desk:
    return Desk(session, {}, {"A": "b"}, lambda line: None, 5.0, words.run, lambda: words.now)


def key(name: str = "a") -> JobKey:
    return JobKey(name, 1, 1, "work", 1)


def submit(desk: Desk, session: SessionDir, *names: str) -> list[Any]:
    jobs = [
        Job(key(name), ("/bin/true",), "/", stdout=str(session.path / "o"), stderr=str(session.path / "e"))
        for name in names
    ]
    return desk.submit("1-1", jobs)


def begin(session: SessionDir, name: str = "a", place: int = 0) -> bool:
    return claim(session.job_path(key(name)), {"by": "node", "job": f"12_{place}", "node": "n1"})


def end(session: SessionDir, name: str = "a", **about: Any) -> None:
    told = {"kind": "exit", "wait_status": 7 << 8, "cpu_s": 0.5, "told": False, "job": "12_0", "node": "n1"}
    (session.job_path(key(name)) / END).write_bytes(dump({**told, **about}))


def poll(desk: Desk, words: Words, after_s: float = 5.0) -> list[Any]:
    words.now += after_s
    return desk.look()


def test_a_batch_is_one_submission_and_all_jobs_are_one_question(
    desk: Desk, session: SessionDir, words: Words
) -> None:
    assert submit(desk, session, "a", "b", "c") == []
    batch = session.path / "slurm" / "batch-1-1.json"
    jobs = json.loads(batch.read_text())["jobs"]
    assert [parse_job_key(job["key"]) for job in jobs] == [key(name) for name in "abc"]
    assert [job["folder"] for job in jobs] == [f"jobs/{name}/a1-r1-work" for name in "abc"]
    assert stat.S_IMODE(batch.stat().st_mode) == 0o600
    assert len(words.commands("sbatch")) == 1 and "--array=0-2" in words.commands("sbatch")[0]
    words.rows = [f"12|{place}|RUNNING|n1|{PREFIX}1-1" for place in range(3)]
    assert poll(desk, words) == []
    for place, name in enumerate("abc"):
        assert begin(session, name, place)
    told = poll(desk, words)
    assert [type(notice) for notice in told] == [JobStarted] * 3
    assert told[0] == JobStarted(key("a"), 0, 0, 0, node="n1, Slurm job 12_0")
    for name in "abc":
        end(session, name)
    ends = desk.look()  # no question to Slurm is needed
    assert ends == [Exit(key(name), 7 << 8, None, 0.5) for name in "abc"]
    assert len(words.commands("squeue")) == 2
    assert not batch.exists()


FATES = [
    # its submission is refused: it can never run later, and counts if it runs all the same
    "refuse; submit -> hold, void uncounted: sbatch did not end",
    "refuse; begin; submit -> hold; end; look -> start, exit 7",
    # it never began
    "row CANCELLED; poll -> interrupted: cancelled in Slurm",
    "row FAILED; poll -> hold, void: nothing ran",
    "row BOOT_FAIL; poll -> hold, void uncounted: node failed",
    "poll -> hold, void uncounted: does not have it",
    # it left no record, which may only not be seen yet
    "begin; row COMPLETING; poll -> start; row TIMEOUT; poll; poll 10 -> interrupted: time limit",
    "begin; row COMPLETING; poll -> start; row PREEMPTED; poll; poll 10 -> interrupted: preempted",
    "begin; row COMPLETING; poll -> start; row OUT_OF_MEMORY; poll; poll 10 -> lost: memory",
    "begin; row COMPLETING; poll -> start; row COMPLETED; poll; poll 10 -> lost: without a record",
    "begin; row COMPLETING; poll -> start; row; poll; poll 10 -> lost: knows nothing",
    # its node failed: a record that comes late wins, and else the node has to be back, or the job is given up
    "begin; row NODE_FAIL; node down*; poll 60 -> start; poll 60; poll 60; poll 60; end; look -> exit 7",
    "begin; row NODE_FAIL; node down*; poll -> start; node idle; poll; poll 60 -> lost: its node failed",
    "begin; row NODE_FAIL; node down*; poll -> start; stop; look -> lost: may still run",
    # Slurm, and not the session, told it to end: it has to say why
    "begin; row RUNNING; poll -> start; end told; look; row TIMEOUT; poll -> interrupted gone: time limit",
    "begin; row RUNNING; poll -> start; spoil; look -> lost: record cannot be read",
    # Slurm does not answer: nothing is concluded, and a record needs no controller
    f"begin; deaf; poll 60 -> start; {'poll 60; ' * 99}end; look -> exit 7",
]
"""What happens to a job, which is submitted first: at each look what is told of it, if anything."""


@pytest.mark.parametrize("fate", FATES)
def test_what_became_of_a_job(fate: str, desk: Desk, session: SessionDir, words: Words) -> None:
    for step in fate.split("; ") if "submit" in fate else ("submit", *fate.split("; ")):
        move, _, wanted = step.partition(" -> ")
        told = [word_notice(notice) for notice in take_step(move, desk, session, words) or ()]
        wanted_all = wanted.split(", ") if wanted else []
        assert len(told) == len(wanted_all), (move, told)
        for one, each in zip(told, wanted_all, strict=True):
            assert one.partition(": ")[0] == each.partition(": ")[0] and each.partition(": ")[2] in one, move
    assert begin(session) is False, "it can begin no more"
    assert list((session.path / "slurm").iterdir()) == [], "the environment is in its batch"


def take_step(move: str, desk: Desk, session: SessionDir, words: Words) -> list[Any] | None:
    """One thing that happens; what is told at a look."""
    word, _, about = move.partition(" ")
    if word in ("poll", "look"):
        return poll(desk, words, float(about or 5)) if word == "poll" else desk.look()
    if word == "submit":
        return submit(desk, session, "a")
    if word == "row":
        words.rows = [f"12|0|{about}|n1|{PREFIX}1-1"] if about else []
    elif word == "node":
        words.nodes = f"n1 {about}\n"
    elif word == "deaf":
        words.fault["squeue"] = "Unable to contact slurm controller"
    elif word == "refuse":
        words.fault["sbatch"] = "sbatch did not end within 60 seconds"
    elif word == "begin":
        assert begin(session)
    elif word == "end":
        end(session, told=about == "told")
    elif word == "spoil":
        (session.job_path(key()) / END).write_text("[]")
    else:
        assert move == "stop" and desk.stop(key(), now=False) == []
    return None


def word_notice(notice: object) -> str:
    """A notice in a few words; of a loss its verdict, whether it counts, and whether all of the job is gone."""
    if isinstance(notice, HoldPlaced):
        return "hold"
    assert isinstance(notice, (JobStarted, JobLost, Exit)) and notice.key == key()
    if isinstance(notice, JobLost):
        gone = {None: "", True: " gone"}[notice.gone]
        return f"{notice.verdict}{'' if notice.counts else ' uncounted'}{gone}: {notice.reason}"
    if isinstance(notice, Exit):
        assert (notice.detail, notice.cpu_s) == (None, 0.5) and notice.wait_status is not None
        return f"exit {os.waitstatus_to_exitcode(notice.wait_status)}"
    return "start"


def test_what_is_not_submitted_for_a_full_disk_is_not_open(
    desk: Desk, session: SessionDir, words: Words, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = Mock(side_effect=OSError(errno.ENOSPC, "No space left"))
    for place in (slurm_executor, slurm_node):
        monkeypatch.setattr(place, "replace_file", full)
    told = [word_notice(notice) for notice in submit(desk, session, "a")]
    assert (
        told[0] == "hold" and told[1].startswith("void uncounted: the batch cannot be written") and not words.ran
    )


def test_stopping(desk: Desk, session: SessionDir, words: Words) -> None:
    """All that are to be told the same are told at once."""

    def asked() -> list[str]:
        commands, words.ran = words.commands("scancel"), []
        return [" ".join(command) for command in commands]

    submit(desk, session, *"abcd")
    begin(session, "a", 0)
    begin(session, "b", 1)
    for name in "abcd":
        desk.stop(key(name), now=False)
    told = [(lost.key.task, lost.verdict) for lost in desk.look() if isinstance(lost, JobLost)]
    assert told == [("c", "void"), ("d", "void")] and not begin(session, "c", 2)
    assert asked() == ["scancel --signal=TERM --batch 12_0 12_1", "scancel 12_2 12_3"]
    desk.look()
    assert asked() == [], "not again at once"
    desk.stop(key("a"), now=True)
    desk.look()
    assert asked() == ["scancel --signal=USR2 --batch 12_0"]
    end(session, "b", job="12_1")
    words.rows = [f"12|0|RUNNING|n1|{PREFIX}1-1"]
    poll(desk, words, 60)
    assert asked() == ["scancel 12_0"]  # what runs around it does not answer
    end(session, wait_status=9, told=True)
    assert desk.look() == [Exit(key("a"), 9, None, 0.5)]


def test_another_supervisor_takes_over(desk: Desk, session: SessionDir, words: Words) -> None:
    submit(desk, session, "a", "b", "c", "d")
    begin(session, "a", 0)
    begin(session, "b", 1)
    end(session, "b", job="12_1")
    later = open_desk(session, words)
    opened = {key(name): ("1-1", False) for name in "bcd"}
    later.reattach({**opened, key("a"): ("1-1", True), key("e"): ("1-7", False)})
    words.rows = [f"12|{place}|RUNNING|n1|{PREFIX}1-1" for place in (0, 2)]
    told = later.look()
    assert [notice for notice in told if isinstance(notice, JobStarted)] == [
        JobStarted(key("b"), 0, 0, 0, node="n1, Slurm job 12_1")
    ]
    assert [notice.key.task for notice in told if isinstance(notice, Exit)] == ["b"]
    assert [notice.key.task for notice in told if isinstance(notice, JobLost)] == ["d", "e"]
    assert set(later.open) == {key("a"), key("c")} and later.open[key("c")].job == "12_2"


def test_what_runs_where_and_how_large_an_array_is(session: SessionDir, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = SessionSpec(SID, "2026-01-31T09:30:00Z", "prompts", "-", "/", "shell", {}, (), cluster=Cluster("slurm"))
    here, submit = Mock(), Mock(return_value=[])
    here.start.return_value = here.wait.return_value = []
    monkeypatch.setattr(Desk, "submit", submit)
    executor = SlurmExecutor(session, spec, here, 3, {}, print)
    claims = [executor.claim(key(f"t{number}"), None, None) for number in range(2 * LARGEST_ARRAY + 1)]
    full = ["3-1"] * LARGEST_ARRAY + ["3-2"] * LARGEST_ARRAY
    assert [claim.epoch for claim in claims] == [*full, "3-3"]
    assert {claim.node for claim in claims} == {"slurm"}
    by_phase = {phase: executor.claim(key()._replace(phase=phase), "slurm", None).node for phase in PHASES}
    assert [phase for phase, node in by_phase.items() if node is None] == ["prepare", "park", "land", "release"]
    jobs = [Job(key()._replace(phase=phase), ("true",), "/", "o", "e") for phase in ("release", "work", "check")]
    assert executor.start(jobs) == [] and here.start.call_args.args == (jobs[:1],)
    assert executor.claim(key("f"), None, None).epoch == "3-4"
    eventually(lambda: submit.called)
    executor.close()
    submit.assert_called_once_with("3-3", jobs[1:])


# --- what runs around a job, without Slurm ---


def run_on_node(
    session: SessionDir, script: str, program: str = "/bin/sh", secret: str = "PATH", **given: Any
) -> subprocess.Popen[str]:
    """Start what Slurm starts, as it starts it."""
    jobs = [
        Job(
            key(),
            (program, "-c", script),
            "/",
            stdout=str(session.path / "out"),
            stderr=str(session.path / "err"),
            env={"SECRET": f"{{env:{secret}}}"},
            stop_grace_s=0.3,
        )
    ]
    words = Words()
    Desk(session, {}, {"PATH": os.environ["PATH"], "A": "b"}, print, 5.0, words.run).submit("1-1", jobs)
    command = words.commands("sbatch")[0][-1].removeprefix("--wrap=")
    environ = {"SLURM_ARRAY_TASK_ID": "0", "SLURM_ARRAY_JOB_ID": "12", "SLURMD_NODENAME": "n1", "HIDDEN": "1"}
    return subprocess.Popen(["/bin/sh", "-c", command], env=environ, stdout=subprocess.PIPE, text=True, **given)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Slurm's nodes run Linux")
def test_around_a_job(session: SessionDir) -> None:
    around = run_on_node(
        session, 'echo "$A $HIDDEN $SLURM_ARRAY_JOB_ID"; [ "$SECRET" = "$PATH" ] && exit 7', cwd="/"
    )
    assert (around.wait(60), around.communicate()[0]) == (7, "")
    assert (session.path / "out").read_text() == "b  12\n"
    folder = session.job_path(key())
    about = load(folder / "slurm-end.json")
    assert (about["kind"], about["wait_status"], about["told"], about["node"]) == ("exit", 7 << 8, False, "n1")
    again = run_on_node(session, "echo twice")
    assert again.wait(60) == 0 and "was claimed before" in again.communicate()[0]
    assert (session.path / "out").read_text() == "b  12\n"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Slurm's nodes run Linux")
@pytest.mark.parametrize(
    ("job", "errno", "said"),
    [({"program": "/no/such/program"}, 2, "/no/such/program"), ({"secret": "NOT_SET"}, None, "variable NOT_SET")],
)
def test_what_cannot_be_started(job: dict[str, str], errno: int | None, said: str, session: SessionDir) -> None:
    around = run_on_node(session, "true", **job)
    assert around.wait(60) == 1
    about = load(session.job_path(key()) / "slurm-end.json")
    assert (about["kind"], about["errno"]) == ("exit", errno) and said in str(about["detail"])


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Slurm's nodes run Linux")
def test_a_tree_is_stopped(session: SessionDir) -> None:
    loop = "trap '' TERM; echo up; while :; do sleep 0.05; done"
    around = run_on_node(session, f'setsid sh -c "{loop}" & {loop}')
    eventually(lambda: (session.path / "out").is_file() and (session.path / "out").read_text() == "up\nup\n")
    around.send_signal(signal.SIGTERM)
    assert around.wait(60) == 128 + 9
    about = load(session.job_path(key()) / "slurm-end.json")
    assert (about["wait_status"], about["told"]) == (9, True)
    assert not jobs_left(SID)


# --- a real Slurm ---

real = pytest.mark.slow


@pytest.fixture(scope="module")
def shared_slurm() -> Iterator[RealSlurm]:
    with real_slurm() as slurm:
        yield slurm


def use(slurm: RealSlurm, monkeypatch: pytest.MonkeyPatch) -> RealSlurm:
    for name in ("SLURM_CONF", "PATH"):
        monkeypatch.setenv(name, slurm.env[name])
    monkeypatch.setenv("SESSIONRUN_SLURM_POLL", "0.3")
    return slurm


@pytest.fixture
def slurm(shared_slurm: RealSlurm, monkeypatch: pytest.MonkeyPatch) -> RealSlurm:
    """Two nodes that tests share, for those that break nothing."""
    return use(shared_slurm, monkeypatch)


@pytest.fixture
def own_slurm(monkeypatch: pytest.MonkeyPatch) -> Iterator[RealSlurm]:
    """One node of the test's own."""
    with real_slurm(nodes=1) as made:
        yield use(made, monkeypatch)


def start(command: Command, plan: object, *words: str) -> str:
    return command.start(plan, "--cluster", "slurm", *words)


def slurm_job(command: Command, session_id: str, name: str) -> str:
    path = command.directory(session_id) / "jobs" / name / "a1-r1-work" / "slurm-claim.json"
    return str(load(path)["job"])


def jobs_left(session_id: str) -> list[psutil.Process]:
    return [one for one in psutil.process_iter() if marker_of(one).startswith(session_id)]


def log(command: Command, session_id: str) -> str:
    return (command.directory(session_id) / "supervisor.log").read_text()


@real
def test_a_secret_is_on_no_command_line_and_in_no_book_of_slurms(slurm: RealSlurm, sessionrun: Command) -> None:
    plan = [{**sessionrun.waiting("a")[0], "env": {"TOKEN": "hidden-value"}}]
    session_id = start(sessionrun, plan)
    eventually(lambda: sessionrun.is_up(session_id, "a"))
    job = slurm_job(sessionrun, session_id, "a")
    shown = slurm.ask("scontrol", "show", "job", "-dd", job)
    assert "Requeue=0" in shown and "hidden-value" not in shown
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            assert "hidden-value" not in " ".join(process.cmdline())
    for path in slurm.place.rglob("*"):
        if path.is_file():
            with suppress(OSError):
                assert b"hidden-value" not in path.read_bytes(), path
    node = sessionrun.until(session_id, lambda view: view["tasks"][0]["node"] != "slurm")["tasks"][0]["node"]
    assert node.endswith(f", Slurm job {job}")
    shown = sessionrun("explain", session_id, "a").stdout
    assert f"Slurm job {job}" in shown and "on node n" in shown
    sessionrun.let_go("a")
    assert sessionrun.wait(session_id)["outcome"] == "succeeded"
    folder = sessionrun.directory(session_id) / "slurm"
    assert [path.name for path in folder.iterdir() if path.name.startswith("batch")] == []


@real
@pytest.mark.parametrize(
    ("how", "outcome", "why"),
    [
        ("scancel", "interrupted", "cancelled in Slurm, not by this session"),
        ("time", "interrupted", "time limit"),
        ("kill", "lost", "ended without a record"),
    ],
)
def test_what_ends_a_job_beside_its_session(
    how: str, outcome: str, why: str, slurm: RealSlurm, sessionrun: Command
) -> None:
    """A minute is the least that Slurm knows of time; what is killed is what runs around the job."""
    limit = ("--slurm-option", "time=1") if how == "time" else ()
    session_id = start_waiting(sessionrun, "slurm", "a", words=limit)
    job = slurm_job(sessionrun, session_id, "a")
    folder = sessionrun.directory(session_id) / "jobs" / "a" / "a1-r1-work"
    if how == "scancel":
        slurm.ask("scancel", job)
    elif how == "kill":
        os.kill(int(str(load(folder / "slurm-claim.json")["pid"])), signal.SIGKILL)
    (task,) = sessionrun.until(session_id, lambda view: view["ended_at"], timeout_s=240)["tasks"]
    assert task["outcome"] == outcome and why in task["reason"] and f"Slurm job {job}" in task["reason"]
    if how == "kill":
        assert not (folder / "slurm-end.json").exists()
    else:
        assert not jobs_left(session_id)


@real
def test_what_slurm_refuses_and_what_the_configuration_says(slurm: RealSlurm, sessionrun: Command) -> None:
    (sessionrun.cwd / "sessionrun.toml").write_text(
        'cluster = "slurm"\n[slurm]\npartition = "none"\ncpus-per-task = 2\n'
    )
    for words, said in [
        ((), "nvalid partition"),
        (("partition=main", "time=abc"), "time"),
        (("partition=main", "cpus-per-task=1000"), "not available"),
    ]:
        options = [part for word in words for part in ("--slurm-option", word)]
        done = sessionrun("--agent", "shell", "-p", "true", *options)
        assert (done.returncode, done.stdout) == (2, ""), words
        assert said in done.stderr and len(done.stderr.splitlines()) == 1
    assert not sessionrun.results.exists()
    plan = [{"id": "a", "prompt": 'echo "$SLURM_CPUS_PER_TASK $SLURM_JOB_PARTITION"'}]
    session_id = sessionrun.start(plan, "--slurm-option", "partition=main")
    assert sessionrun.wait(session_id)["outcome"] == "succeeded"
    assert sessionrun.output(session_id, "a") == "2 main\n"


@real
@pytest.mark.parametrize("late", [False, True])
def test_the_supervisor_is_killed_while_it_submits(
    late: bool, slurm: RealSlurm, sessionrun: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before its word is heard, or even while it is on its way: then it comes when the job was started anew."""
    folder = sessionrun.cwd / "bin"
    folder.mkdir()
    real_sbatch = subprocess.run(["which", "sbatch"], capture_output=True, text=True, check=True).stdout.strip()
    after = f"while [ ! -e {sessionrun.cwd}/now ]; do sleep 0.05; done" if late else ":"
    (folder / "sbatch").write_text(
        f"""#!/bin/sh
case "$*" in
*--test-only*) ;;
*) if mkdir {sessionrun.cwd}/once 2>/dev/null; then
    if [ {int(late)} = 0 ]; then {real_sbatch} "$@"; kill -9 $PPID; exit; fi
    kill -9 $PPID; {after}; {real_sbatch} "$@" > {sessionrun.cwd}/came; exit
   fi ;;
esac
exec {real_sbatch} "$@"
"""
    )
    (folder / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    plan = [{"id": name, "prompt": f"echo {name} >> {sessionrun.cwd}/ran; echo fine"} for name in ("a", "b")]
    session_id = start(sessionrun, [*plan, *sessionrun.waiting("w")])
    sessionrun.until(session_id, lambda view: view["successful"] == 2)
    if late:
        (sessionrun.cwd / "now").touch()
        array = eventually(lambda: (came := sessionrun.cwd / "came").is_file() and came.read_text().strip())
        eventually(
            lambda: all(slurm.states().get(f"{array}_{place}") in ("COMPLETED", "FAILED") for place in range(3))
        )
    sessionrun.let_go("w")
    view = sessionrun.wait(session_id)
    assert [(task["outcome"], task["attempt"]) for task in view["tasks"]] == [("succeeded", 1)] * 3
    assert sorted((sessionrun.cwd / "ran").read_text().split()) == ["a", "b"]
    assert sessionrun.output(session_id, "w") == "up\ndown\n"


@real
def test_whatever_is_killed_no_job_begins_twice(slurm: RealSlurm, sessionrun: Command, say: Any) -> None:
    seed = slow_seed()
    say(f"seed {seed}")
    chance = random.Random(seed)
    script = f'echo "$SESSIONRUN_JOB" >> {sessionrun.cwd}/ran; sleep 0.{{}}; echo fine'
    plan = [{"id": f"t{number}", "prompt": script.format(chance.randrange(10))} for number in range(30)]
    session_id = start(sessionrun, plan, "--max-parallel", "6")

    def kill_all() -> bool:
        with suppress(psutil.Error, AssertionError, ProcessLookupError):
            sessionrun.kill_chain(session_id)
            return True
        return False

    for number in range(7):
        least = 3 * number
        sessionrun.until(session_id, lambda view, least=least: view["successful"] >= least)  # type: ignore[misc]
        with suppress(psutil.Error, AssertionError, ProcessLookupError):  # one of them is being started again
            os.kill(chance.choice(sessionrun.chain(session_id)[1:]), signal.SIGKILL)
    eventually(kill_all)
    eventually(lambda: not jobs_left(session_id))
    assert sessionrun("resume", session_id).returncode == 0
    view = sessionrun.wait(session_id)
    assert [(task["outcome"], task["attempt"]) for task in view["tasks"]] == [("succeeded", 1)] * 30
    assert {sessionrun.output(session_id, task["id"]) for task in view["tasks"]} == {"fine\n"}
    ran = (sessionrun.cwd / "ran").read_text().split()
    assert len(ran) == 30 and len({word.split("/")[1] for word in ran}) == 30


@real
def test_the_controller_is_restarted(own_slurm: RealSlurm, sessionrun: Command) -> None:
    """Without one a session that runs goes on, and none is launched."""
    session_id = start_waiting(sessionrun, "slurm", "a", "b")
    own_slurm.kill("slurmctld")
    sessionrun.let_go("a")
    sessionrun.until(session_id, lambda view: view["successful"] == 1)  # by its record alone
    eventually(lambda: "Slurm does not answer" in log(sessionrun, session_id), timeout_s=90)
    done = sessionrun("--agent", "shell", "-p", "true", "--cluster", "slurm")
    assert (done.returncode, done.stdout) == (2, "") and "--cluster slurm: " in done.stderr
    assert len(done.stderr.splitlines()) == 1 and len(list(sessionrun.results.glob("session-*"))) == 1
    own_slurm.start_controller()
    sessionrun.let_go("b")
    view = sessionrun.wait(session_id)
    assert [(task["outcome"], task["attempt"]) for task in view["tasks"]] == [("succeeded", 1)] * 2


@real
@pytest.mark.parametrize("way", ["it runs on", "it is ended when its node is back", "its node was dead"])
def test_the_job_of_a_node_that_slurm_has_given_up(way: str, own_slurm: RealSlurm, sessionrun: Command) -> None:
    session_id = start_waiting(sessionrun, "slurm", "a")
    job, is_dead = slurm_job(sessionrun, session_id, "a"), way == "its node was dead"
    (own_slurm.cut_power if is_dead else own_slurm.kill)("n0")  # of slurmd alone the job goes on
    eventually(lambda: own_slurm.states().get(job) == "NODE_FAIL", timeout_s=120)
    eventually(lambda: "may still run a/1/1/work/1" in log(sessionrun, session_id))
    assert sessionrun.status(session_id)["tasks"][0]["status"] == "running"
    assert bool(jobs_left(session_id)) is not is_dead
    if way != "it runs on":
        own_slurm.start_node("n0")
        (task,) = sessionrun.until(session_id, lambda view: view["ended_at"], timeout_s=240)["tasks"]
        assert task["outcome"] == "lost" and "its node failed" in task["reason"] and job in task["reason"]
        assert not jobs_left(session_id) and sessionrun.output(session_id, "a") == "up\n"
    sessionrun.let_go("a")
    if way != "it runs on":
        assert sessionrun("retry", session_id).returncode == 0
    (task,) = sessionrun.wait(session_id)["tasks"]
    assert (task["outcome"], task["attempt"]) == ("succeeded", 1 if way == "it runs on" else 2)
    assert sessionrun.output(session_id, "a") == "up\ndown\n"
