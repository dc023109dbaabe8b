"""A matrix as a session: runs in worktrees, the results file while it runs, what a second launch does."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from conftest import Command, eventually
from stages import Stage, git, lay_out_repository, make_repository_of, stage

from sessionrun.store.session import SessionDir

__all__ = ["stage"]

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "matrix"

QWEN = r"""#!/bin/sh
logs= model=
for word; do
    case $word in
        --openai-logging-dir=*) logs=${word#*=} ;;
        --model=*) model=${word#*=} ;;
    esac
done
prompt=$(cat)
echo "$*" >> "$HOME/calls"
while [ -e "$HOME/wait" ]; do sleep 0.2; done
mkdir -p "$logs" && echo '{}' > "$logs/openai-$$.json"
if [ -e "$HOME/fail-$model" ]; then
    echo "model $model is out" >&2
    exit 7
fi
printf '%s\n%s\n' "$model" "$prompt" > answer.txt
say() { printf '%s\n' "$1"; }
say '{"type":"system","subtype":"init","session_id":"c1","model":"'"$model"'"}'
say '{"type":"assistant","message":{"role":"assistant","content":[{"type":"text","text":"done"}]}}'
say '{"type":"result","subtype":"success","is_error":false,"result":"done by '"$model"'","session_id":"c1",
"num_turns":1,"usage":{"input_tokens":10,"output_tokens":5}}' | tr -d '\n'
echo
"""


class Matrix(Command):
    """The command in a repository with a package.json, and a `qwen` on PATH that only writes a file."""

    def git(self, *argv: str) -> str:
        return git(self.cwd, *argv)

    def config(self, **said: Any) -> str:
        base = {
            "worktree_base": "../trees",
            "setup": "true",
            "tasks": [{"id": "one", "name": "One", "prompts": ["Do it.", "Do it well."]}],
            "models": ["m1", "m2"],
        }
        (self.cwd / "config.json").write_text(json.dumps({**base, **said}))
        return "config.json"

    def document(self) -> dict[str, Any]:
        loaded = json.loads((self.cwd / "results.json").read_text())
        assert isinstance(loaded, dict)
        return loaded

    def runs(self) -> list[dict[str, Any]]:
        return list(self.document()["runs"])

    def launch(self, *words: str) -> str:
        done = self("-q", *words, "config.json")
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def finish(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run all to the end."""
        return self.to_end("--sync", "-q", *words, "config.json")

    def end(self) -> tuple[str, dict[str, Any]]:
        """Run all to the end; the session's id and status."""
        done = self.to_end("-q", "config.json")
        assert done.returncode == 0, done.stderr
        session = done.stdout.strip()
        return session, self.wait(session)

    @contextmanager
    def running(self) -> Iterator[str]:
        """Let all wait where their agents begin; behind the block they have come to their end."""
        wait = Path(os.environ["HOME"]) / "wait"
        wait.touch()
        session_id = self.launch()
        yield session_id
        wait.unlink()
        self.wait(session_id)

    def calls(self) -> list[str]:
        path = Path(os.environ["HOME"]) / "calls"
        return path.read_text().splitlines() if path.exists() else []


def make_repository(top: Path) -> None:
    package = '{"name": "x", "private": true, "scripts": {"build": "echo built > built"}}\n'
    ignored = "built\nnode_modules\npackage-lock.json\n*.json\noutputs\n!package.json\n"
    make_repository_of(top, {"package.json": package, ".gitignore": ignored})


def matrix_in(place: Path, monkeypatch: pytest.MonkeyPatch) -> Matrix:
    """A repository below a working directory, and a directory on PATH; they may be there already."""
    bin_dir = place / "bin"
    monkeypatch.setenv("PATH", f"{bin_dir}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SESSIONRUN_RESULTS_DIR", str(place / "sessions"))
    matrix = Matrix(place / "repo", place / "sessions")
    if not matrix.cwd.exists():
        lay_out_repository(make_repository, matrix.cwd)
        bin_dir.mkdir()
        (bin_dir / "qwen").write_text(QWEN)
        (bin_dir / "qwen").chmod(0o755)
    return matrix


@pytest.fixture
def matrix(own_place: Path, monkeypatch: pytest.MonkeyPatch) -> Matrix:
    return matrix_in(own_place, monkeypatch)


@pytest.fixture
def one_failed(own_place: Path, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Matrix:
    """Three runs have ended, as `sessions[0]`: that of m2 failed, and fails again until a file is removed."""

    def run(place: Path) -> None:
        matrix = matrix_in(place / "work", monkeypatch)
        matrix.config(models=["m1", "m2", "m3"])
        (place / "home" / "fail-m2").touch()
        assert matrix.finish().returncode == 1
        (folder,) = matrix.results.glob("session-*")
        eventually(lambda: not SessionDir(folder).is_alive())

    place = stage.enter("matrix", monkeypatch, run)
    matrix = matrix_in(place / "work", monkeypatch)
    matrix.sessions = [path.name.removeprefix("session-") for path in matrix.results.glob("session-*")]
    return matrix


def test_two_models_two_samples(matrix: Matrix) -> None:
    config = json.loads((EXAMPLES / "samples.json").read_text())
    config["worktree_base"] = "../trees"
    config["concurrency"] = 2
    del config["tasks"][1:]
    write_npm(matrix)
    (matrix.cwd / "config.json").write_text(json.dumps(config))
    with matrix.running() as session:
        eventually(lambda: {run["status"] for run in matrix.runs()} == {"queued", "running"}, timeout_s=60)
    status, runs = matrix.wait(session), matrix.runs()
    assert status["outcome"] == "succeeded", [task["reason"] for task in status["tasks"]]
    cells = [(run["task_id"], run["model"], run["sample"]) for run in runs]
    assert cells == [("docs", model, sample) for model in ("qwen3-coder-plus", "qwen3-max") for sample in (1, 2)]
    assert {run["status"] for run in runs} == {"succeeded"}
    for run in runs:
        check_outputs(matrix, run)
    assert len({run["run_id"] for run in runs}) == 4
    shown = matrix("status", session).stdout
    assert "\nsolved " in shown and shown == matrix("status", session, "--by", "model").stdout
    (group,) = matrix.load("status", session, "--by", "task")["groups"]
    assert (group["key"], group["succeeded"], group["pass_at"]["1"]["estimate"]) == ("docs", 4, 1.0)
    chosen = matrix.load("status", session, "1", "--by", "model")["groups"]
    assert [cell["runs"] for group in chosen for cell in group["cells"]] == [1]
    assert matrix("doctor", session).returncode == 0
    assert matrix.git("worktree", "list").count("\n") == 0
    assert not list((matrix.cwd.parent / "trees").iterdir())
    assert matrix.git("status", "--porcelain", "--untracked-files=no") == ""


def check_outputs(matrix: Matrix, run: Mapping[str, Any]) -> None:
    """What lies in a run's directory."""
    folder = matrix.cwd / run["output_dir"]
    assert run["output_dir"] == f"outputs/{run['run_id']}"
    assert sorted(path.name for path in folder.iterdir()) == ["diff.patch", "logs", "stderr.txt", "stdout.txt"]
    assert (matrix.cwd / run["stdout_file"]).read_text() == f"done by {run['model']}"
    assert "+++ b/answer.txt" in (matrix.cwd / run["diff_file"]).read_text()
    assert [path.name[:7] for path in (matrix.cwd / run["logs_dir"]).iterdir()] == ["openai-"]
    assert (run["exit_code"], run["error_message"], run["session_id"]) == (0, None, "c1")


NPM = """#!/bin/sh
echo "$*" >> "$HOME/npm-calls"
[ "$1" != run ] || echo built > built
"""


def write_npm(matrix: Matrix) -> None:
    """A program that does what npm does with our package.json; npm itself takes a second and more."""
    program = matrix.cwd.parent / "bin" / "npm"
    program.write_text(NPM)
    program.chmod(0o755)


@pytest.mark.slow
def test_the_example_runs_unchanged(matrix: Matrix, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"npm_config_offline": "true", "npm_config_audit": "false"}.items():
        monkeypatch.setenv(name, value)
    if shutil.which("npm") is None:
        write_npm(matrix)
    shutil.copy(EXAMPLES / "config.json", matrix.cwd)
    done = matrix.finish()

    assert done.returncode == 0, done.stdout + done.stderr
    first, second = matrix.runs()
    assert (first["model"], second["model"]) == ("claude-3-5-sonnet-20241022", "qwen3-coder-plus")
    assert (first["task_id"], first["task_name"]) == ("code-review", "Security Code Review")
    home = Path(os.environ["HOME"])
    assert first["worktree_path"] == str(home / ".qwen" / "worktrees" / f"run-{first['run_id']}")
    assert not Path(first["worktree_path"]).exists()
    assert all("--yolo" in call and "--openai-logging " in call for call in matrix.calls())
    assert matrix.git("branch", "--list", f"run-{first['run_id']}")
    for key in ("logs_dir", "started_at", "ended_at", "stderr_file"):
        assert first[key]


@pytest.mark.slow
def test_what_succeeded_is_skipped_unless_it_is_to_run_again(one_failed: Matrix) -> None:
    matrix = one_failed
    first, second, third = matrix.runs()
    assert [run["status"] for run in (first, second, third)] == ["succeeded", "failed", "succeeded"]
    assert (second["exit_code"], bool(second["error_message"]), second["diff_file"]) == (7, True, None)

    (Path(os.environ["HOME"]) / "fail-m2").unlink()
    (matrix.cwd / "results.json").chmod(0o640)
    again = matrix.finish()
    assert again.returncode == 0
    assert "skipped: 2 that succeeded before" in again.stderr
    kept, fresh, other = matrix.runs()
    assert (kept, other) == (first, third)
    assert (fresh["model"], fresh["status"]) == ("m2", "succeeded")
    assert len(matrix.calls()) == 4
    assert (matrix.cwd / "results.json").stat().st_mode & 0o777 == 0o640

    written = (matrix.cwd / "results.json").read_bytes()
    foreseen = matrix("--dry-run", "config.json")
    assert (foreseen.returncode, foreseen.stdout) == (0, "")
    assert foreseen.stderr.endswith("nothing to do: all runs succeeded before\n")
    assert matrix.load("--dry-run", "config.json") == matrix.load("config.json")
    assert (matrix.cwd / "results.json").read_bytes() == written

    nothing = matrix("--sync", "config.json")
    assert nothing.returncode == 0
    assert "nothing to do" in nothing.stderr
    assert len(matrix.calls()) == 4

    matrix.config(models=["m1", "m2"])
    assert matrix.finish("--rerun").returncode == 0
    assert len(matrix.calls()) == 6
    assert {run["run_id"] for run in matrix.runs()} & {kept["run_id"], fresh["run_id"]} == set()


@pytest.mark.slow
def test_of_several_launches_at_once_one_gets_the_file(matrix: Matrix) -> None:
    matrix.config()
    (Path(os.environ["HOME"]) / "wait").touch()
    launches = [
        matrix.popen("-q", "config.json", stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(3)
    ]
    said = [launch.communicate(timeout=60) for launch in launches]
    started = [out.decode().strip() for out, _ in said if out]
    assert sorted(launch.returncode for launch in launches) == [0, 2, 2]
    assert matrix.document()["session"] == str(matrix.directory(started[0]))
    assert sum(b"is being written by session" in err for _, err in said) == 2
    later = matrix("--rerun", "config.json")
    assert later.returncode == 2
    assert f"results.json is being written by session {started[0]}" in later.stderr
    assert [path.name for path in matrix.results.glob("session-*")] == [f"session-{started[0]}"]
    (Path(os.environ["HOME"]) / "wait").unlink()
    assert matrix.wait(started[0])["outcome"] == "succeeded"
    assert {run["status"] for run in matrix.runs()} == {"succeeded"}


def test_what_a_killed_writer_left_beside_the_results_file(one_failed: Matrix) -> None:
    left = one_failed.cwd / f".results.json.{2**22 - 7}.tmp"
    left.touch()
    assert f"{left}: left by a process that died" in one_failed("doctor").stdout
    one_failed("doctor", "--fix")
    assert not left.exists()


@pytest.mark.slow
def test_the_results_file_is_right_after_a_crash_and_a_launch_over_it_says_so(matrix: Matrix) -> None:
    matrix.config()
    wait = Path(os.environ["HOME"]) / "wait"
    wait.touch()
    session = matrix.launch()
    eventually(lambda: len(matrix.calls()) == 2)
    matrix.kill_chain(session)
    told = matrix("--dry-run", "config.json").stderr
    assert f"session {session}, which wrote" in told
    assert f"sessionrun resume {session}" in told
    (matrix.cwd / "results.json").unlink()
    wait.unlink()
    assert matrix("resume", session).returncode == 0
    status = matrix.wait(session)
    words = {"succeeded": "succeeded"}
    runs = matrix.runs()
    assert [run["status"] for run in runs] == [words.get(task["outcome"], "failed") for task in status["tasks"]]
    assert all((run["error_message"] is None) == (run["status"] == "succeeded") for run in runs)


@pytest.mark.slow
def test_the_words_while_it_runs(matrix: Matrix) -> None:
    matrix.config(setup='while [ -e "$HOME/wait" ]; do sleep 0.2; done', concurrency=1)
    with matrix.running():
        eventually(lambda: [run["status"] for run in matrix.runs()] == ["initializing", "queued"])
        first, second = matrix.runs()
        assert Path(first["worktree_path"]).is_dir()
        assert (first["ended_at"], first["exit_code"], second["started_at"]) == (None, None, None)
    assert [run["status"] for run in matrix.runs()] == ["succeeded", "succeeded"]


@pytest.mark.slow
def test_what_the_file_missed_is_known_at_the_next_launch(matrix: Matrix) -> None:
    """Its last state may be from before the disk was full; the session knows better.  What is new in it runs."""
    matrix.config(models=["m1"])
    matrix.end()
    whole = matrix.document()
    stale = {**whole, "runs": [{**run, "status": "running"} for run in whole["runs"]]}
    (matrix.cwd / "results.json").write_text(json.dumps(stale))
    told = matrix("config.json").stderr
    assert "nothing to do" in told
    assert "interrupted" not in told
    assert matrix.document() == stale, "only the session itself writes it"
    assert "has ended" in matrix("resume", "last").stdout
    eventually(lambda: matrix.runs() == whole["runs"])
    eventually(lambda: not SessionDir(Path(whole["session"])).is_alive())

    (matrix.cwd / "results.json").write_text(json.dumps(stale))
    matrix.config(models=["m1", "m2"], samples=2)
    matrix.end()
    assert matrix.runs()[:1] == whole["runs"]
    assert [(run["model"], run["sample"]) for run in matrix.runs()] == [("m1", 1), ("m1", 2), ("m2", 1), ("m2", 2)]
    assert len(matrix.calls()) == 4


@pytest.mark.slow
def test_a_failed_setup_says_where_its_words_are(matrix: Matrix) -> None:
    go = Path(os.environ["HOME"]) / "go"
    matrix.config(models=["m1"], setup='test -e "$HOME/go" || { echo "no such script" >&2; exit 3; }')
    session, _ = matrix.end()
    (run,) = matrix.runs()
    words = f"jobs/{run['run_id']}/a1-r1-setup/stderr"
    assert run["error_message"] == f"setup_failed: exit code 3, see {words}"
    for path in (matrix.directory(session) / words, matrix.cwd / run["stderr_file"]):
        assert path.read_text() == "no such script\n"
    go.touch()
    assert matrix.to_end("retry", session, "--failed").returncode == 0
    assert matrix.wait(session)["outcome"] == "succeeded"
    assert (matrix.cwd / run["stderr_file"]).read_text() == ""


@pytest.mark.slow
def test_clean_says_what_leads_to_a_session(matrix: Matrix) -> None:
    matrix.config(models=["m1"], tasks=[{"id": "one", "name": "One", "prompts": ["true"]}], agents=["shell"])
    session, _ = matrix.end()
    for words, verb in ((("--dry-run",), "would remove"), ((), "removed")):
        line = f"{verb} session {matrix.directory(session)}: completed, nothing needs it but the links in"
        assert f"{line} {matrix.cwd}/outputs\n" in matrix("clean", "--keep", "0", "--worktrees", *words).stdout


@pytest.mark.slow
def test_a_session_that_was_followed_by_another_leaves_the_file_alone(one_failed: Matrix) -> None:
    matrix, first = one_failed, one_failed.sessions[0]
    (Path(os.environ["HOME"]) / "fail-m2").unlink()
    second, _ = matrix.end()
    before = matrix.document()
    assert before["session"] == str(matrix.directory(second))
    assert matrix.to_end("retry", first, "--failed").returncode == 0
    assert matrix.wait(first)["outcome"] == "succeeded"
    assert matrix.document() == before
    assert "belongs to a later session" in (matrix.directory(first) / "supervisor.log").read_text()


@pytest.mark.slow
def test_a_retried_run_shows_its_last_attempt(one_failed: Matrix) -> None:
    matrix, session = one_failed, one_failed.sessions[0]
    (Path(os.environ["HOME"]) / "fail-m2").unlink()
    assert matrix.to_end("retry", session, "--failed").returncode == 0
    assert matrix.wait(session)["outcome"] == "succeeded"
    _, run, _ = matrix.runs()
    assert (run["status"], run["error_message"]) == ("succeeded", None)
    assert (matrix.cwd / run["diff_file"]).readlink().name == "a2-diff.patch"
    assert len(list((matrix.cwd / run["logs_dir"]).iterdir())) == 2


@pytest.mark.slow
def test_the_other_program_s_results_file_is_known(matrix: Matrix) -> None:
    matrix.config()
    old = {"run_id": "abc123", "task_id": "one", "model": "m1", "status": "succeeded", "logs_dir": "x"}
    (matrix.cwd / "results.json").write_text(json.dumps({"updated_at": "2026-01-28T10:30:00", "runs": [old]}))
    matrix.end()
    first, second = matrix.runs()
    assert first == old
    assert (second["model"], second["status"]) == ("m2", "succeeded")


@pytest.mark.slow
def test_keep_worktree_and_a_branch_and_a_place_inside_the_repository(matrix: Matrix) -> None:
    (matrix.cwd / "sub").mkdir()
    (matrix.cwd / "sub" / "file").write_text("x")
    matrix.git("add", "-A")
    matrix.git("commit", "-q", "-m", "sub")
    matrix.git("branch", "old", "HEAD")
    matrix.config(
        keep_worktree=True, branch="old", source_repo="sub", models=["m1"], results_file="deep/er/r.json"
    )
    _, status = matrix.end()
    (run,) = json.loads((matrix.cwd / "deep" / "er" / "r.json").read_text())["runs"]
    assert run["branch"] == f"old-run-{run['run_id']}"
    assert run["worktree_path"] == str(matrix.cwd.parent / "trees" / f"run-{run['run_id']}")
    assert (Path(run["worktree_path"]) / "sub" / "answer.txt").exists()
    assert status["tasks"][0]["worktree_kept"] == "worktrees are kept"


def test_outputs_that_cannot_be_are_refused(matrix: Matrix) -> None:
    matrix.config(outputs_dir="package.json")
    done = matrix("config.json")
    assert done.returncode == 3
    assert done.stderr.endswith(
        f"error: cannot write {matrix.cwd}/package.json: 'package.json' is not a directory\n"
    )
    assert not list(matrix.results.glob("session-*"))
