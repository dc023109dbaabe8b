"""Records sessions that between them use each feature: spec, journal, and the status.json they fold to.

`python -m tests.house.journals` runs them anew below /tmp/sample, with real git and real processes, when the
form of the journal has changed; `test_journals` folds what is kept and compares.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import orjson

from sessionrun.client.reading.view import fold_journal
from sessionrun.engine.status import project
from sessionrun.store.session import SessionDir

KEPT: Final = Path(__file__).parent.parent / "data" / "journals"
PLACE: Final = Path("/tmp/sample")
EXAMPLES: Final = Path(__file__).parent.parent.parent / "examples"
STREAM: Final = {
    "type": "result",
    "subtype": "success",
    "is_error": False,
    "result": "done",
    "total_cost_usd": 0.03,
    "usage": {"input_tokens": 900, "output_tokens": 80, "cache_read_input_tokens": 10},
    "modelUsage": {"large": {"inputTokens": 900, "outputTokens": 80, "costUSD": 0.03}},
}
"""The last line of what an agent prints that says what it cost."""

GIT: Final = {
    "GIT_CONFIG_NOSYSTEM": "1",
    **{f"GIT_{who}_NAME": "sample" for who in ("AUTHOR", "COMMITTER")},
    **{f"GIT_{who}_EMAIL": "sample@example.org" for who in ("AUTHOR", "COMMITTER")},
}


class Stage:
    """A directory of its own with a repository in it, and the command typed there."""

    def __init__(self, name: str) -> None:
        self.top = PLACE / name
        self.results = PLACE / f"{name}-results"
        self.top.mkdir(parents=True)
        kept = {"PATH": "/usr/bin:/bin", "HOME": str(PLACE), "LANG": "C.UTF-8"}
        self._env = {**kept, **GIT, "SESSIONRUN_RESULTS_DIR": str(self.results)}
        for words in (("init", "-q", "-b", "main"), ("commit", "-q", "--allow-empty", "-m", "first")):
            subprocess.run(["git", *words], cwd=self.top, env=self._env, check=True)

    def write(self, files: Mapping[str, str]) -> None:
        """Write files and commit them."""
        for name, text in files.items():
            path = self.top / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        subprocess.run(["git", "add", "-A"], cwd=self.top, env=self._env, check=True)
        subprocess.run(["git", "commit", "-qm", "files"], cwd=self.top, env=self._env, check=True)

    def __call__(self, *words: str, plan: object = None) -> str:
        """Type `sessionrun`, with a plan on standard input."""
        argv = [sys.executable, "-m", "sessionrun", *words]
        text = None if plan is None else json.dumps(plan)
        done = subprocess.run(argv, cwd=self.top, env=self._env, input=text, capture_output=True, text=True)
        assert done.returncode in (0, 1, 75), (words, done.stderr)
        return done.stdout.strip()

    def run(self, plan: object, *words: str) -> str:
        """Start a session in which the built-in shell is the agent."""
        return self("-q", "--agent", "shell", *words, plan=plan)


def _record_graph(stage: Stage) -> None:
    stage.run(
        {
            "name": "graph",
            "labels": {"kind": "sample"},
            "max_parallel": 2,
            "resources": {"gpu": 1},
            "prompts": [
                {"id": "good", "prompt": "echo fine", "uses": {"gpu": 1}},
                {"id": "bad", "prompt": "exit 7", "retries": 1},
                {"id": "after-bad", "prompt": "true", "needs": ["bad"]},
                {"id": "killed", "prompt": "kill -9 $$"},
                {"id": "late", "prompt": "sleep 60", "timeout": 0.5},
                {"id": "silent", "prompt": "sleep 60", "idle_timeout": 0.5},
                {"id": "missing", "prompt": "x", "setup": "exit 3"},
                {"id": "last", "prompt": "true", "needs": ["good"], "priority": 5, "uses": {"gpu": 1}},
            ],
        }
    )


def _record_rounds(stage: Stage) -> None:
    mend = 'test -z "$SESSIONRUN_FEEDBACK" || echo > ok'
    stage.run(
        [
            {"id": "mended", "prompt": mend, "check": "test -f ok", "rounds": 3},
            {"id": "red", "prompt": "true", "check": "exit 4", "rounds": 2},
            {"id": "bare", "prompt": "true", "check": "no-such-program"},
        ],
        "--worktree",
    )


def _record_landing(stage: Stage) -> None:
    stage.write({"f": "1\n"})
    stage.run(
        {
            "land": {"mends": 1, "gates": "! test -e broken"},
            "prompts": [
                {"id": "one", "prompt": "echo one > one"},
                {"id": "left", "prompt": "echo left > f"},
                {"id": "right", "prompt": "sleep 1; echo right > f"},
                {"id": "gated", "prompt": "echo > broken"},
                {"id": "idle", "prompt": "true", "expect_change": True},
                {"id": "after", "prompt": "echo 2 > two", "needs": ["one"]},
            ],
        },
        "--worktree",
    )


def _record_proof(stage: Stage) -> None:
    test = "from add import add\nassert add(1, 2) == 3\n"
    stage.write({"add.py": "def add(a, b):\n    return a - b\n", "test_add.py": test})
    check = "python3 test_add.py"
    stage.run(
        [
            {"id": "honest", "prompt": "sed -i s/-/+/ add.py", "check": check, "prove": True},
            {"id": "cheat", "prompt": "echo > test_add.py", "check": check, "prove": True},
        ],
        "--worktree",
    )


def _record_matrix(stage: Stage) -> None:
    tasks = [{"id": "review", "name": "Review", "prompts": ["echo $SESSIONRUN_MODEL"]}]
    models = ["small", {"name": "large"}]
    stage.run({"concurrency": 2, "samples": 2, "tasks": tasks, "models": models}, "--from", "matrix")


def _record_job_files(stage: Stage) -> None:
    shutil.copytree(EXAMPLES / "markdown", stage.top / "work")
    stage("-q", "--agent", "shell", "work")


def _record_requests(stage: Stage) -> None:
    session = stage.run(
        {
            "max_parallel": 2,
            "prompts": [
                {"id": "slow", "prompt": "sleep 3"},
                {"id": "bad", "prompt": "exit 1"},
                {"id": "held", "prompt": "true"},
                {"id": "gone", "prompt": "sleep 60"},
            ],
        },
        "--hold",
        "--worktree",
    )
    stage("release", session, "slow", "bad", "gone")
    stage("set", session, "--max-parallel", "3")
    stage(
        "run", "--into", session, "--worktree", "-", plan={"prompts": [{"id": "added", "prompt": "echo > added"}]}
    )
    stage("release", session, "added")
    stage("wait", session, "slow", "bad")
    stage("retry", session, "bad")
    stage("cancel", session, "gone")
    stage("wait", session, "added")
    stage("continue", session, "added", "echo more > more")
    stage("hold", session, "bad")
    stage("release", session)


def _record_money(stage: Stage) -> None:
    stage.write({"sessionrun.toml": '[agents.paid]\nargv = ["sh", "{prompt_file}"]\noutput = "claude"\n'})
    prompts = [{"id": f"p{number}", "prompt": f"echo '{json.dumps(STREAM)}'"} for number in range(4)]
    stage(
        "-q", "--agent", "paid", "--budget", "0.05", "--task-budget", "0.04", "--fallback", "shell", plan=prompts
    )


def _record_queue(stage: Stage) -> None:
    stage("queue", "add", "echo 1 > one", "--backend", "file")
    stage("queue", "add", "exit 3", "--backend", "file")
    template = stage.top / "template"
    template.write_text("{title}\n")
    stage("dispatch", "-q", "--once", "--agent", "shell", "--workers", "2", "--retries", "1", "--no-ready",
          "--backend", "file", "--prompt-template", str(template))  # fmt: skip


def _record_walls(stage: Stage) -> None:
    stage.run([{"id": "in", "prompt": "echo > a"}], "--worktree", "--sandbox", "project")


def _record_instances(stage: Stage) -> None:
    shutil.copytree(EXAMPLES / "swebench", stage.top / "bench")
    subprocess.run(["./bootstrap.sh"], cwd=stage.top / "bench", check=True, capture_output=True)
    stage("-q", "--from", "swebench", "--agent", "shell", "--no-environment", "--cache-dir", str(PLACE / "cache"),
          "--output-dir", str(stage.top / "out"), "bench/artifacts/instances.jsonl")  # fmt: skip


RECIPES: Final[Mapping[str, Callable[[Stage], None]]] = {
    "graph": _record_graph,
    "rounds": _record_rounds,
    "landing": _record_landing,
    "proof": _record_proof,
    "matrix": _record_matrix,
    "job-files": _record_job_files,
    "requests": _record_requests,
    "money": _record_money,
    "queue": _record_queue,
    "walls": _record_walls,
    "instances": _record_instances,
}


def fold(session: Path) -> dict[str, Any]:
    """What status.json shows once the journal beside the spec is folded."""
    state = fold_journal(SessionDir(session))
    folded: dict[str, Any] = orjson.loads(orjson.dumps(project(state)))
    return folded


def record(name: str) -> None:
    """Run a recipe to its end and keep its spec, its journal, and what they fold to."""
    stage = Stage(name)
    RECIPES[name](stage)
    (session,) = stage.results.glob("session-*")
    stage("wait", session.name.removeprefix("session-"))
    kept = KEPT / name
    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir(parents=True)
    for file in ("spec.json", "journal"):
        shutil.copyfile(session / file, kept / file)
    (kept / "folded.json").write_bytes(orjson.dumps(fold(kept), option=orjson.OPT_INDENT_2) + b"\n")


if __name__ == "__main__":
    os.umask(0o022)
    for name in sys.argv[1:] or RECIPES:
        shutil.rmtree(PLACE, ignore_errors=True)
        record(name)
        print(name, fold(KEPT / name)["counts"])
    shutil.rmtree(PLACE, ignore_errors=True)
