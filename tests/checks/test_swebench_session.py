"""SWE-bench instances run to their end: who is resolved, what an agent can see, and the files of a run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from conftest import Command
from simulation import make_session
from stages import commit_all, git, make_repository_of
from walled import why_no_walls

from sessionrun.checks.swebench_results import InstanceResults
from sessionrun.model.checks import JudgedTests, ProveReport
from sessionrun.model.keys import JobKey
from sessionrun.model.spec import INSTANCE_RESULTS, Export, TaskSpec
from sessionrun.session.exports import ExportWriter, Shown, find_behind
from sessionrun.store.jobfiles import ANSWER
from sessionrun.store.session import SessionDir

EXAMPLE = Path(__file__).parents[2] / "examples" / "swebench"
KEYS_OF_THE_RUNNER = (
    *("instance_id", "repo", "base_commit", "problem_statement", "success", "duration", "iterations"),
    *("timestamp", "model", "prediction", "problem_solving_summary", "error", "final_test_results"),
)
SUMMARY_OF_THE_RUNNER = (
    *("run_name", "timestamp", "total_instances", "successful", "failed", "success_rate"),
    *("with_mcp", "max_workers", "max_iterations", "instances"),
)
NAMED = "GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@localhost GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@localhost"
WAITED_ENOUGH = 124
GOLD = "git apply ../../../gold/$SESSIONRUN_TASK.patch"


class Bench(Command):
    """The command where a runner is laid out: `artifacts` with instances, and `gold` with their patches."""

    def artifacts(self, *names: str) -> Path:
        return self.cwd.joinpath("artifacts", *names)

    def documents(self, run: str) -> dict[str, Any]:
        """The summary and the files of the instances, by their names."""
        folder = self.artifacts("results", run)
        return {path.name: json.loads(path.read_text()) for path in folder.glob("*.json")}

    def write_template(self, script: str) -> Path:
        """A prompt that a shell runs as this script, in the agent's place."""
        template = self.cwd / "template"
        template.write_text(f": <<'ISSUE'\n{{problem_statement}}\nISSUE\n{script}\n")
        return template

    def run(self, script: str, *words: str, walls: bool = False) -> subprocess.CompletedProcess[str]:
        """Run instances to their end by a script in the agent's place, with walls as the configuration says."""
        template = str(self.write_template(script))
        common = ("--run-name", "r", "--prompt-template", template, "--agent", "shell")
        words = (*common, *(() if walls else ("--sandbox", "none")), *words)
        if "--no-environment" in words:
            return self.to_end("run", "--from", "swebench", "--sync", *words)
        done = self("run", "--from", "swebench", "-q", *words)
        if done.returncode != 0:
            return done
        while (waited := self("wait", done.stdout.strip(), "--timeout", "60")).returncode == WAITED_ENOUGH:
            pass  # an environment takes long to build
        waited.stderr = done.stderr + waited.stderr
        return waited


@pytest.fixture
def bench(own_place: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """The example, bootstrapped; `python` is the one of these tests."""
    for name in ("bootstrap.sh", "instances.in.jsonl", "Makefile"):
        shutil.copy(EXAMPLE / name, own_place)
    shutil.copytree(EXAMPLE / "source", own_place / "source", ignore=shutil.ignore_patterns("__pycache__"))
    sessions = own_place / "sessions"
    monkeypatch.setenv("SESSIONRUN_RESULTS_DIR", str(sessions))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # those of these tests cost much time
    (own_place / ".claude").mkdir()
    (own_place / ".claude" / "settings.json").write_text("{}")
    subprocess.run(["./bootstrap.sh"], cwd=own_place, check=True, capture_output=True)
    bench = Bench(own_place, sessions)
    (own_place / "gold").mkdir()
    for instance in read_instances(bench):
        (own_place / "gold" / f"{instance['instance_id']}.patch").write_text(instance["patch"])
    return bench


def read_instances(bench: Bench) -> list[dict[str, Any]]:
    return [json.loads(line) for line in bench.artifacts("instances.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_a_run_of_the_example(bench: Bench) -> None:
    """One agent mends, one bends the tests and breaks off; the files, and what the first agent saw."""
    objects = "git cat-file --batch-all-objects --batch-check > ../../../objects"
    looks = f"{GOLD}; git log --all --format=%s > ../../../log; {objects}; cp .claude/settings.json ../../../seen"
    bends = "echo '# bent' >> tests/test_words.py; exit 3"
    script = f"case $SESSIONRUN_TASK in *-1) {looks};; *) {bends};; esac"
    done = bench.run(script, "--no-environment", "--sample", "2")
    assert done.returncode == 1, done.stderr
    found = bench.documents("r")
    first, second = found["example__wordtool-1.json"], found["example__wordtool-2.json"]
    assert (first["success"], first["resolved"], first["reason_class"]) == (True, True, None), first["error"]
    assert (second["success"], second["resolved"], second["reason_class"]) == (False, False, "exit_code")
    assert second["FAIL_TO_PASS_failed"] == ["tests/test_words.py::test_headline_keeps_capitals"]
    assert second["PASS_TO_PASS_failed"] == [], "the tests of the base are back in the clean room"
    assert set(KEYS_OF_THE_RUNNER) <= set(first)
    shown = {task["id"]: task for task in bench.load("results", "last")["tasks"]}
    assert shown["example__wordtool-1"]["hidden_tests"] == {"passed": 6, "total": 6}
    assert "5 hidden" in bench("results", "last").stdout
    summary = found["summary.json"]
    assert set(SUMMARY_OF_THE_RUNNER) <= set(summary)
    assert (summary["success_rate"], summary["max_iterations"], summary["score"][:10]) == (0.5, 5, "unofficial")
    gold, *_ = read_instances(bench)
    mended, bent = read_predictions(bench)
    assert changed(mended["model_patch"]) == changed(gold["patch"])
    assert bent["model_patch"] == "", "what changes tests alone is no source"
    assert bench.artifacts("runs", "r").resolve() == next(bench.cwd.glob("sessions/session-*")).resolve()
    assert (bench.cwd / "seen").read_text() == "{}", "the settings of agents are linked"
    # nothing later than the base
    assert (bench.cwd / "log").read_text().split("\n")[-2:] == ["Three functions about words", ""]
    assert "Fix count" not in (bench.cwd / "log").read_text()
    fixed = git(bench.artifacts("repo"), "rev-parse", "HEAD:wordtool/__init__.py", "HEAD").split()
    assert fixed[1] not in (bench.cwd / "objects").read_text()
    (spec,) = bench.cwd.glob("sessions/session-*/spec.json")
    assert "text.split()" not in spec.read_text(), "the fix is kept nowhere"
    # its own repository goes with `clean --worktrees`, for the session has the patch
    own = sorted(path.name.rpartition("-")[2] for path in bench.artifacts("worktrees").iterdir())
    assert own == ["1.git", "2.git"]
    assert bench("clean", "--worktrees", "last").returncode == 0
    assert not bench.artifacts("worktrees").exists()
    (prompt,) = bench.cwd.glob("sessions/session-*/prompts/example__wordtool-1")
    assert "test_count_with_gaps" not in prompt.read_text()


def read_predictions(bench: Bench) -> list[dict[str, Any]]:
    text = bench.artifacts("results", "r", "predictions.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def changed(patch: str) -> list[str]:
    """The lines that a patch takes away and adds."""
    return [line for line in patch.split("\n") if line[:1] in "+-" and line[:3] not in ("+++", "---")]


@pytest.mark.slow
def test_an_instance_without_tests_is_worked_on_once(bench: Bench) -> None:
    """It cannot be judged, the start says so, and what its agent did is a prediction."""
    (first, *_) = read_instances(bench)
    bare = {key: first[key] for key in ("instance_id", "repo", "base_commit", "problem_statement", "test_patch")}
    bench.artifacts("instances.jsonl").write_text(json.dumps(bare))
    done = bench.run(GOLD, "--no-environment")
    assert done.returncode == 1
    assert "1 of 1 instances to run name no tests" in done.stderr
    document = bench.documents("r")["example__wordtool-1.json"]
    told = [document[name] for name in ("reason_class", "infrastructure", "resolved")]
    assert told == ["no_tests", False, None]
    summary = bench.documents("r")["summary.json"]
    assert (summary["judged"], summary["infrastructure"]) == (0, 0)
    (prediction,) = read_predictions(bench)
    assert changed(prediction["model_patch"]) == changed(first["patch"])
    again = bench.run(GOLD, "--no-environment").stderr
    assert "skipped: 1 that ended before (--rerun runs them again)" in again
    assert again.endswith("nothing to do: all runs ended before\n")


@pytest.mark.slow
def test_work_that_the_branch_cannot_hold_is_judged(bench: Bench) -> None:
    """An agent on a branch of its own, and one with a repository inside its checkout; both worktrees are kept."""
    branches = f"{GOLD}; git checkout -qb fix; git commit -qam mine; echo more > notes"
    nests = f"{GOLD}; git init -q inside; echo x > inside/x"
    script = f"export {NAMED}; case $SESSIONRUN_TASK in *-1) {branches};; *) {nests};; esac"
    done = bench.run(script, "--no-environment", "--sample", "2")
    assert done.returncode == 0, done.stderr
    found = bench.documents("r")
    for number, instance in enumerate(read_instances(bench)[:2], 1):
        document = found[f"example__wordtool-{number}.json"]
        assert (document["resolved"], document["error"]) == (True, None)
        assert set(changed(instance["patch"])) <= set(changed(document["prediction"]))
    (session,) = bench.cwd.glob("sessions/session-*")
    first, second = bench.status(session.name.removeprefix("session-"))["tasks"]
    assert "HEAD is on fix" in first["worktree_kept"]
    assert "inside/ is a repository of its own" in second["worktree_kept"]


@pytest.mark.slow
def test_what_is_there_at_the_end_is_judged(bench: Bench) -> None:
    """No check of the first two passes: one has the right work and bent test set-up, one a round that was better.

    Round 1 of the third one breaks a test that passed; its round 2 begins anew.
    """
    bent = f"{GOLD}; echo 'raise RuntimeError' > conftest.py"
    first = "sed -i.bak s/capitalize/upper/ wordtool/__init__.py; rm wordtool/*.bak"
    breaks = 'echo "x = (" >> wordtool/__init__.py'
    worse, mends = (
        f"case $SESSIONRUN_ROUND in 1) {one};; *) {two};; esac" for one, two in ((first, breaks), (breaks, GOLD))
    )
    script = f"case $SESSIONRUN_TASK in *-1) {bent};; *-2) {worse};; *) {mends};; esac"
    gold, *_ = read_instances(bench)
    done = bench.run(script, "--no-environment", "--iterations", "2")
    assert done.returncode == 1, done.stderr
    right, wrong, mended = (bench.documents("r")[f"example__wordtool-{number}.json"] for number in (1, 2, 3))
    assert (mended["success"], mended["iterations"]) == (True, 2)
    assert (right["success"], right["resolved"], right["iterations"]) == (True, True, 2), right["error"]
    assert right["final_test_results"]["passed"] == 6
    assert changed(right["prediction"]) == changed(gold["patch"])
    assert (wrong["success"], wrong["resolved"], wrong["reason_class"]) == (False, False, "check_failed")
    assert changed(wrong["prediction"])[1].endswith("(word.upper() for word in text.split())"), (
        "of the first round"
    )
    assert wrong["PASS_TO_PASS_failed"] == ["tests/test_words.py::test_headline"]
    assert (wrong["PASS_TO_PASS_failed_before"], wrong["infrastructure"]) == ([], False)
    assert wrong["final_test_results"] == {"passed": 3, "failed": 2, "errors": 0, "total": 5}
    predictions = {one["instance_id"]: one["model_patch"] for one in read_predictions(bench)}
    assert predictions == {one["instance_id"]: one["prediction"] for one in (right, wrong, mended)}


# --- the environment and the Makefile ---


@pytest.mark.slow
def test_a_test_that_is_red_before_the_work_fails_no_round(bench: Bench) -> None:
    """This machine lacks something: the agent is not sent back for it, and the instance says whose fault it is."""
    repo = bench.artifacts("repo")
    (first, *_) = read_instances(bench)
    git(repo, "checkout", "-q", first["base_commit"])
    (repo / "tests" / "test_lacking.py").write_text("def test_it():\n    import not_here\n")
    commit_all(repo, "Lacking")
    lacking = "tests/test_lacking.py::test_it"
    first |= {
        "base_commit": git(repo, "rev-parse", "HEAD"),
        "PASS_TO_PASS": [*json.loads(first["PASS_TO_PASS"]), lacking],
    }
    bench.artifacts("instances.jsonl").write_text(json.dumps(first))
    assert bench.run(GOLD, "--iterations", "3").returncode == 1
    document = bench.documents("r")["example__wordtool-1.json"]
    assert (document["iterations"], document["reason_class"]) == (1, "unresolved")
    assert document["error"].endswith("; 1 of these did not pass here before the work either")
    assert document["PASS_TO_PASS_failed"] == document["PASS_TO_PASS_failed_before"] == [lacking]
    (setup,) = bench.cwd.glob("sessions/session-*/jobs/*/a1-r1-setup")
    assert json.loads((setup / "known-red.json").read_text()) == {"ids": [lacking]}


@pytest.mark.slow
def test_the_makefile_of_the_example(bench: Bench) -> None:
    # for precache and run: with walls an environment has other variables, and so is another one
    (bench.cwd / "sessionrun.toml").write_text('[sandbox]\npolicy = "none"\n')
    command, options = (
        Path(sys.executable).parent / "sessionrun",
        f"--prompt-template {bench.write_template(GOLD)}",
    )
    words = ["AGENT=shell", "NAME=made", f"SESSIONRUN={command}", f"ARGS={options}"]
    subprocess.run(["make", "-n", "run", *words], cwd=bench.cwd, check=True)
    done = subprocess.run(["make", "run-sample", *words], cwd=bench.cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    summary = bench.documents("made")["summary.json"]
    assert (summary["successful"], summary["success_rate"]) == (3, 1.0)


BROKEN = "diff --git a/t.py b/t.py\n--- a/t.py\n+++ b/t.py\n@@ -1 +1 @@\n-not there\n+def test_a(): pass\n"


def begin_instance(place: Path, **more: str) -> Bench:
    """A repository `source`, and the file of an instance of it."""
    source = place / "source"
    make_repository_of(source, {"t.py": "\n"})
    texts = {"instance_id": "o__r-1", "repo": "./source", "problem_statement": "x"}
    (place / "i.jsonl").write_text(json.dumps({**texts, "FAIL_TO_PASS": ["t.py::test_a"], **more}))
    return Bench(place, place / "results")


@pytest.mark.parametrize("words", [(), ("--sandbox", "none"), ("--sandbox", "strict")])
def test_who_has_hidden_tests_has_walls_if_they_can_be_had(own_place: Path, words: tuple[str, ...]) -> None:
    bench = begin_instance(own_place)
    (own_place / "template").write_text("{problem_statement}\n")
    common = ("--no-environment", "--agent", "shell", "--prompt-template", "template", "--dry-run", "--json")
    done = bench("run", "--from", "swebench", *common, *words, "i.jsonl")
    assert done.returncode == 0, done.stderr
    (task,) = json.loads(done.stdout)["tasks"]
    usual = "project" if why_no_walls() is None else None
    assert task["sandbox"] == {(): usual, ("--sandbox", "none"): None}.get(words, "strict")
    assert ("hidden tests are readable" in done.stderr) == (task["sandbox"] is None)


@pytest.mark.slow
def test_what_says_nothing_about_the_agent_is_run_again(own_place: Path) -> None:
    """A test patch that does not apply, which is found late, before an agent begins; and then one that does."""
    bench = begin_instance(own_place, test_patch=BROKEN, repo="./source.bundle")
    make = ["git", "bundle", "create", "-q", "../source.bundle", "HEAD", "main"]
    subprocess.run(make, cwd=own_place / "source", check=True)
    words = ("--no-environment", "--iterations", "1", "i.jsonl")
    done = bench.run(f"touch {own_place}/begun", *words)
    assert done.returncode == 1 and not (own_place / "begun").exists()
    found = bench.documents("r")["o__r-1.json"]
    assert "does not apply to the base" in found["error"]
    assert found["hidden_readable"] and "hidden tests are readable: 1 task of 1 without walls" in done.stderr
    assert (found["reason_class"], found["infrastructure"], found["resolved"]) == ("tests_not_run", True, None)
    assert read_predictions(bench) == []
    file = own_place / "i.jsonl"
    file.write_text(json.dumps({**json.loads(file.read_text()), "test_patch": BROKEN.replace("-not there", "-")}))
    done = bench.run("echo > made", *words)
    assert done.returncode == 0, done.stderr
    assert [prediction["instance_id"] for prediction in read_predictions(bench)] == ["o__r-1"]


# --- the files of a run: live and whole, each instance once, and those of a later session ---

SOURCE = b"diff --git a/s.py b/s.py\n--- a/s.py\n+++ b/s.py\n@@ -1 +1 @@\n-a\n+b\n"
BENT = b"diff --git a/test_s.py b/test_s.py\n--- a/test_s.py\n+++ b/test_s.py\n@@ -1 +1 @@\n-a\n+b\n"


class Files:
    """A session of a run, without processes: what its status says is written at once."""

    def __init__(self, place: Path, name: str, ids: str) -> None:
        self.session = SessionDir(place / f"session-{name}")
        self.session.path.mkdir()
        settings = {
            "run_name": "r",
            "outputs_dir": str(place / "artifacts/results/r"),
            "runs_dir": str(place / "artifacts/runs"),
            "model": "claude-x",
            "with_mcp": True,
            "max_workers": 4,
            "max_iterations": 5,
            "instances": {task: {"repo": "o/r", "base_commit": "HEAD", "problem_statement": "p"} for task in ids},
        }
        self.export = Export(INSTANCE_RESULTS, settings)
        spec = make_session([TaskSpec(task, ("p",)) for task in ids])
        self.spec = replace(spec, session_id=name, exports=(self.export,))
        self.tasks = {task: make_task(task) for task in ids}
        self.folder = Path(settings["outputs_dir"])  # type: ignore[arg-type]

    def status(self, ended_at: str | None = None) -> dict[str, Any]:
        return {
            "session_id": self.spec.session_id,
            "tasks": list(self.tasks.values()),
            "started_at": "2026-01-01T00:00:00.000Z",
            "ended_at": ended_at,
        }

    def claim(self) -> ExportWriter:
        InstanceResults(self.spec.exports[0]).claim(Shown(self.session, self.spec, self.status()))
        return ExportWriter(self.session, self.spec)

    def end(self, task: str, outcome: str = "succeeded", reason_class: str | None = None, **more: Any) -> None:
        reason = reason_class and f"{reason_class}: so it was"
        ended = {"status": "completed", "outcome": outcome, "reason_class": reason_class, "reason": reason}
        self.tasks[task] |= {**ended, "ended_at": "2026-01-01T00:01:00.000Z", "duration_s": 60.0, **more}

    def leave_proof(self, task: str, tests: JudgedTests | None, patch: bytes = SOURCE) -> None:
        folder = self.session.make_job_path(JobKey(task, 1, 1, "prove", 1))
        (folder / ANSWER).write_bytes(orjson.dumps(ProveReport("proved", None, tests=tests)))
        (folder / "source.patch").write_bytes(patch)

    def read(self, name: str) -> Any:
        return json.loads((self.folder / name).read_text())

    def predictions(self) -> list[str]:
        lines = (self.folder / "predictions.jsonl").read_text().splitlines()
        predictions = [json.loads(line) for line in lines]
        assert self.read("predictions.json") == predictions
        assert all(set(one) == {"instance_id", "model_name_or_path", "model_patch"} for one in predictions)
        return [prediction["instance_id"] for prediction in predictions]


def make_task(task: str) -> dict[str, Any]:
    values = dict.fromkeys(("outcome", "reason_class", "reason", "ended_at", "duration_s", "base_commit", "usage"))
    return {"id": task, "status": "pending", "round": 1, "attempt": 1, **values}


def test_a_run_while_it_runs(tmp_path: Path) -> None:
    run = Files(tmp_path, "1", "abc")
    writer = run.claim()
    assert run.read("summary.json")["pending"] == 3
    run.leave_proof("a", JudgedTests(total=3))
    run.end("a")
    run.tasks["b"]["status"] = "running"
    assert writer.write(run.status(), durable=False) is None
    assert run.predictions() == ["a"]
    document = run.read("a.json")
    assert document["prediction"] == SOURCE.decode()
    assert document["final_test_results"] == {"passed": 3, "failed": 0, "errors": 0, "total": 3}
    summary = run.read("summary.json")
    assert (summary["running"], summary["pending"], summary["total_instances"]) == (1, 1, 3)
    assert find_behind(run.session, run.spec) == [str(run.folder / "summary.json")]
    # b fails without having been judged: what the attempt left, without its tests; c says nothing about the agent
    folder = run.session.make_job_path(JobKey("b", 1, 1, "work", 1)).parent
    (folder / "a1-diff.patch").write_bytes(BENT + SOURCE)
    run.end("b", "failed", "check_failed", round=5)
    run.end("c", "failed", "repository_failed")
    assert writer.write(run.status("2026-01-01T01:00:00.000Z"), durable=True) is None
    assert run.predictions() == ["a", "b"]
    assert run.read("b.json")["prediction"] == SOURCE.decode()
    summary = run.read("summary.json")
    assert (summary["successful"], summary["failed"], summary["infrastructure"], summary["judged"]) == (1, 2, 1, 2)
    assert {one["instance_id"]: one["iterations"] for one in summary["instances"]} == {"a": 1, "b": 5, "c": 1}
    assert find_behind(run.session, run.spec) == []
    assert (tmp_path / "artifacts/runs/r").resolve() == run.session.path
    assert InstanceResults(run.export).find_outputs(run.session) == str(tmp_path / "artifacts/runs")


def test_the_tests_say_whether_an_instance_is_resolved(tmp_path: Path) -> None:
    """Not the outcome: a task whose check failed is judged, and one may lose its success after that."""
    run, red = Files(tmp_path, "1", "abcd"), JudgedTests(5, ("t::x",), ("t::y", "t::z"), 1)
    writer = run.claim()
    for task, tests in zip("abc", (JudgedTests(2), red, JudgedTests(0)), strict=True):
        run.leave_proof(task, tests, b"" if tests is red else SOURCE)
        run.end(task, "failed", "check_failed")
    run.end("d", "failed", "check_failed")
    writer.write(run.status(), durable=False)
    found = {task: run.read(f"{task}.json") for task in "abcd"}
    resolved = {task: document["resolved"] for task, document in found.items()}
    assert resolved == {"a": True, "b": False, "c": False, "d": None}
    assert [document["prediction"] for document in found.values()] == [SOURCE.decode(), "", SOURCE.decode(), ""]
    assert found["b"]["final_test_results"] == {"passed": 2, "failed": 2, "errors": 1, "total": 5}
    assert (found["b"]["FAIL_TO_PASS_failed"], found["b"]["PASS_TO_PASS_failed"]) == (["t::x"], ["t::y", "t::z"])
    assert not any(document["success"] or document["infrastructure"] for document in found.values())
    assert "b" in run.predictions(), "an empty patch is a prediction, too"


def test_an_instance_that_is_tried_again_has_not_ended(tmp_path: Path) -> None:
    run = Files(tmp_path, "1", "a")
    writer = run.claim()
    run.end("a", "failed", "check_failed")
    writer.write(run.status(), durable=False)
    run.tasks["a"] = {**make_task("a"), "status": "running", "attempt": 2}
    writer.write(run.status(), durable=False)
    assert run.predictions() == []
    run.end("a")
    writer.write(run.status(), durable=False)
    assert run.predictions() == ["a"]
    assert run.read("a.json")["attempt"] == 2
    run.end("a", attempt=3)  # begun and ended between two writes
    writer.write(run.status(), durable=False)
    assert run.read("a.json")["attempt"] == 3


def test_a_second_session_of_the_run(tmp_path: Path) -> None:
    """What has ended is not run again, and stands in each file once; other files in the directory do no harm."""
    first = Files(tmp_path, "1", "abc")
    writer = first.claim()
    first.end("a")
    first.end("b", "failed", "auth")
    first.end("c", "cancelled", "cancelled")
    writer.write(first.status("2026-01-01T01:00:00.000Z"), durable=True)
    (first.folder / "notes.json").write_text("{}")
    (first.folder / "torn.json").write_text("{")
    second = Files(tmp_path, "2", "abcd")
    assert InstanceResults(second.export).carry_over(second.spec.tasks)[1] == {"a"}
    second.spec = replace(second.spec, tasks=second.spec.tasks[1:])
    del second.tasks["a"]
    later = second.claim()
    assert second.read("summary.json")["total_instances"] == 4
    for task in "bcd":
        second.end(task)
        later.write(second.status(), durable=False)
    assert second.predictions() == ["a", "b", "c", "d"]
    assert second.read("a.json")["session"] == str(first.session.path)
    # the first one, resumed, leaves alone what is the second one's
    problem = writer.write(first.status(), durable=False)
    assert problem == f"{first.folder} does not show all results: it belongs to a later session, and is left alone"
    assert (tmp_path / "artifacts/runs/r").resolve() == second.session.path
    assert second.predictions() == ["a", "b", "c", "d"]
    assert find_behind(first.session, first.spec) == []


def test_git_ignores_what_a_run_makes(tmp_path: Path) -> None:
    """Not a directory with files of the user's, nor against what the user says there."""
    for number, (name, ignored) in enumerate(
        (("instances.jsonl", "*\n"), ("main.c", None), (".gitignore", "x\n"))
    ):
        place = tmp_path / str(number)
        (place / "artifacts").mkdir(parents=True)
        (place / "artifacts" / name).write_text("x\n")
        Files(place, "1", "a").claim()
        path = place / "artifacts/.gitignore"
        assert (path.read_text() if path.exists() else None) == ignored
