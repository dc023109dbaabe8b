"""One session over agents of several providers."""

from __future__ import annotations

import time
from typing import Any, Final

import pytest
from conftest import eventually

from sessionrun.model.times import format_time

from .stage import Stage, find_agent
from .test_failures import SUBSCRIPTION
from .wire import INPUT_TOKENS, OUTPUT_TOKENS

pytestmark = pytest.mark.agents

FOUR: Final = ("claude", "codex", "qwen", "opencode")
RESET_S: Final = 40
"""Until when the provider is limited: longer than all of them need to start."""


@pytest.fixture(autouse=True)
def needs_four() -> None:
    """Skip, with the reason, where one of them is not there."""
    problems = [problem for problem in map(find_agent, FOUR) if problem]
    if problems:
        pytest.skip("; ".join(problems))


def test_one_session_over_four_agents(stage: Stage) -> None:
    session = stage.start([_say(name, f"{name} speaks") for name in FOUR])
    tasks = stage.finish(session)
    assert {name: task["text"].strip() for name, task in tasks.items()} == {
        name: f"{name} speaks" for name in FOUR
    }
    assert {task["outcome"] for task in tasks.values()} == {"succeeded"}
    assert len({task["conversation"] for task in tasks.values()}) == len(FOUR)
    usage = [task["usage"] for task in tasks.values()]
    input_tokens = sum(used["input_tokens"] for used in usage)
    assert len(FOUR) * INPUT_TOKENS <= input_tokens <= len(stage.server.requests) * INPUT_TOKENS
    assert sum(used["output_tokens"] for used in usage) * INPUT_TOKENS == input_tokens * OUTPUT_TOKENS


def test_a_usage_limit_holds_the_tasks_of_its_provider_alone(stage: Stage) -> None:
    """Two tasks of a limited account wait for its reset, and then succeed at their first attempt."""
    reset_at = int(time.time()) + RESET_S
    reset = str(format_time(reset_at))
    stage.server.limited_until(reset_at)
    limited = [{**_say("claude", "later"), "id": f"claude-{number}", "env": SUBSCRIPTION} for number in (1, 2)]
    session = stage.start([*limited, *(_say(name, "now") for name in FOUR[1:])], max_parallel=5)

    def held() -> list[dict[str, Any]]:
        tasks = stage.command.status(session)["tasks"]
        return [task for task in tasks if task["agent"] == "claude" and task["held_until"]]

    eventually(lambda: len(held()) == 2, timeout_s=RESET_S - 5)
    tasks = stage.finish(session)
    assert {task["outcome"] for task in tasks.values()} == {"succeeded"}
    assert {task["attempt"] for task in tasks.values()} == {1}
    for task in tasks.values():
        if task["text"].strip() == "now":
            assert task["started_at"] < reset, "it waited for a limit that is not its own"
        else:
            assert task["ended_at"] > reset
    assert len(stage.server.told("claude says it: ")) <= 4  # one refused, one canary, then the others


def _say(name: str, text: str) -> dict[str, Any]:
    return {"id": name, "agent": name, "prompt": f"{name} says it: answer[[{text}]]"}
