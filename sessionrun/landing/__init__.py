"""Landing: the work of tasks goes onto one branch, in batches whose merge passed its gates.

In: what lands, in which order and how; the records by which the next process mends what a killed one left; the
rules by which a session lands and mends by itself, and what `merge` does.
Not in: how a task's work comes onto a branch of its own (`worktrees`), and printing.
"""
