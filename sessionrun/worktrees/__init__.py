"""Where a task's processes run, and how its work gets out of there.

In: PREPARE, SETUP, PARK and RELEASE; worktrees that stay (seats); how a round is taken back; the commits of walled
tasks; what sessions left in a repository and in the cache.
Not in: git itself (`git`), and what a task's work has to fulfil (`checks`).
"""
