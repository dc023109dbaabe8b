"""Plan two tasks, start a session of them, wait for its end, read what they answered."""

from __future__ import annotations

import sys

from sessionrun import api

PLAN = {
    "prompts": [
        {"id": "greet", "prompt": "echo hello"},
        {"id": "add", "prompt": "expr 19 + 23", "needs": ["greet"]},
    ]
}


def main() -> int:
    """Return 0 if all tasks succeeded."""
    planned = api.plan(sys.argv[1] if len(sys.argv) > 1 else PLAN, {"agent": "shell", "name": "example"})
    if isinstance(planned, api.Nothing):
        print("nothing to do")
        return 0
    session = api.launch(planned.spec)
    print(f"started {session.session_id}")
    waited = api.wait(session)
    for task in waited.tasks:
        print(f"{task['id']} {task['outcome']}: {api.read_answer(session, task).strip()}")
    return 0 if waited.view["outcome"] == "succeeded" else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except api.SessionrunError as error:
        print(f"start_and_wait: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
