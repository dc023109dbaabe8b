"""The real agent CLIs in detached sessions: what reaches the model, what they do, what comes out."""

from __future__ import annotations

import re
from typing import Any, Final

import pytest

from .stage import MODELS, PROVIDERS, Stage
from .wire import INPUT_TOKENS, OUTPUT_TOKENS

pytestmark = pytest.mark.agents

LINE: Final = "Umlauts äöü, 'quotes', \"quotes\", $HOME, `x`, \\n, {braces}, %s, tabs\tand more\n"
LARGE: Final = "-x looks like an option\n" + LINE * 4000 + "answer[[seen all of it]]"


def test_four_at_once_under_one_home(agent: str, stage: Stage) -> None:
    tasks = stage.play(
        [
            {"id": "large", "agent": agent, "prompt": LARGE},
            {"id": "writes", "agent": agent, "prompt": "Go: write[[note.txt=from the tool]] answer[[written]]"},
            {"id": "pong", "agent": agent, "prompt": "Say it: answer[[pong from the model]]"},
            {"id": "ping", "agent": agent, "prompt": "Say it: answer[[ping from the model]]"},
        ],
        "--worktree",
    )
    assert {task["outcome"] for task in tasks.values()} == {"succeeded"}, tasks
    assert max(task["started_at"] for task in tasks.values()) < min(task["ended_at"] for task in tasks.values())
    assert len(LARGE.encode()) > 300_000
    assert stage.server.told(LARGE)
    told = [request.model for word in ("pong", "large", "written") for request in stage.server.told(word)]
    assert set(told) == {_name_of(MODELS[agent])}
    assert stage.git("show", f"{tasks['writes']['branch']}:note.txt") == "from the tool\n"
    assert stage.git("rev-parse", tasks["pong"]["branch"] or "main") == stage.git("rev-parse", "main")
    for task_id, text in (("large", "seen all of it"), ("writes", "written"), ("ping", "ping from the model")):
        _check_answer(stage, tasks[task_id], text)


def _check_answer(stage: Stage, task: dict[str, Any], text: str) -> None:
    """The answer, its file, the raw stream, the tokens and the conversation's id."""
    file = stage.file(task["id"], "txt").read_text()
    if task["agent"] == "aider":  # its answer is all that it prints; it counts tokens by itself and has no ids
        assert text in file
        assert task["usage"]["input_tokens"]
        return
    assert file.strip() == text
    assert stage.file(task["id"], "raw").read_bytes().count(b"\n") >= 2
    assert task["conversation"]
    requests = task["usage"]["input_tokens"] // INPUT_TOKENS
    assert 1 <= requests <= 3  # some ask once more on the side
    assert task["usage"]["input_tokens"] == requests * INPUT_TOKENS
    assert task["usage"]["output_tokens"] == requests * OUTPUT_TOKENS


def _name_of(model: str) -> str:
    """The model as the server is asked for it."""
    return re.sub("^(" + "|".join(PROVIDERS) + ")", "", model)
