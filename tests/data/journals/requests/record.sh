id=$(sessionrun -q --agent shell --hold --worktree plan.json)
sessionrun release $id slow bad gone
sessionrun set $id --max-parallel 3
echo '[{"id": "added", "prompt": "echo > added"}]' | sessionrun run --into $id --worktree -
sessionrun release $id added
sessionrun wait $id slow bad
sessionrun retry $id bad
sessionrun cancel $id gone
sessionrun wait $id added
sessionrun continue $id added 'echo more > more'
sessionrun hold $id bad
sessionrun release $id
