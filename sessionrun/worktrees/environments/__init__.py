"""Python environments of tasks: what decides about one, how uv builds it once, and how it is copied.

In: the program that makes one beside a worktree, or a room of a proof or of gates; the entries of the cache.
Not in: which of a task's jobs asks for one, and when it goes (`worktrees`, `checks`, `landing`).
"""
