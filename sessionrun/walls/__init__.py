"""The walls around a task: which files, variables and network its jobs see, as words for bubblewrap.

In: what a plan asks for, which jobs are walled, how their process builds the walls, what an agent has inside in
the place of its folders, limits of memory and disk, the proxy, and what the end of such a job says.
Not in: a walled task's commits, and how they come out (`worktrees`).

`inner` runs inside of the walls, and `proxy` beside them, on the standard library alone.
"""
