sessionrun -q --agent shell --worktree --sandbox project plan.json
