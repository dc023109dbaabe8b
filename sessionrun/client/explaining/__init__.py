"""Why a task does not run, or what became of it.

In: the reasons, and the evidence for them.
Not in: repairs: that is `doctor`.
"""
