"""Money: what models cost, what jobs cost, and what sessions say of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from agent_samples import sample_path
from conftest import Command
from hypothesis import given
from hypothesis import strategies as st
from simulation import Scripted, make_session
from stages import make_program

from sessionrun.agents.prices import MILLION, find_price, load_prices, price_usage
from sessionrun.engine.money import usage_since
from sessionrun.engine.moves import begin_attempt
from sessionrun.engine.status import project
from sessionrun.model.events import JobClaimed, JobFinished, JobLost, Verdict
from sessionrun.model.keys import JobKey
from sessionrun.model.spec import AgentSpec, OutputFormat, Price, TaskSpec
from sessionrun.model.usage import Usage

OURS = load_prices({})
GPT = Price(1.0, 10.0, 0.1)
CODEX = AgentSpec(name="codex", argv=("codex",), output="codex")
SHELL = AgentSpec(name="shell", argv=("sh",), prompt_kind="script")


def test_our_table_is_dated_sourced_and_sane() -> None:
    from sessionrun.agents import prices as module

    table = json.loads(Path(module.__file__).with_name("prices.json").read_text())
    assert table["as_of"] >= "2026-11-20"
    assert all(source.startswith("https://") for source in table["sources"])
    assert set(table["models"]) == set(OURS)
    for name, price in OURS.items():
        assert 0 < price.cached_input < price.input < price.output, name  # type: ignore[operator]


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("claude-sonnet-4", "claude-sonnet-4"),
        ("claude-sonnet-4-20250514", "claude-sonnet-4"),
        ("claude-sonnet-4-5", "claude-sonnet-4-5"),
        ("anthropic/claude-sonnet-4.5", "claude-sonnet-4-5"),
        ("openrouter/anthropic/claude-opus-4.5", "claude-opus-4-5"),
        ("GPT-5", "gpt-5"),
        ("openai/gpt-5-2025-08-07", "gpt-5"),
        ("gpt-5.1", "gpt-5.1"),
        ("gpt-5.1-codex-max", "gpt-5.1-codex-max"),
        ("models/gemini-2.5-pro", "gemini-2.5-pro"),
        ("gemini-3.1-pro-preview", "gemini-3.1-pro"),
        ("gemini-2.5-flash-lite-preview-06-17", "gemini-2.5-flash-lite"),
        *((model, None) for model in ("", "gpt-5-turbo", "gpt-55", "claude-sonnet-4-5[1m]", "azure/gpt-5", "*")),
        ("openai/gpt-5:batch", None),
    ],
)
def test_names_cover_models_and_other_models_have_no_price(model: str, name: str | None) -> None:
    assert find_price(OURS, model) is (OURS[name] if name else None)


def test_the_users_prices_replace_what_they_cover() -> None:
    cheap, free = Price(0.1, 0.2), Price(0.0, 0.0)
    merged = load_prices({"gpt-5*": cheap, "gpt-5-nano": GPT, "azure/gpt-5": GPT, "local/*": free})
    assert find_price(merged, "gpt-5-mini") is cheap
    assert find_price(merged, "openai/gpt-5.4-nano") is cheap
    assert find_price(merged, "gpt-5-nano") is GPT
    assert find_price(merged, "azure/gpt-5") is GPT
    assert find_price(merged, "local/anything") is free
    assert find_price(merged, "claude-sonnet-4") == OURS["claude-sonnet-4"]


COUNTS = st.one_of(st.none(), st.integers(0, 10**9))


@given(COUNTS, COUNTS, COUNTS, st.one_of(st.none(), st.floats(0, 100)))
def test_a_cost_is_never_made_up(
    sent: int | None, got: int | None, cached: int | None, said: float | None
) -> None:
    usage = Usage(sent, got, said, cached)
    priced = price_usage({"m": GPT}, usage, "m")
    if said is not None and said > 0:
        assert (priced.cost_usd, priced.cost_source) == (said, "agent")
    elif sent is None or got is None:
        assert not priced.cost_usd
    else:
        assert priced.cost_usd is not None
        most = (sent * GPT.input + got * GPT.output) / MILLION
        assert 0 <= priced.cost_usd <= most + 1e-12
    unknown = price_usage({}, usage, "m")
    assert unknown.cost_usd is None or unknown.cost_source == "agent"
    assert unknown.cost_usd != 0 or not (sent or got)


def test_cached_tokens_are_priced_apart() -> None:
    usage = Usage(1_000_000, 100_000, None, 400_000)
    assert price_usage({"m": GPT}, usage, "m").cost_usd == pytest.approx(0.6 + 0.04 + 1.0)
    assert price_usage({"m": Price(1.0, 10.0)}, usage, "m").cost_usd == pytest.approx(2.0)


def test_an_agent_that_says_zero_for_tokens_knows_no_price() -> None:
    assert price_usage({}, Usage(10, 5, 0.0), "m").cost_usd is None
    assert price_usage({"m": Price(0, 0)}, Usage(10, 5, 0.0), "m") == Usage(10, 5, 0.0, cost_source="table")
    assert price_usage({}, Usage(0, 0, 0.0), "m") == Usage(0, 0, 0.0, cost_source="agent")


class Bench(Scripted):
    """A state that events are applied to, as from a journal."""

    def __init__(self, *tasks: TaskSpec) -> None:
        super().__init__(replace(make_session(tasks), agents={"codex": CODEX, "shell": SHELL}))

    def work(self, task: str, used: Usage | None, model: str | None = None, *, status: int | None = 0) -> None:
        state = self.state.tasks[task]
        key = JobKey(task, state.attempt, state.round, "work", state.start)
        self.record(JobClaimed(key))
        verdict: Verdict = "passed" if status == 0 else "failed"
        self.record(JobFinished(key, verdict, wait_status=status, usage=used, model=model))


def test_sums_by_model_stay_right_when_a_retry_has_another_model() -> None:
    bench = Bench(TaskSpec(id="a", prompts=("x",), agent="codex", retries=1))
    bench.work("a", Usage(10, 5, 0.5, 2, "agent"), "gpt-5", status=256)
    task = bench.state.tasks["a"]
    task.outcome, task.reason_class, task.reason = None, None, None
    begin_attempt(task, 2)
    bench.work("a", Usage(100, 50, 0.25, None, "table"), "gpt-5-mini")
    shown = project(bench.state)
    (one,) = shown["tasks"]
    assert {name: used["cost_usd"] for name, used in one["usage_by_model"].items()} == {
        "gpt-5": 0.5,
        "gpt-5-mini": 0.25,
    }
    assert one["usage"] == {
        "input_tokens": 110,
        "cached_input_tokens": 2,
        "output_tokens": 55,
        "cost_usd": 0.75,
        "cost_source": "table",
        "unpriced_jobs": 0,
    }
    assert shown["usage"] == {**one["usage"], "cost_complete": True}


def test_what_was_not_said_makes_a_sum_a_lower_bound() -> None:
    names = ("told", "silent", "lost", "never", "script")
    bench = Bench(*(TaskSpec(id=name, prompts=("x",), agent="codex", model="m") for name in names[:-1]))
    bench.work("told", Usage(10, 5, 0.5, None, "agent"))
    assert project(bench.state)["usage"]["cost_complete"] is True
    bench.work("silent", None, status=9)
    bench.record(JobClaimed(JobKey("lost", 1, 1, "work", 1)))
    bench.record(JobLost(JobKey("lost", 1, 1, "work", 1), "lost", "gone"))
    bench.work("never", None, status=None)
    shown = project(bench.state)
    assert (shown["usage"]["cost_usd"], shown["usage"]["cost_complete"]) == (0.5, False)
    assert shown["usage_by_model"]["m"]["unpriced_jobs"] == 2
    assert [task["usage"] and task["usage"]["unpriced_jobs"] for task in shown["tasks"]] == [0, 1, 1, None]


@pytest.mark.parametrize(
    ("total", "before", "own"),
    [
        (Usage(33, 21, None, 9), Usage(22, 14, 0.5, 4), Usage(11, 7, None, 5)),
        (Usage(33, 21), Usage(22, 14, None, 0), Usage(11, 7)),
        (Usage(22, 14), Usage(22, 14), Usage(0, 0)),
        (Usage(11, 7), Usage(22, 14), Usage(11, 7)),  # no total: it counted anew
        (Usage(None, 7), Usage(None, 5), Usage(None, 2)),
    ],
)
def test_what_a_running_total_says_of_the_last_run(total: Usage, before: Usage, own: Usage) -> None:
    assert usage_since(total, before) == own


@pytest.fixture
def priced(sessionrun: Command) -> Command:
    """Agents that print what the real ones once printed, and a price for one model of theirs."""
    lines = []
    for name in ("codex", "claude", "qwen"):
        script = make_program(sessionrun.cwd / name, f"cat {sample_path(name, 'ok')}")
        lines += [f"[agents.{name}]", f'argv = ["{script}"]', "approve_args = []"]
    lines += ['[prices."known*"]', "input = 1_000", "output = 10_000"]
    (sessionrun.cwd / "sessionrun.toml").write_text("\n".join(lines))
    return sessionrun


def run_plan(command: Command, *tasks: dict[str, Any]) -> str:
    session_id = command.start({"prompts": [{"prompt": "x", **task} for task in tasks]})
    assert command("wait", session_id).returncode == 0
    return session_id


def test_cost_of_a_session(priced: Command) -> None:
    session_id = run_plan(
        priced,
        {"id": "a", "agent": "codex", "model": "known-1"},
        {"id": "b", "agent": "codex"},
        {"id": "c", "agent": "claude"},
        {"id": "d", "agent": "shell", "prompt": "true"},
    )
    told = priced.load("cost", session_id)
    assert (told["session_ids"], told["by"]) == ([session_id], "task")
    rows = {row["id"]: row for row in told["rows"]}
    assert set(rows) == {"a", "b", "c"}
    assert (rows["a"]["cost_usd"], rows["a"]["cost_source"]) == (pytest.approx(0.081), "table")
    assert (rows["b"]["cost_usd"], rows["b"]["cost_complete"]) == (None, False)
    assert (rows["c"]["cost_usd"], rows["c"]["cost_source"]) == (0.000138, "agent")
    assert told["total"]["cost_usd"] == pytest.approx(0.081138)
    assert (told["total"]["task_count"], told["total"]["unpriced_task_count"]) == (3, 1)
    assert told["unpriced"] == {"codex:default": 1}
    done = priced("cost")
    assert ">= ~$0.0811" in done.stdout
    warning = 'cost: unknown for 1 of 3 tasks (no price for codex:default: add [prices."codex:default"]'
    assert warning in done.stderr
    for words in (["results"], ["results", session_id, "b"]):
        done = priced(*words)
        assert "Usage: " in done.stdout
        assert "no price for codex:default" in done.stderr
    assert "Usage: 33 tokens in, 21 out, cost >= ~$0.0811" in priced("status").stdout
    assert priced("results", session_id, "d").stderr == ""
    with (priced.cwd / "sessionrun.toml").open("a") as config:
        config.write('\n[prices."codex:default"]\ninput = 1000\noutput = 0\n')
    session_id = run_plan(priced, {"id": "b", "agent": "codex"})
    assert priced.load("cost", session_id)["total"]["cost_usd"] == pytest.approx(0.011)
    assert priced("cost").stderr == ""


@pytest.mark.parametrize(
    ("name", "known", "used"),
    [
        ("codex", "thread_id", (33, 21, pytest.approx(0.243))),
        ("qwen", "session_id", (44, 28, None)),
        ("claude", "session_id", (22, 14, pytest.approx(0.000276))),
    ],
)
def test_a_conversation_that_goes_on_is_counted_once(
    priced: Command, name: OutputFormat, known: str, used: tuple[int, int, object]
) -> None:
    """The second run prints what the real program printed: the tokens, or the price, of both."""
    script, ran = priced.cwd / name, priced.cwd / "ran"
    first, second = (sample_path(name, case) for case in ("ok", "went_on"))
    same = f"""sed 's/"{known}":"[^"]*"/"{known}":"c-1"/g'"""
    script.write_text(f"#!/bin/sh\nif [ -e {ran} ]; then {same} {second}; else touch {ran}; {same} {first}; fi\n")
    check = {"commands": "[ $SESSIONRUN_ROUND = 2 ]"}
    session_id = run_plan(priced, {"id": "a", "agent": name, "model": "known-1", "check": check, "rounds": 2})
    (row,) = priced.load("cost", session_id)["rows"]
    assert (row["input_tokens"], row["output_tokens"], row["cost_usd"]) == used


def test_cost_over_sessions(priced: Command) -> None:
    first = run_plan(priced, {"id": "a", "agent": "codex", "model": "known-1"})
    second = run_plan(priced, {"id": "a", "agent": "codex", "model": "known-2"}, {"id": "b", "agent": "claude"})
    told = priced.load("cost", "--all")
    assert (told["by"], set(told["session_ids"])) == ("model", {first, second})
    assert [row["model"] for row in told["rows"]] == ["claude-sonnet-4-5", "known-1", "known-2"]
    rows = priced.load("cost", "--all", "--by", "session")["rows"]
    assert {row["session_id"]: row["task_count"] for row in rows} == {first: 1, second: 2}
    assert [row["agent"] for row in priced.load("cost", first, second, "--by", "agent")["rows"]] == [
        "claude",
        "codex",
    ]
    assert len(priced.load("cost", "--since", "1d", "--by", "day")["rows"]) in (1, 2)
    assert priced.load("cost", "--since", "2100-01-01")["rows"] == []
    assert len(priced.load("cost", "--all", "--by", "task")["rows"]) == 3
    for by in ("task", "model", "agent", "day", "session"):
        assert "COST" in priced("cost", "--all", "--by", by).stdout
    assert priced("cost", "--since", "2100-01-01").stdout == "No agent has reported what it used.\n"
    assert priced("cost", "--all", first).returncode == 2
