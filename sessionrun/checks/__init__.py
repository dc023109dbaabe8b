"""Is the work right: answers that become files, checks, proofs by tests, hidden tests, SWE-bench.

In: the CHECK and PROVE of a task, in the supervisor and as processes; the one reader of what test runners say; the
format of SWE-bench's instances and their results.
Not in: which round comes next (that is the engine's), and how a worktree is made.
"""
