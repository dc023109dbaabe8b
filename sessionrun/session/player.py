"""Stands for an agent in a session that is played again: ``python -m sessionrun.session.player RECORDING SPEED``.

It prints what the agent printed, changes the files that the attempt changed, and ends as the agent ended; all that
so many times as fast.  RECORDING is a directory with a file for each task, see `write_recording`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NoReturn

import orjson

from sessionrun.store.processes import JOB_MARKER

EXIT_NOTHING: Final = 70
"""There is nothing recorded for what is asked, or it cannot be done again."""

STEP_S: Final = 0.02
MOST_STEPS: Final = 200


def name_part(attempt: object, round_number: object, start: object) -> str:
    """The name of a job of WORK in the file of its task."""
    return f"{attempt}/{round_number}/{start}"


def write_recording(folder: Path, task: str, parts: Mapping[str, Mapping[str, Any]]) -> None:
    """Write down the jobs of WORK of a task: `parts` are by `name_part`.

    A part has `duration_s`, `stdout`, `stderr` and `patch` (paths, or null), `exit_code`, `signal`, and `stays`:
    whether a time limit has to end it.
    """
    (folder / f"{task}.json").write_bytes(orjson.dumps(parts))


def main() -> NoReturn:
    """Play one job."""
    folder, speed = Path(sys.argv[1]), float(sys.argv[2])
    _, task, attempt, round_number, _, start = os.environ[JOB_MARKER].split("/")
    part = _find_part(folder, task, name_part(attempt, round_number, start))
    if part is None:
        _give_up(f"nothing was recorded of attempt {attempt}, round {round_number} of task {task}")
    if part["stays"] and part["exit_code"] is not None:  # as a shell does that sees its command end first
        signal.signal(signal.SIGTERM, lambda number, frame: os._exit(part["exit_code"]))
    _print(part, float(part["duration_s"] or 0.0) / speed)
    if part["patch"] and os.environ.get("SESSIONRUN_WORKTREE"):
        _apply(part["patch"])
    sys.stdout.flush()
    while part["stays"]:
        time.sleep(60)
    if part["signal"] is not None:
        with suppress(OSError):  # SIGKILL has no other
            signal.signal(part["signal"], signal.SIG_DFL)
        os.kill(os.getpid(), part["signal"])
        time.sleep(60)
    os._exit(part["exit_code"] if part["exit_code"] is not None else EXIT_NOTHING)


def _find_part(folder: Path, task: str, name: str) -> dict[str, Any] | None:
    try:
        parts: dict[str, dict[str, Any]] = orjson.loads((folder / f"{task}.json").read_bytes())
    except FileNotFoundError:
        return None
    return parts.get(name)


def _print(part: Mapping[str, Any], seconds: float) -> None:
    """Print both streams within that time, standard output in even steps."""
    lines = _read(part["stdout"]).splitlines(keepends=True)
    os.write(2, _read(part["stderr"]) or b"")
    steps = max(1, min(MOST_STEPS, len(lines), int(seconds / STEP_S)))
    end = time.monotonic()
    for step in range(steps):
        end += seconds / steps
        time.sleep(max(0.0, end - time.monotonic()))
        sys.stdout.buffer.writelines(lines[len(lines) * step // steps : len(lines) * (step + 1) // steps])
        sys.stdout.buffer.flush()


def _read(path: str | None) -> bytes:
    return Path(path).read_bytes() if path is not None else b""


def _apply(patch: str) -> None:
    if os.stat(patch).st_size == 0:
        return
    git = ["git", "-C", os.environ["SESSIONRUN_WORKTREE"], "apply", "--whitespace=nowarn", patch]
    done = subprocess.run(git, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    if done.returncode:
        _give_up(f"the recorded changes do not apply: {done.stderr.decode('utf-8', 'replace').strip()}")


def _give_up(why: str) -> NoReturn:
    sys.stdout.flush()
    os.write(2, f"sessionrun replay: {why}\n".encode())
    os._exit(EXIT_NOTHING)


if __name__ == "__main__":
    main()
