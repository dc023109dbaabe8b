#!/bin/sh
# Works on the bead that is on the hook of a Gas Town worker: runs an agent on it by sessionrun, in the current worktree.
#
#     gt config agent set qwen "$HOME/bin/qwen-agent.sh"
#
# SESSIONRUN_AGENT is the agent (qwen if it is not set; aider, claude ...), SESSIONRUN_MODEL its model.  The exit code
# is that of the session.  What gt adds to the command line is not read: the hook says what to do.

set -u

hooked=$(gt hook --json) || exit
lines=$(printf '%s' "$hooked" | python3 -c '
import json
import sys

try:
    hook = json.load(sys.stdin)
except ValueError:
    sys.exit("qwen-agent: what gt hook --json printed is not JSON")
bead = hook.get("pinned_bead") or {}
if not bead.get("id"):
    sys.exit("qwen-agent: no work is on the hook")
parts = [bead.get("title"), bead.get("description"), hook.get("attached_args")]
parts.append("Work in the current directory, and commit your work to the branch that is checked out there.")
prompt = "\n\n".join(part.strip() for part in parts if part and part.strip())
print(bead["id"])
print(json.dumps({"prompts": [{"id": bead["id"], "title": bead.get("title") or bead["id"], "prompt": prompt}]}))
') || exit
bead=${lines%%
*}
plan=${lines#*
}

printf '%s\n' "$plan" | sessionrun run --agent "${SESSIONRUN_AGENT:-qwen}" --name "$bead" --sync - &
running=$!

# When gt closes this terminal the session would go on: it is cancelled, and its end is awaited.
trap 'stopped=1; sessionrun cancel "$bead" >&2' HUP INT TERM
while :; do
    stopped=
    wait "$running"
    code=$?
    [ "$stopped" ] || exit "$code"
done
