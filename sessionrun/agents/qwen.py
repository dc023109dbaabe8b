"""Qwen Code: how to start it; its ``stream-json`` output (0.24) is read as claude's.

Its process is a wrapper: the worker needs up to ten seconds to end after TERM.  A conversation goes on only in
the directory that it began in, and then its tokens are those of all its runs so far (`agents.COUNTS_ALL`).
This module must not know how processes are run.
"""

from __future__ import annotations

from typing import Final

from sessionrun.agents import claude
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

read = claude.read
render = claude.render
