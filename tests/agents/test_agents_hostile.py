"""Broken and hostile output never raises, and never becomes a success without its format's mark of one."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest
from agent_samples import FORMATS, RECORDED, STREAMS, read_bytes, sample_path
from hypothesis import given
from hypothesis import strategies as st

from sessionrun.agents import table
from sessionrun.model.spec import OutputFormat

WORDS: list[str] = [
    "type",
    "subtype",
    "is_error",
    "result",
    "num_turns",
    "usage",
    "message",
    "content",
    "role",
    "part",
    "reason",
    "item",
    "text",
    "error",
    "status",
    "session_id",
    "thread_id",
    "sessionID",
    "api_error_status",
    "permission_denials",
    "state",
    "input",
    "tool",
    "name",
    "delta",
    "total_cost_usd",
    "stats",
    "models",
    "errors",
    "data",
    "statusCode",
    "tokens",
    "cache",
    "id",
    "task_id",
    "run_id",
    "tool_use_id",
    "is_backgrounded",
    "tasks",
    "patch",
    "origin",
    "runId",
    "kind",
]
VALUES: list[str] = [
    "result",
    "success",
    "assistant",
    "system",
    "init",
    "text",
    "tool_use",
    "error",
    "turn.completed",
    "turn.failed",
    "turn.started",
    "stop",
    "item.completed",
    "item.started",
    "agent_message",
    "command_execution",
    "message",
    "step_start",
    "step_finish",
    "tool-calls",
    "error_max_turns",
    "thread.started",
    "user",
    "tool_result",
    "task_started",
    "task_updated",
    "task_notification",
    "background_tasks_changed",
    "killed",
    "task-notification",
]

leaves = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.sampled_from(VALUES)
    | st.text(max_size=8)
)
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS) | st.text(), inner, max_size=5)
    ),
    max_leaves=12,
)
events = st.dictionaries(st.sampled_from(WORDS), values, max_size=8)
lines = events.map(orjson.dumps) | st.binary(max_size=60) | st.just(b"Tokens: 1 sent, 1 received.")


recorded = st.sampled_from([(output, sample_path(output, case).read_bytes()) for output, case in RECORDED])


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("output")


@st.composite
def mutated(draw: st.DrawFn) -> tuple[OutputFormat, bytes]:
    """A recorded output with lines dropped, doubled or replaced, fields overwritten, and bytes cut out."""
    output, whole = draw(recorded)
    kept: list[bytes] = []
    for line in whole.splitlines():
        fate = draw(st.sampled_from(["keep", "keep", "keep", "drop", "double", "new", "field", "cut"]))
        if fate in ("keep", "double"):
            kept += [line] * (1 if fate == "keep" else 2)
        elif fate == "new":
            kept.append(draw(lines))
        elif fate == "cut":
            start = draw(st.integers(0, len(line)))
            kept.append(line[:start] + draw(st.binary(max_size=4)) + line[start + draw(st.integers(0, 40)) :])
        elif fate == "field":
            kept.append(overwrite(line, draw(st.sampled_from(WORDS)), draw(values)))
    return output, b"\n".join(kept)


def overwrite(line: bytes, name: str, value: object) -> bytes:
    try:
        event = orjson.loads(line)
    except orjson.JSONDecodeError:
        return line
    return orjson.dumps({**event, name: value}) if isinstance(event, dict) else line


def may_succeed(output: OutputFormat, stdout: bytes) -> bool:
    """Whether the output holds its format's mark of success at all; written apart from the readers."""
    for line in stdout.split(b"\n"):
        if output == "aider" and line.startswith(b"Tokens: "):
            return True
        try:
            event = orjson.loads(line)
        except orjson.JSONDecodeError:
            continue
        if not isinstance(event, dict):
            continue
        part = event.get("part")
        if {
            "claude": event.get("type") == "result" and event.get("is_error") is False,
            "qwen": event.get("type") == "result" and event.get("is_error") is False,
            "codex": event.get("type") == "turn.completed",
            "gemini": event.get("type") == "result" and event.get("status") == "success",
            "opencode": isinstance(part, dict) and part.get("reason") == "stop",
        }.get(output):
            return True
    return False


def check_reading(scratch: Path, output: OutputFormat, stdout: bytes) -> None:
    result = read_bytes(scratch, output, stdout, stdout)
    assert not result.ok or may_succeed(output, stdout)
    assert result.ok is (result.reason_class is None) is (result.reason is None)
    assert type(result.turns) in (int, type(None))
    orjson.dumps(result)  # what is read can be written down
    for line in stdout.split(b"\n"):
        assert isinstance(table.render_events(output, line), str)
        assert isinstance(table.list_steps(output, line), list)


@pytest.mark.check
@given(mutated())
def test_mutated_output_never_raises_nor_becomes_a_success(
    scratch: Path, case: tuple[OutputFormat, bytes]
) -> None:
    check_reading(scratch, *case)


@given(st.sampled_from([name for name in FORMATS if name != "text"]), st.lists(lines, max_size=8))
def test_random_output_never_raises_nor_becomes_a_success(
    scratch: Path, output: OutputFormat, some: list[bytes]
) -> None:
    check_reading(scratch, output, b"\n".join(some))


@given(st.sampled_from(STREAMS), events)
def test_any_event_can_be_followed(output: OutputFormat, event: dict[str, object]) -> None:
    assert isinstance(table.render_events(output, orjson.dumps(event)), str)
    assert isinstance(table.list_steps(output, orjson.dumps(event)), list)
