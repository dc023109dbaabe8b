"""Git: where a task's processes run, and how its work gets out of there.

In: repositories, worktrees, what git may read, parking, removal, and PREPARE and RELEASE as programs.
Not in: tasks and their states; this room gets a place and answers with facts.
"""
