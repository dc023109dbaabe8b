"""Qwen Code: how to start it; its ``stream-json`` output (0.24) is read as claude's.

Its process is a wrapper: the worker needs up to ten seconds to end after TERM.  A conversation goes on only in the
directory that it began in, and then its tokens are those of all its runs so far (`table.COUNTS_ALL`).
"""

from __future__ import annotations

import glob
import os
from collections.abc import Mapping
from typing import Any, Final

from sessionrun.agents.reading import (
    Logged,
    Problem,
    class_of_failure,
    count_at,
    dig,
    parse_event,
    parse_time,
    read_log,
    text_at,
)
from sessionrun.model.spec import AgentSpec

AGENT: Final = AgentSpec(
    name="qwen",
    argv=("qwen", "--output-format", "stream-json", "{model_args}", "{approve_args}"),
    model_args=("--model={model}",),
    approve_args=("--yolo",),
    continue_args=("--resume={conversation}",),
    output="qwen",
    stop_grace_s=10.0,
)


def find_last_error(
    folder: str | None, environ: Mapping[str, str], cwd: str, conversation: str | None
) -> Logged | None:
    """The failure of the last request, as its record of the conversation has it: it prints nothing of it."""
    last: dict[str, Any] = {}
    for path in _find_files(folder, environ, "projects/*/chats/{}.jsonl", conversation):
        for line in read_log(path):
            last = parse_event(line) or last
    error = dig(last, "systemPayload", "uiEvent")
    message = text_at(error, "error_message")
    if text_at(error, "event.name") != "qwen-code.api_error" or message is None:
        return None
    reason_class = class_of_failure(message, count_at(error, "status_code"))
    return Logged(parse_time(text_at(last, "timestamp")), Problem(reason_class, message))


def list_ended(folder: str | None, environ: Mapping[str, str], conversation: str | None) -> frozenset[str]:
    """The shells in the background that came to their own end: its stream does not say so, its own files do."""
    ended = set()
    for path in _find_files(folder, environ, "tmp/*/background-shells/{}/*.status", conversation):
        status = parse_event(b"".join(read_log(path))) or {}
        if status.get("status") in ("completed", "failed"):
            ended.add(text_at(status, "id") or "")
    return frozenset(ended)


def _find_files(
    folder: str | None, environ: Mapping[str, str], pattern: str, conversation: str | None
) -> list[str]:
    home = environ.get("QWEN_HOME") or os.path.join(environ.get("HOME", ""), ".qwen")
    base = glob.escape(folder or environ.get("QWEN_RUNTIME_DIR") or home)
    return glob.glob(f"{base}/{pattern.format(glob.escape(conversation or '-'))}")
