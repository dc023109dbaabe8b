"""Output of agent CLIs and what it has to be judged as: the corpus in tests/data/outcomes.

A sample is AGENT/VERSION/CASE.raw (aider: .txt), what came on standard output, and CASE.err, standard error,
where there was any.  expected.jsonl has a row for each:

- `exit`: the exit code; below zero the signal that killed it.
- `reason_class` (null: a success), `answer`, and `words`, a part of the reason.
- `reset`: when the limit ends, in UTC, if the process ended at `NOW`; null where nothing is said that can be
  meant.
- `origin`: `recorded` - the program printed this, against a test model server; paths, hosts and lists that do not
  matter were taken out, and exit codes are those seen for such an end.  Where it is not plain from the words,
  `source` says how it was made.  `constructed` - made by hand in the
  recorded form, with words that `source` names, mostly a public issue thread; its version is the one of that time.
- `said`: the class that the output alone says, where the signal that ended the program comes first.
- `final`: whether the stream has its last word and nothing is open or to come; null where that is not looked at.
- `told`: what is read of a recorded run beside that: model, conversation, turns, and usage, which is tokens in
  and out, dollars, and tokens from a cache; what is not said is left out.
- `shown`: what somebody sees who follows it.  `steps`: the lines of its steps, each with its seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal, get_args

import orjson

from sessionrun.agents import table
from sessionrun.agents.reading import AgentResult
from sessionrun.agents.verdict import find_end_of_limit, find_problem, format_reason, split_status
from sessionrun.model.events import JobFinished
from sessionrun.model.keys import JobKey
from sessionrun.model.spec import OutputFormat

SAMPLES = Path(__file__).parent / "data" / "outcomes"
EXPECTED = SAMPLES / "expected.jsonl"
FORMATS: tuple[OutputFormat, ...] = get_args(OutputFormat)
STREAMS = tuple(name for name in FORMATS if name not in ("text", "aider"))
NOW = datetime(2026, 11, 20, 12, 0, tzinfo=timezone.utc).timestamp()


@dataclass(frozen=True)
class Sample:
    """A row of the table."""

    agent: OutputFormat
    version: str
    case: str
    exit: int
    reason_class: str | None
    answer: str | None
    words: str
    reset: str | None
    origin: Literal["recorded", "constructed"]
    source: str = ""
    said: str | None = None
    final: bool | None = None
    told: Mapping[str, Any] | None = None
    shown: str | None = None
    steps: Sequence[Sequence[Any]] | None = None

    def __str__(self) -> str:
        return f"{self.agent}-{self.version}-{self.case}"

    @property
    def path(self) -> Path:
        return SAMPLES / self.agent / self.version / f"{self.case}.{'txt' if self.agent == 'aider' else 'raw'}"


CORPUS = tuple(Sample(**orjson.loads(line)) for line in EXPECTED.read_bytes().splitlines())
RECORDED = {(one.agent, one.case): one for one in CORPUS if one.origin == "recorded"}


def judge_sample(sample: Sample) -> tuple[AgentResult, JobFinished]:
    """Read and judge a sample as a session does."""
    errors = sample.path.with_suffix(".err")
    result = table.read_result(sample.agent, sample.path, errors)
    wait_status = sample.exit << 8 if sample.exit >= 0 else -sample.exit
    return result, judge_exit(wait_status, result, stderr=table.read_errors(errors))


def judge_exit(
    wait_status: int | None = None,
    result: AgentResult | None = None,
    *,
    errno: int | None = None,
    detail: str | None = None,
    stderr: str = "",
) -> JobFinished:
    """The verdict on WORK as far as agents have a part in it; the price and the files are the session's."""
    problem = find_problem(wait_status, errno, detail, result, stderr)
    exit_code, signal = split_status(wait_status)
    return JobFinished(
        JobKey("t", 1, 1, "work", 1),
        "failed" if problem else "passed",
        problem.reason_class if problem else None,
        format_reason(*problem[:2]) if problem else None,
        wait_status,
        exit_code,
        signal,
        conversation=result.conversation if result else None,
        model=result.model if result else None,
        usage=result.usage if result else None,
        turns=result.turns if result else None,
        resets_at=find_end_of_limit(problem.reason_class, result, stderr, NOW) if problem else None,
    )


def sample_path(output: OutputFormat, case: str) -> Path:
    return RECORDED[output, case].path


def read_sample(output: OutputFormat, case: str) -> AgentResult:
    path = sample_path(output, case)
    return table.read_result(output, path, path.with_suffix(".err"))


def read_bytes(folder: Path, output: OutputFormat, stdout: bytes, stderr: bytes = b"") -> AgentResult:
    (folder / "out").write_bytes(stdout)
    (folder / "err").write_bytes(stderr)
    return table.read_result(output, folder / "out", folder / "err")


def read_stream(folder: Path, output: OutputFormat, *events: object) -> AgentResult:
    return read_bytes(folder, output, b"".join(orjson.dumps(event) + b"\n" for event in events))
