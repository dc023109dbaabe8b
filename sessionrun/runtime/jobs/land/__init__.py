"""LAND, as a process: the work of a session's tasks goes onto its branch, in one turn at the slot of that branch.

In: the request, the turn, what its answer means for each task.
Not in: how work lands, which is `landing`; whose work lands when, which is `engine`.
"""
