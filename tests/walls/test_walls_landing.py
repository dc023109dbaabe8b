"""What runs a task's code after its work, inside of walls; and the limit of its memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_cli_worktrees import Project, project_in
from walled import need_walls

from sessionrun.model.asked import Sandbox
from sessionrun.walls import groups

pytestmark = pytest.mark.slow


@pytest.fixture
def walled(own_place: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    need_walls()
    return project_in(own_place, monkeypatch)


@pytest.fixture
def probe(walled: Project) -> str:
    """A command that fails outside: there it would see the session, could write the checkout, or read a key."""
    (walled.cwd / "a.txt").touch()
    secret = Path.home() / ".netrc"
    secret.write_text("key")
    fails = (f"ls {walled.results} | grep -q session-", f"test -w {walled.cwd}/a.txt", f"test -s {secret}")
    return "; ".join((*(f"{fail} && exit 9" for fail in fails), "test -f work.txt"))


def run(walled: Project, plan: object, *words: str) -> list[dict[str, Any]]:
    """Run a plan to its end; its tasks."""
    tasks: list[dict[str, Any]] = walled.status(walled.finish(plan, *words))["tasks"]
    return tasks


@pytest.mark.parametrize("policy", ["project", "strict"])
@pytest.mark.parametrize("gated", [True, False], ids=["gates inside", "gates outside"])
def test_proof_and_gates(walled: Project, probe: str, policy: str, gated: bool) -> None:
    land = {"into": "main", "gates": [probe], **({} if gated else {"sandbox": "none"})}
    work = "echo work > work.txt; git add work.txt; git commit -qm work"
    task = {"id": "one", "prompt": work, "check": probe, "prove": True}
    (seen,) = run(walled, {"land": land, "tasks": [task]}, "--sandbox", policy)
    assert (seen["outcome"], seen["proof"]) == ("succeeded", "proved")
    merged = walled.git("log", "-1", "--format=%s", "main").startswith("Merge task one")
    assert merged == gated, "outside, the gate is red"
    assert (walled.cwd / "work.txt").exists() == gated


@pytest.mark.parametrize(
    ("walls", "words", "gated"),
    [
        (["--sandbox", "project"], [], True),
        (["--sandbox", "strict"], [], True),
        (["--sandbox", "project"], ["--sandbox", "none"], False),
        ([], ["--sandbox", "strict"], True),
    ],
    ids=["as the project", "as strict", "outside", "said by merge"],
)
def test_the_gates_of_merge(walled: Project, probe: str, walls: list[str], words: list[str], gated: bool) -> None:
    session = walled.finish([{"id": "one", "prompt": "echo work > work.txt"}], *walls)
    done = walled("merge", session, "--gate", probe, *words)
    assert (done.returncode, done.stdout.startswith("one: landed")) == ((0, True) if gated else (75, False)), done
    (folder,) = walled.results.glob("session-*/jobs")
    assert list(folder.glob(".merge*")) == []


def test_memory(walled: Project) -> None:
    """Of two jobs the one that wants more than its walls let it have is ended, and the reason says so."""
    need_groups(Sandbox("project", memory=1 << 30))
    fill = "kept = bytearray(int(sys.argv[1]) << 20); kept[::4096] = b'x' * len(kept[::4096])"
    eats = f'python3 -c "import sys; {fill}"'
    tasks = [
        {"id": f"m{size}", "prompt": f"{eats} {size}", "sandbox": {"policy": "project", "memory": "100M"}}
        for size in (10, 300)
    ]
    small, large = run(walled, tasks)
    assert small["outcome"] == "succeeded"
    assert (large["outcome"], large["reason_class"]) == ("failed", "oom")
    assert large["reason"] == "oom: its walls let it have 100 MiB of memory, and it wanted more"
    assert list_groups(walled, "memory") == []


BURN = """
import os, time
begin = time.monotonic()
child = os.fork()
while time.monotonic() < begin + 2:
    pass
if child:
    os.waitpid(child, 0)
    print(sum(os.times()[:4]) / (time.monotonic() - begin))
"""


def test_processor_time(walled: Project) -> None:
    """Two programs that never rest have together no more than their part of a processor."""
    need_groups(Sandbox("project", memory=1 << 30, cpus=0.2))
    program = walled.cwd.parent / "burn.py"
    program.write_text(BURN)
    sandbox = {"policy": "project", "memory": "1G", "cpus": 0.2, "read": str(program)}
    (done,) = run(walled, [{"id": "c", "prompt": f"python3 {program}", "sandbox": sandbox}])
    assert done["outcome"] == "succeeded", done["reason"]
    assert 0 < float(walled.output(walled.sessions[0], "c")) < 0.3
    assert list_groups(walled, "memory") == list_groups(walled, "cpu") == []


def need_groups(wish: Sandbox) -> None:
    """Skip the test, with the reason, where no control groups for these limits can be made."""
    problem = groups.find_problem(wish)
    if problem is not None:
        pytest.skip(problem)


def list_groups(walled: Project, controller: groups.Controller) -> list[Path]:
    """What is left of the groups of the last session."""
    return list(groups.locate_group("x", controller).parent.glob(f"sessionrun-{walled.sessions[-1]}-*"))
