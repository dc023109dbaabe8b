"""Going on with a conversation: the second run's request holds what was said in the first."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from sessionrun.agents import table
from sessionrun.agents.markers import find_in_errors
from sessionrun.agents.reading import WITHOUT_RESULT, AgentResult
from sessionrun.engine.money import usage_since

from .stage import MODELS, Stage
from .wire import INPUT_TOKENS

pytestmark = pytest.mark.agents

RUN_S = 90


def test_a_conversation_goes_on(agent: str, stage: Stage, tmp_path: Path) -> None:
    spec = table.BUILTIN[agent]
    if not spec.continue_args:
        pytest.skip(f"{agent} has no conversations to go on with")
    first = _run(agent, stage, tmp_path, "Remember alpha answer[[the first answer]]", None)
    assert (first.ok, first.text) == (True, "the first answer"), first.reason
    before = len(stage.server.requests)
    second = _run(agent, stage, tmp_path, "And now beta answer[[the second answer]]", first.conversation)
    assert (second.ok, second.text) == (True, "the second answer"), second.reason
    assert second.conversation == first.conversation
    assert first.usage and second.usage
    is_total = spec.output in table.COUNTS_ALL
    own = usage_since(second.usage, first.usage) if is_total else second.usage
    assert own != second.usage or not is_total, "it does not report a total any more"
    assert 0 < (own.input_tokens or 0) <= (len(stage.server.requests) - before) * INPUT_TOKENS
    assert stage.server.told("Remember alpha", "the first answer", "And now beta")


def test_a_conversation_that_is_not_there(agent: str, stage: Stage, tmp_path: Path) -> None:
    if not table.BUILTIN[agent].continue_args:
        pytest.skip(f"{agent} has no conversations to go on with")
    name = "ses_000000000000abcdefghijklmn" if agent == "opencode" else "00000000-0000-4000-8000-000000000000"
    lost = _run(agent, stage, tmp_path, "Go on answer[[somehow]]", name)
    said = lost.reason_class if lost.reason_class not in WITHOUT_RESULT else None
    found = find_in_errors(table.read_errors(tmp_path / "stderr"))
    assert (said or (found and found[0])) == "no_conversation", lost.reason
    assert not stage.server.told("Go on")


def _run(agent: str, stage: Stage, folder: Path, prompt: str, conversation: str | None) -> AgentResult:
    """One run in the repository, as a session would start it."""
    spec = table.BUILTIN[agent]
    file, stdout, stderr = folder / "prompt", folder / "stdout", folder / "stderr"
    file.write_text(prompt)
    argv = table.build_argv(
        spec, model=MODELS[agent], approve=True, prompt_file=str(file), conversation=conversation
    )
    env = {**os.environ, "PWD": str(stage.repository)}
    with file.open("rb") as given, stdout.open("wb") as out, stderr.open("wb") as err:
        subprocess.run(argv, stdin=given, stdout=out, stderr=err, cwd=stage.repository, env=env, timeout=RUN_S)
    return table.read_result(spec.output, stdout, stderr)
