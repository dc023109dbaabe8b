"""Where a task's processes run, and how its work gets out of there: worktrees, mirrors, environments.

In: PREPARE, SETUP's environment, PARK and RELEASE; seats; rounds; what sessions left in a repository.
Not in: git itself (`git`), and what a task's work has to fulfil (`checks`).
"""
