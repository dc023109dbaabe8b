"""What becomes of a task when the agent's provider refuses, is silent, or has had enough.

What is asserted on recorded samples is seen here to be still said.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any, Final

import pytest
from conftest import eventually

from sessionrun.model.units import format_time

from .model_server import FORMS, GEMINI_FORMS, OPENAI_FORMS
from .stage import SESSION_S, Stage, find_agent

pytestmark = pytest.mark.agents

PATIENCE_S: Final = {"claude": 15, "codex": 15, "qwen": 30, "gemini": 30, "opencode": 35, "aider": 35}
"""Longer than the agent needs to start; on 429 and 500 some try again for minutes and say nothing."""
LONG_S: Final = 150
"""For those that say at once what is wrong, however busy the machine is."""

RESET_S: Final = 40
"""Until when the provider is limited: longer than all of them need to start."""

SUBSCRIPTION: Final = {"ANTHROPIC_API_KEY": "", "CLAUDE_CODE_OAUTH_TOKEN": "any"}

EXPECTED: Final = {
    "bad_request": {"api_error"},
    "unauthorized": {"auth"},
    "too_many": {"rate_limited", "timeout"},
    "server_error": {"api_error", "overloaded", "timeout"},
    "silent": {"timeout"},
}
ORDERS: Final = {
    "bad_request": "fail[[400]]",
    "unauthorized": "fail[[401]]",
    "too_many": "fail[[429]]",
    "server_error": "fail[[500]]",
    "silent": "slow[[200]]",
}


def test_what_a_provider_that_fails_leads_to(agent: str, stage: Stage) -> None:
    prompts = {case: f"Do it: {order}" for case, order in ORDERS.items()}
    met = _meet(
        stage,
        [
            {"id": case, "agent": agent, "prompt": prompt, "timeout": patience}
            for case, prompt in prompts.items()
            for patience in [2 * PATIENCE_S[agent] if "timeout" in EXPECTED[case] else LONG_S]
        ],
    )
    assert _wrong(met, EXPECTED) == []
    assert all(stage.server.told(prompt) for prompt in prompts.values())


def test_how_claude_says_that_a_limit_is_reached(stage: Stage, needs_claude: None) -> None:
    """With an API key and with a subscription; only the second names the limit and its end."""
    met = _meet(
        stage,
        [
            {"id": f"{case}_{account}", "agent": "claude", "prompt": f"Do it: limit[[{case}]]", "env": env}
            for case in FORMS
            for account, env in _sign_in(case).items()
        ],
    )
    said = {f"{case}_{account}": {"usage_limit"} for case in FORMS for account in ("key", "subscription")}
    hasty = {f"{case}_key": {"rate_limited"} for case in ("five_hour", "seven_day", "seven_day_opus", "rate")}
    busy = {name: {"overloaded"} for name in said if name.startswith("overloaded")}
    assert _wrong(met, {**said, **hasty, **busy, "rate_subscription": {"rate_limited"}}) == []


def test_how_the_others_say_that_a_limit_is_reached(stage: Stage) -> None:
    """An account's plan or quota is used up: some say so at once, some try again for minutes."""
    cases = [(name, case) for name in ("codex", "qwen", "opencode", "aider") for case in OPENAI_FORMS]
    cases += [("gemini", case) for case in GEMINI_FORMS]
    met = _meet(
        stage,
        [
            {
                "id": f"{case}_{name}",
                "agent": name,
                "prompt": f"Do it: limit[[{case}]]",
                "timeout": PATIENCE_S[name],
            }
            for name, case in cases
            if find_agent(name) is None
        ],
    )
    patient = {name: {"timeout"} for name in met}
    at_once = {name: {"usage_limit"} for name in met if name.endswith(("_codex", "_gemini"))}
    assert _wrong(met, {**patient, **at_once}) == []


def test_a_usage_limit_holds_the_tasks_of_its_provider_alone(stage: Stage, needs_claude: None) -> None:
    """Two tasks of a limited account wait for its reset, and then succeed at their first attempt."""
    reset_at = int(time.time()) + RESET_S
    reset = str(format_time(reset_at))
    stage.server.limited_until(reset_at)
    others = [name for name in ("codex", "qwen", "opencode") if find_agent(name) is None]
    tasks: list[dict[str, Any]] = [{"id": name, "agent": name, "prompt": "Say answer[[now]]"} for name in others]
    for number in (1, 2):
        prompt = "claude says answer[[later]]"
        tasks.append({"id": f"claude-{number}", "agent": "claude", "prompt": prompt, "env": SUBSCRIPTION})
    session = stage.start(tasks, max_parallel=5)

    def held() -> list[dict[str, Any]]:
        tasks = stage.command.status(session)["tasks"]
        return [task for task in tasks if task["agent"] == "claude" and task["held_until"]]

    eventually(lambda: len(held()) == 2, timeout_s=RESET_S - 5)
    ended = stage.finish(session)
    assert {(task["outcome"], task["attempt"]) for task in ended.values()} == {("succeeded", 1)}
    for task in ended.values():
        if task["agent"] != "claude":
            assert task["started_at"] < reset, "it waited for a limit that is not its own"
        else:
            assert task["ended_at"] > reset
    assert len(stage.server.told("claude says ")) <= 4  # one refused, one canary, then the others


def _sign_in(case: str) -> dict[str, dict[str, str]]:
    """A key and a subscription for one case: sessions of one account would hear of each other's limits."""
    return {
        "key": {"ANTHROPIC_API_KEY": f"key-{case}"},
        "subscription": {**SUBSCRIPTION, "CLAUDE_CODE_OAUTH_TOKEN": f"token-{case}"},
    }


def _meet(stage: Stage, tasks: list[dict[str, Any]]) -> dict[str, str]:
    """The reason class of each task, or of what holds it; each has a session, and so a hold, of its own."""
    sessions = {task["id"]: _start(stage, task) for task in tasks}
    met = {
        name: eventually(partial(_reason, stage, session), timeout_s=SESSION_S)
        for name, session in sessions.items()
    }
    for session in sessions.values():
        stage.command("cancel", session)
        stage.finish(session)
    return met


def _start(stage: Stage, task: dict[str, Any]) -> str:
    """Start a session of one task, signed in as the task says: the account of a session is that of its launch."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in task.get("env", {}).items():
            patch.setenv(name, value)
        return stage.start([task])


def _reason(stage: Stage, session: str) -> str | None:
    (task,) = stage.command.status(session)["tasks"]
    if task["reason_class"] == "held":
        return str(task["reason"]).split(": ")[1]
    return str(task["reason_class"]) if task["outcome"] else None


def _wrong(met: dict[str, str], expected: dict[str, set[str]]) -> list[tuple[str, str]]:
    """The tasks that met something else."""
    return [(name, reason_class) for name, reason_class in met.items() if reason_class not in expected[name]]
