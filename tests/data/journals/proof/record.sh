sessionrun -q --agent shell --worktree plan.json
