"""What a session has to show whichever executor runs its jobs."""

from __future__ import annotations

from typing import Any

from conftest import Command

ODD = "a b'\"$x\n\t\u00e9"


def check_executor(command: Command, *words: str) -> dict[str, Any]:
    """Run a session that needs everything an executor does; returns the tasks of its status by id."""
    (command.cwd / "here").write_text("the file\n")
    escaping = "trap '' TERM; echo $$ > {0}; while :; do sleep 0.05; done"
    left = f'setsid sh -c "{escaping.format("left")}" > /dev/null 2>&1 & while [ ! -s left ]; do sleep 0.05; done'
    plan: list[dict[str, Any]] = [
        {"id": "good", "prompt": "echo out; echo err >&2; cat here"},
        {"id": "code", "prompt": "echo before; exit 7"},
        {"id": "killed", "prompt": "kill -9 $$"},
        {"id": "termed", "prompt": "kill -15 $$"},
        {"id": "environ", "prompt": 'printf %s "$ODD"; pwd >&2; echo "$PWD" >&2', "env": {"ODD": ODD}},
        {"id": "big", "prompt": "head -c 3000000 /dev/zero"},
        {"id": "leaves", "prompt": left},
        {"id": "slow", "prompt": "trap '' TERM; echo up; while :; do sleep 0.1; done", "timeout": 3},
        {"id": "red", "prompt": "true", "check": "echo no >&2; exit 1"},
        {"id": "green", "prompt": "echo 1 >> rounds", "check": "test $(wc -l < rounds) = 2", "rounds": 3},
        {"id": "after", "prompt": "cat here", "needs": ["good", "green"]},
        {"id": "never", "prompt": "true", "needs": ["code"]},
    ]
    session_id = command.start(plan, *words)
    view = command.wait(session_id)
    tasks = {task["id"]: task for task in view["tasks"]}
    assert {name: task["outcome"] for name, task in tasks.items()} == {
        **dict.fromkeys(("good", "environ", "big", "leaves", "green", "after"), "succeeded"),
        **dict.fromkeys(("code", "killed", "termed", "red"), "failed"),
        "slow": "timed_out",
        "never": "skipped",
    }
    assert (tasks["code"]["exit_code"], tasks["code"]["signal"]) == (7, None)
    assert (tasks["killed"]["exit_code"], tasks["killed"]["signal"]) == (None, 9)
    assert (tasks["termed"]["exit_code"], tasks["termed"]["signal"]) == (None, 15)
    assert [task["attempt"] for task in tasks.values() if task["id"] != "never"] == [1] * 11
    assert tasks["green"]["round"] == 2
    folder = command.directory(session_id)

    def read(name: str) -> str:
        return (folder / name).read_text()

    assert (read("task-good.txt"), read("task-good.err")) == ("out\nthe file\n", "err\n")
    assert read("task-code.txt") == "before\n"
    assert read("task-environ.txt") == ODD
    assert read("task-environ.err") == f"{command.cwd}\n" * 2
    assert (folder / "task-big.txt").stat().st_size == 3_000_000
    assert read("task-slow.txt") == "up\n"
    return tasks
