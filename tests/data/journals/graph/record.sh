sessionrun -q --agent shell plan.json
