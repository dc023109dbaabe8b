"""The walls around a task: which files, variables and network its jobs see, as words for bubblewrap.

Pure but for `programs` and `trial`, which look at this machine.  `inner` and `export` run inside of the walls, on
the standard library alone.  What is done with git stands in `worktrees.view`, which jobs are walled in
`session`.  No agent's output, no session's files and no decision of the engine belongs here.
"""
