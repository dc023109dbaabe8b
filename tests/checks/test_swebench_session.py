"""SWE-bench instances run to their end: who is resolved, what the files say, and what an agent can see."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import Command
from stages import make_repository_of
from walled import why_no_walls

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "swebench"
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

    def run(self, script: str, *words: str, walls: bool = False) -> subprocess.CompletedProcess[str]:
        """Run instances to their end by a script in the agent's place, with walls as the configuration says."""
        template = self.cwd / "template"
        template.write_text(f": <<'ISSUE'\n{{problem_statement}}\nISSUE\n{script}\n")
        common = ("--run-name", "r", "--prompt-template", str(template), "--agent", "shell")
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


LOOK = (
    "git log --all --format=%s > ../../../log; git cat-file --batch-all-objects --batch-check > ../../../objects"
)


@pytest.mark.slow
def test_a_run_of_the_example(bench: Bench) -> None:
    """One agent mends, one bends the tests and breaks off; the files, and what the first agent saw."""
    looks = f"{GOLD}; {LOOK}; cp .claude/settings.json ../../../seen"
    bends = "echo '# bent' >> tests/test_words.py; exit 3"
    script = f"case $SESSIONRUN_TASK in *-1) {looks};; *) {bends};; esac"
    done = bench.run(script, "--no-environment", "--sample", "2")
    assert done.returncode == 1, done.stderr
    found = bench.documents("r")
    first, second = found["example__wordtool-1.json"], found["example__wordtool-2.json"]
    assert (first["success"], first["resolved"], first["reason_class"]) == (True, True, None), first["error"]
    assert (second["success"], second["resolved"], second["reason_class"]) == (False, False, "exit_code")
    assert first["final_test_results"] == {"passed": 6, "failed": 0, "errors": 0, "total": 6}
    assert second["final_test_results"] == {"passed": 4, "failed": 1, "errors": 0, "total": 5}
    assert second["FAIL_TO_PASS_failed"] == ["tests/test_words.py::test_headline_keeps_capitals"]
    assert second["PASS_TO_PASS_failed"] == [], "the tests of the base are back in the clean room"
    assert set(KEYS_OF_THE_RUNNER) <= set(first)
    shown = {task["id"]: task for task in bench.load("results", "last")["tasks"]}
    assert shown["example__wordtool-1"]["hidden_tests"] == {"passed": 6, "total": 6}
    assert "5 hidden" in bench("results", "last").stdout
    summary = found["summary.json"]
    assert set(SUMMARY_OF_THE_RUNNER) <= set(summary)
    assert (summary["total_instances"], summary["successful"], summary["failed"]) == (2, 1, 1)
    assert (summary["success_rate"], summary["max_iterations"], summary["score"][:10]) == (0.5, 5, "unofficial")
    (gold,) = [instance for instance in read_instances(bench) if instance["instance_id"] == "example__wordtool-1"]
    predictions = read_predictions(bench)
    assert [prediction["instance_id"] for prediction in predictions] == [
        "example__wordtool-1",
        "example__wordtool-2",
    ]
    assert changed(predictions[0]["model_patch"]) == changed(gold["patch"])
    assert predictions[1]["model_patch"] == "", "what changes tests alone is no source"
    assert bench.artifacts("runs", "r").resolve() == next(bench.cwd.glob("sessions/session-*")).resolve()
    assert (bench.cwd / "seen").read_text() == "{}", "the settings of agents are linked"
    # nothing later than the base
    assert (bench.cwd / "log").read_text().split("\n")[-2:] == ["Three functions about words", ""]
    assert "Fix count" not in (bench.cwd / "log").read_text()
    fixed = subprocess.run(
        ["git", "-C", "artifacts/repo", "rev-parse", "HEAD:wordtool/__init__.py", "HEAD"],
        cwd=bench.cwd,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    objects = (bench.cwd / "objects").read_text()
    assert fixed[1] not in objects
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
    assert (document["reason_class"], document["infrastructure"], document["resolved"]) == (
        "no_tests",
        False,
        None,
    )
    summary = bench.documents("r")["summary.json"]
    assert (summary["judged"], summary["infrastructure"]) == (0, 0)
    (prediction,) = read_predictions(bench)
    assert changed(prediction["model_patch"]) == changed(first["patch"])
    again = bench.run(GOLD, "--no-environment").stderr
    assert "skipped: 1 that ended before (--rerun runs them again)" in again
    assert again.endswith("nothing to do: all runs ended before\n")


@pytest.mark.slow
def test_a_test_that_fails_without_the_work_too_is_named(bench: Bench) -> None:
    """The agent breaks one test; another one, which the instance says passes, fails on the base as well."""
    (first, *_) = read_instances(bench)
    known = json.loads(first["PASS_TO_PASS"])
    new = "tests/test_words.py::test_count_of_nothing"
    first |= {"FAIL_TO_PASS": [], "PASS_TO_PASS": [*known, new]}
    bench.artifacts("instances.jsonl").write_text(json.dumps(first))
    done = bench.run(
        "sed -i.bak s/capitalize/upper/ wordtool/__init__.py", "--no-environment", "--iterations", "1"
    )
    assert done.returncode == 1
    document = bench.documents("r")["example__wordtool-1.json"]
    assert document["PASS_TO_PASS_failed"] == ["tests/test_words.py::test_headline", new]
    assert document["PASS_TO_PASS_failed_before"] == [new]
    assert (document["resolved"], document["infrastructure"]) == (False, False)
    before = list(bench.cwd.glob("sessions/session-*/jobs/*/a1-r1-prove/before/junit.xml"))
    assert len(before) == 1


@pytest.mark.slow
def test_a_round_that_breaks_what_passed_goes_back_to_the_agent(bench: Bench) -> None:
    """Round 1 breaks a test that passed, round 2 begins anew with what failed in its prompt."""
    script = f'case $SESSIONRUN_ROUND in 1) echo "x = (" >> wordtool/__init__.py;; *) {GOLD};; esac'
    done = bench.run(script, "--no-environment", "--instance", "example__wordtool-3", "--iterations", "2")
    assert done.returncode == 0, done.stderr
    document = bench.documents("r")["example__wordtool-3.json"]
    assert (document["success"], document["iterations"]) == (True, 2)


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
    """No check passes: one task has the right work and a bent test set-up, the other a round that was better."""
    bent = f"{GOLD}; echo 'raise RuntimeError' > conftest.py"
    first = "sed -i.bak s/capitalize/upper/ wordtool/__init__.py; rm wordtool/*.bak"
    worse = f'case $SESSIONRUN_ROUND in 1) {first};; *) echo "x = (" >> wordtool/__init__.py;; esac'
    script = f"case $SESSIONRUN_TASK in *-1) {bent};; *) {worse};; esac"
    done = bench.run(script, "--no-environment", "--sample", "2", "--iterations", "2")
    assert done.returncode == 1, done.stderr
    found = bench.documents("r")
    right, wrong = found["example__wordtool-1.json"], found["example__wordtool-2.json"]
    assert (right["success"], right["resolved"], right["iterations"]) == (True, True, 2), right["error"]
    assert right["final_test_results"]["passed"] == 6
    (gold, *_) = read_instances(bench)
    assert changed(right["prediction"]) == changed(gold["patch"])
    assert (wrong["success"], wrong["resolved"], wrong["reason_class"]) == (False, False, "check_failed")
    assert changed(wrong["prediction"])[1].endswith("(word.upper() for word in text.split())"), (
        "of the first round"
    )
    assert wrong["PASS_TO_PASS_failed"] == ["tests/test_words.py::test_headline"]
    assert wrong["final_test_results"] == {"passed": 3, "failed": 2, "errors": 0, "total": 5}
    predictions = {one["instance_id"]: one["model_patch"] for one in read_predictions(bench)}
    assert predictions == {one["instance_id"]: one["prediction"] for one in (right, wrong)}


# --- the environment and the Makefile ---


@pytest.mark.slow
def test_a_test_that_is_red_before_the_work_fails_no_round(bench: Bench) -> None:
    """This machine lacks something: the agent is not sent back for it, and the instance says whose fault it is."""
    repo = bench.artifacts("repo")
    (first, *_) = read_instances(bench)
    named = ("-c", "user.name=t", "-c", "user.email=t@localhost")
    for words in (["checkout", "-q", first["base_commit"]], ["add", "."], ["commit", "-qm", "Lacking"]):
        if words[0] == "add":
            (repo / "tests" / "test_lacking.py").write_text("def test_it():\n    import not_here\n")
        subprocess.run(["git", *named, *words], cwd=repo, check=True, capture_output=True)
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=repo, check=True, capture_output=True, text=True)
    lacking = "tests/test_lacking.py::test_it"
    first |= {"base_commit": head.stdout.strip(), "PASS_TO_PASS": [*json.loads(first["PASS_TO_PASS"]), lacking]}
    bench.artifacts("instances.jsonl").write_text(json.dumps(first))
    assert bench.run(GOLD, "--iterations", "3").returncode == 1
    document = bench.documents("r")["example__wordtool-1.json"]
    assert (document["iterations"], document["reason_class"]) == (1, "unresolved")
    assert document["error"].endswith("; 1 of these do not pass here without the work either")
    assert document["PASS_TO_PASS_failed"] == document["PASS_TO_PASS_failed_before"] == [lacking]
    (setup,) = bench.cwd.glob("sessions/session-*/jobs/*/a1-r1-setup")
    assert json.loads((setup / "known-red.json").read_text()) == {"ids": [lacking]}


@pytest.mark.slow
def test_the_makefile_of_the_example(bench: Bench) -> None:
    template = bench.cwd / "template"
    template.write_text(f": <<'X'\n{{problem_statement}}\nX\n{GOLD}\n")
    command = f"{Path(sys.executable).parent / 'sessionrun'}"
    # for precache and run: with walls an environment has other variables, and so is another one
    (bench.cwd / "sessionrun.toml").write_text('[sandbox]\npolicy = "none"\n')
    options = f"--prompt-template {template}"
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


def test_what_no_work_could_solve_is_refused_at_the_launch(own_place: Path) -> None:
    bench = begin_instance(own_place, test_patch=BROKEN)
    done = bench.run("true", "--no-environment", "i.jsonl")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "test_patch does not apply to its base" in done.stderr and "patch failed: t.py:1" in done.stderr
    bench = begin_instance(own_place / "other", base_commit="a" * 40)
    done = bench.run("true", "--no-environment", "i.jsonl")
    assert done.returncode == 2 and f"has no commit {'a' * 40}" in done.stderr


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
