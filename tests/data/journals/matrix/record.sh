sessionrun -q --agent shell --from matrix plan.json
