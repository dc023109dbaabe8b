"""Sessions that were recorded still fold to the same status.json: between them they use each feature.

`GOLDEN=write pytest -n 0 --basetemp /tmp/sample tests/house/test_journals.py` records them anew, with real git and
real processes, when the form of the journal has changed: spec, journal, and what these fold to.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import orjson
import pytest
from stages import make_repository_of

from sessionrun.engine.status import project
from sessionrun.session.history import replay
from sessionrun.store.session import SessionDir

KEPT: Final = Path(__file__).parent.parent / "data" / "journals"
EXAMPLES: Final = Path(__file__).parent.parent.parent / "examples"
COST: Final = {
    "type": "result",
    "subtype": "success",
    "is_error": False,
    "result": "done",
    "total_cost_usd": 0.03,
    "usage": {"input_tokens": 900, "output_tokens": 80, "cache_read_input_tokens": 10},
    "modelUsage": {"large": {"inputTokens": 900, "outputTokens": 80, "costUSD": 0.03}},
}
"""The last line of what an agent prints that says what it cost."""

FILES: Final = {
    "f": "1\n",
    "add.py": "def add(a, b):\n    return a - b\n",
    "test_add.py": "from add import add\nassert add(1, 2) == 3\n",
    "template": "{title}\n",
    "sessionrun.toml": '[agents.paid]\nargv = ["sh", "{prompt_file}"]\noutput = "claude"\n',
}
"""In the repository in which each is recorded."""

PLANS: Final[dict[str, Any]] = {
    "graph": {
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
    },
    "rounds": [
        {
            "id": "mended",
            "prompt": 'test -z "$SESSIONRUN_FEEDBACK" || echo > ok',
            "check": "test -f ok",
            "rounds": 3,
        },
        {"id": "red", "prompt": "true", "check": "exit 4", "rounds": 2},
        {"id": "bare", "prompt": "true", "check": "no-such-program"},
    ],
    "landing": {
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
    "proof": [
        {"id": "honest", "prompt": "sed -i s/-/+/ add.py", "check": "python3 test_add.py", "prove": True},
        {"id": "cheat", "prompt": "echo > test_add.py", "check": "python3 test_add.py", "prove": True},
    ],
    "matrix": {
        "concurrency": 2,
        "samples": 2,
        "tasks": [{"id": "review", "name": "Review", "prompts": ["echo $SESSIONRUN_MODEL"]}],
        "models": ["small", {"name": "large"}],
    },
    "requests": {
        "max_parallel": 2,
        "prompts": [
            {"id": "slow", "prompt": "sleep 3"},
            {"id": "bad", "prompt": "exit 1"},
            {"id": "held", "prompt": "true"},
            {"id": "gone", "prompt": "sleep 60"},
        ],
    },
    "money": [{"id": f"p{number}", "prompt": f"echo '{json.dumps(COST)}'"} for number in range(4)],
    "walls": [{"id": "in", "prompt": "echo > a"}],
}
SHELL: Final = "sessionrun -q --agent shell"
SCRIPTS: Final = {
    "graph": f"{SHELL} plan.json",
    "rounds": f"{SHELL} --worktree plan.json",
    "landing": f"{SHELL} --worktree plan.json",
    "proof": f"{SHELL} --worktree plan.json",
    "matrix": f"{SHELL} --from matrix plan.json",
    "job-files": f"cp -r {EXAMPLES}/markdown work; {SHELL} work",
    "requests": f"""
        id=$({SHELL} --hold --worktree plan.json)
        sessionrun release $id slow bad gone
        sessionrun set $id --max-parallel 3
        echo '[{{"id": "added", "prompt": "echo > added"}}]' | sessionrun run --into $id --worktree -
        sessionrun release $id added
        sessionrun wait $id slow bad
        sessionrun retry $id bad
        sessionrun cancel $id gone
        sessionrun wait $id added
        sessionrun continue $id added 'echo more > more'
        sessionrun hold $id bad
        sessionrun release $id""",
    "money": "sessionrun -q --agent paid --budget 0.05 --task-budget 0.04 --fallback shell plan.json",
    "queue": """
        sessionrun queue add 'echo 1 > one' --backend file
        sessionrun queue add 'exit 3' --backend file
        sessionrun dispatch -q --once --agent shell --workers 2 --retries 1 --no-ready --backend file \\
            --prompt-template template""",
    "walls": f"{SHELL} --worktree --sandbox project plan.json",
    "instances": f"""
        cp -r {EXAMPLES}/swebench bench; (cd bench; ./bootstrap.sh)
        {SHELL} --from swebench --no-environment --cache-dir ../cache --output-dir ../out \\
            bench/artifacts/instances.jsonl""",
}


def fold(session: Path) -> dict[str, Any]:
    """What status.json shows once the journal beside the spec is folded."""
    folded: dict[str, Any] = orjson.loads(orjson.dumps(project(replay(SessionDir(session))[0])))
    return folded


def record(name: str, place: Path) -> None:
    """Run a script to its end and keep the session's spec, its journal, and what they fold to."""
    make_repository_of(place, FILES)
    (place / "plan.json").write_text(json.dumps(PLANS.get(name)))
    program = f'sessionrun() {{ {sys.executable} -m sessionrun "$@"; }}'
    subprocess.run(["sh", "-c", f"{program}\n{SCRIPTS[name]}\nsessionrun wait last"], cwd=place)
    (session,) = (place / "results").glob("session-*")
    kept = KEPT / name
    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir(parents=True)
    for file in ("spec.json", "journal"):
        shutil.copyfile(session / file, kept / file)
    (kept / "folded.json").write_bytes(orjson.dumps(fold(kept), option=orjson.OPT_INDENT_2) + b"\n")


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_recorded_journal_folds_to_the_same_status(name: str, own_place: Path) -> None:
    if os.environ.get("GOLDEN") == "write":
        record(name, own_place)
    assert fold(KEPT / name) == orjson.loads((KEPT / name / "folded.json").read_bytes())
