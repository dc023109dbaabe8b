"""The task queue: what is to be done, in what order, and which worker has claimed what.

In: the feed protocol, its backends (a file, Beads), and the lists that can be imported.
Not in: sessions, agents, worktrees, and printing; a backend does not know what runs its tasks.
"""
