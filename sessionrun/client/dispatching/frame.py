"""The prompt around each task of the queue, unless the user has another one."""

from __future__ import annotations

from typing import Final

FRAME: Final = """\
{task}

Rules:
- Do this task and no other. Change only what it needs.
- Work in the current directory: it is a git worktree of your own. Do not switch branches, and do not push.
- Leave task_queue.json, .beads and .current_task.txt alone.
- Commit your work when it is done.
- Then append 1 to 3 ideas for follow-up tasks to suggested_tasks.txt in the top of the worktree: each on a line
  of its own, short, and one that can be done by itself. Do not commit that file. Write none if nothing is left.
"""
