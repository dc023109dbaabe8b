"""The commands of the skill for coding agents do what its text says, one block after the other."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from conftest import Command

TOP = Path(__file__).parents[2]
STUB = """
agent = "stub"
[agents.stub]
argv = ["sh", "-c", "cat > \\"work-$SESSIONRUN_TASK.txt\\"; echo done"]
"""


def test_what_an_agent_loads_is_short_and_says_when() -> None:
    text = (TOP / "examples" / "skill" / "SKILL.md").read_text()
    head = re.match(r"---\nname: ([a-z-]+)\ndescription: (.+)\n---\n", text)
    assert head is not None
    assert (head[1], len(head[2]) <= 1024, len(text) <= 6000) == ("sessionrun", True, True)
    for path in re.findall(r"\]\(([^)]+)\)", (TOP / "llms.txt").read_text()):
        assert (TOP / path).exists(), path


@pytest.mark.slow
def test_each_block_of_the_skill(sessionrun: Command) -> None:
    user = ("-c", "user.email=t@example.org", "-c", "user.name=T")
    (sessionrun.cwd / "sessionrun.toml").write_text(STUB)
    for words in (("init", "-q"), ("add", "sessionrun.toml"), (*user, "commit", "-q", "-m", "A")):
        subprocess.run(["git", *words], cwd=sessionrun.cwd, check=True)
    blocks = re.findall(
        r"^```sh\n(.*?)^```$", (TOP / "examples" / "skill" / "SKILL.md").read_text(), re.DOTALL | re.MULTILINE
    )
    assert len(blocks) == 6
    program = sessionrun.cwd / "bin" / "sessionrun"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nexec " + " ".join(sessionrun.argv) + ' "$@"\n')
    program.chmod(0o700)
    script = "set -e\n" + "\n".join(f"echo '== {number}'\n{block}" for number, block in enumerate(blocks))
    script = f"PATH={program.parent}:$PATH\n{script}echo $id\n"
    done = subprocess.run(["sh", "-c", script], cwd=sessionrun.cwd, capture_output=True, text=True, timeout=120)
    sessionrun.sessions += re.findall(r"^[0-9a-f-]{36}$", done.stdout, re.MULTILINE)
    assert done.returncode == 0, done.stdout + done.stderr
    parts = dict(zip(range(6), re.split(r"^== \d$", done.stdout, flags=re.MULTILINE)[1:], strict=True))
    assert "2 of 2 ended: 2 succeeded" in parts[1]
    assert '"left":0' in parts[2]
    assert "2 succeeded" in parts[3] and "done" in parts[3]
    assert "work-" in parts[4] and "goes on, attempt 2" in parts[4]
    assert re.search(r"landed", parts[5]), parts[5]
    log = subprocess.run(
        ["git", "log", "--oneline"], cwd=sessionrun.cwd, capture_output=True, text=True, check=True
    )
    assert len(log.stdout.splitlines()) >= 3
