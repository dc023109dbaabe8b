"""Git, run safely: for us, and for repositories that are not the user's.

In: how git is started, the settings that it sees, clones and mirrors, merges and commits by plumbing, rooms,
reaching another repository.
Not in: whose a worktree is, and what happens in it (`worktrees`).
"""
