sessionrun -q --agent paid --budget 0.05 --task-budget 0.04 --fallback shell plan.json
