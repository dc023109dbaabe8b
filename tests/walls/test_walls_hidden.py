"""Hidden tests and walls: the tests run inside, and no task can read them while it works."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from test_swebench_session import GOLD, WAITED_ENOUGH, Bench, bench
from walled import IS_INSIDE, need_walls

__all__ = ["bench"]

pytestmark = pytest.mark.slow

LOOK = """name=test_count_with
grep -rsl ${{name}}_gaps {places} /dev/shm /run /tmp
git cat-file --batch-all-objects --batch | grep -a ${{name}}_gaps
git -C {upstream} log --format=%s
ls -A ..
true"""
"""What a task would find of its hidden tests, of the commit that mends it, and of its neighbours."""


def run(bench: Bench, script: str, *words: str) -> dict[str, Any]:
    """Run instances as the configuration says; the files of the results."""
    bench.run(script, *words, walls=True)
    return bench.documents("r")


def set_walls(bench: Bench, policy: str) -> None:
    """Walls in the configuration, which show the place of these tests: below /tmp it would be hidden.

    What the instances were made from holds the tests, too, and goes: nothing hides it.
    """
    (bench.cwd / "instances.in.jsonl").unlink()
    shown = [str(bench.cwd), sys.prefix, sys.base_prefix]
    walls = f'policy = "{policy}"\nread = {json.dumps(shown)}\n'
    (bench.cwd / "sessionrun.toml").write_text(f"[sandbox]\n{walls}")


@pytest.mark.parametrize("policy", ["project", "strict"])
def test_hidden_tests_run_inside_and_no_task_finds_them(bench: Bench, policy: str) -> None:
    need_walls()
    set_walls(bench, policy)
    look = LOOK.format(places=f"{bench.cwd} {Path.home()}", upstream=bench.artifacts("repo"))
    (first, second, *_) = [
        json.loads(line) for line in bench.artifacts("instances.jsonl").read_text().splitlines()
    ]
    first["test_cmd"] = f"{IS_INSIDE} && python -m pytest"
    bench.artifacts("instances.jsonl").write_text(f"{json.dumps(first)}\n{json.dumps(second)}\n")
    script = f"{IS_INSIDE} || exit 7\n{GOLD}\n{look}"
    found = run(bench, script, "--no-environment", "--max-parallel", "2", "--iterations", "1")
    for instance in (first, second):
        document = found[f"{instance['instance_id']}.json"]
        assert (document["success"], document["resolved"]) == (True, True), document["error"]
        (output,) = bench.cwd.glob(f"sessions/session-*/task-{instance['instance_id']}.txt")
        assert set(output.read_text().split()) == {
            instance["instance_id"],
            f".excerpt-{output.parent.name[8:]}-{instance['instance_id']}.git",
        }
    assert found["example__wordtool-1.json"]["final_test_results"] == {
        "passed": 6,
        "failed": 0,
        "errors": 0,
        "total": 6,
    }


def test_what_is_judged_carries_no_tests_away(bench: Bench) -> None:
    """A source that copies the tests while it is judged finds no place where a later attempt would see them.

    Here with an environment, and so with a SETUP, which runs the tests that passed before.
    """
    need_walls()
    set_walls(bench, "project")
    copies = """
import os
for place in (os.getcwd(), "/tmp", os.environ["HOME"], os.environ.get("VIRTUAL_ENV", "")):
    try:
        with open(place + "/stolen", "w") as stream:
            stream.write(open("tests/test_words.py").read())
    except OSError:
        pass
"""
    look = "name=test_count_with; grep -rsl ${name}_gaps . /tmp $HOME $VIRTUAL_ENV"
    script = f"{IS_INSIDE} || exit 7\ncat >> wordtool/__init__.py <<'X'\n{copies}X\n{look}; true"
    words = ("--instance", "example__wordtool-1", "--iterations", "1")
    assert run(bench, script, *words)["example__wordtool-1.json"]["reason_class"] == "unresolved"
    (session,) = bench.cwd.glob("sessions/session-*")
    judged = (session / "jobs/example__wordtool-1/a1-r1-prove/hidden-tests.txt").read_text()
    assert "test_count_with_gaps" in judged, "the tests ran"
    before = session / "jobs/example__wordtool-1/a1-r1-setup"
    assert json.loads((before / "known-red.json").read_text()) == {"ids": []}, "they could be run inside"
    session_id = session.name.removeprefix("session-")
    assert bench("retry", session_id, "example__wordtool-1").returncode == 0
    while bench("wait", session_id, "--timeout", "60").returncode == WAITED_ENOUGH:
        pass
    assert bench.status(session_id)["tasks"][0]["attempt"] == 2
    (output,) = session.glob("task-*.txt")
    assert output.read_text() == ""
