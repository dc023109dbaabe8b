"""What a dispatch is asked for, settled: the command line wins over the configuration file, that over defaults."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

from sessionrun.client.dispatching.frame import FRAME
from sessionrun.model.feeding import POLL_S, SYNC_S
from sessionrun.model.frozen import frozen

WORKERS: Final = 14
AGENT: Final = "aider"
MODEL: Final = "ollama/qwen2.5-coder:7b"
RETRIES: Final = 2
TIMEOUT_S: Final = 1800.0


@frozen
class Settings:
    """A dispatch.

    Attributes:
        top: the top of the repository, which has the queue (absolute).
        branch: on which the work lands, and where it begins; None: the current one.
        timeout_s: of an attempt (seconds); 0: none.
        mends: how often a conflict is mended by a task of the session.
        frame: the prompt around each task.
    """

    top: Path
    branch: str | None = None
    tasks: tuple[str, ...] = ()
    backend: str | None = None
    group: str | None = None
    workers: int = WORKERS
    agent: str = AGENT
    model: str | None = None
    name: str | None = None
    labels: tuple[str, ...] = ()
    gates: tuple[str, ...] = ()
    gate_timeout_s: float | None = None
    checks: tuple[str, ...] = ()
    retries: int = RETRIES
    timeout_s: float = TIMEOUT_S
    expect_change: bool = False
    lands: bool = True
    watch: bool = False
    placement: Literal["inside", "sibling"] = "inside"
    prefix: str | None = None
    ingest: int = 0
    poll_s: float = POLL_S
    sync_s: float = SYNC_S
    frame: str = FRAME
