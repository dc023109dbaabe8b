"""Removes what sessions left and that is not needed: directories, worktrees, processes, and what is in the cache.

In: a module for each kind of thing that can go.
Not in: repairs: that is `doctor`.
"""
