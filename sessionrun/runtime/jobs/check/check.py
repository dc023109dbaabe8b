"""The steps of a CHECK with a brief: write the answer's files, run the commands, ask for a verdict.

The first step that does not pass is the last one.  The next round is given what the CHECK printed.
"""

from __future__ import annotations

import errno
import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Final, cast

from sessionrun.agents import table
from sessionrun.model.brief import Brief
from sessionrun.model.spec import OutputFormat
from sessionrun.runtime.jobs.check.reading import Unclear, strip_thoughts
from sessionrun.runtime.jobs.check.request import CheckReport, CheckRequest, Verification
from sessionrun.runtime.jobs.check.writing import apply_answer, describe_written, finish_answer
from sessionrun.runtime.jobs.context_files import BriefProblem, Shown, read_inside, resolve_inside, word_judgement
from sessionrun.store.files import read_regular, replace_file

SHELL: Final = "/bin/sh"
PASSES: Final = {
    "PASS": True,
    "PASS_WITH_WARNINGS": True,
    "FAIL_SOFT": False,
    "FAIL_HARD": False,
    "FAIL": False,
}
"""The words that a verdict may be, and whether each lets the work pass."""

_MAX_ANSWER_BYTES: Final = 16 * 1024 * 1024
_MAX_PROBLEM: Final = 200
_FIRST_WORD: Final = re.compile(r"[\s`*#_]*([A-Za-z]+(?:_[A-Za-z]+)*)")


class NotPassed(Exception):
    """A step did not pass; the text is the reason in one line."""


def check(request: CheckRequest, folder: Path) -> CheckReport:
    """Do what the request asks; `folder`, the job's own, gets prompt and output of the agent that judges."""
    report = CheckReport(earlier=request.earlier)
    try:
        if request.answer is not None:
            report = replace(report, written=_apply(request))
        elif request.brief is not None:
            report = replace(report, written=_find_written(request.brief, request.directory))
        for command in request.commands:
            _run_command(command, request.directory)
        if request.verification is not None:
            report = replace(report, verdict=_verify(request, request.verification, folder))
    except NotPassed as problem:
        report = replace(report, problem=" ".join(str(problem).split())[:_MAX_PROBLEM])
    except OSError as error:
        _say(f"The check cannot go on: {error}")
        report = replace(report, problem=f"the check cannot go on: {error}"[:_MAX_PROBLEM])
    return report


def _apply(request: CheckRequest) -> dict[str, int]:
    assert request.brief is not None
    assert request.answer is not None
    record = Path(request.applied)
    try:
        if record.exists():  # an earlier start of this check was broken off after that, and is repeated
            return finish_answer(request.directory, record)
        lines = apply_answer(request.brief, request.directory, _read_answer(Path(request.answer)), record)
    except (Unclear, BriefProblem) as problem:
        _say(f"Your answer could not be used, and no file was written: {problem}")
        raise NotPassed(str(problem)) from None
    except OSError as error:
        _say(f"The files could not be written: {error}")
        raise NotPassed(f"the answer's files cannot be written: {error.strerror}") from None
    _say(describe_written(lines))
    return lines


def _read_answer(path: Path) -> str:
    try:
        return read_regular(path, _MAX_ANSWER_BYTES).decode("utf-8", "replace")
    except OSError as error:
        if error.errno != errno.EFBIG:
            raise
        raise Unclear(f"the answer is larger than {_MAX_ANSWER_BYTES >> 20} MiB") from None


def _find_written(brief: Brief, directory: str) -> dict[str, int]:
    """The files that an editing agent was asked to write, with their lines; at least one must exist."""
    written = {path: lines for path in brief.outputs if (lines := _count_lines(directory, path)) is not None}
    missing = [path for path in brief.outputs if path not in written]
    if missing and (brief.mode == "split" or not written):
        _say(f"You did not write {', '.join(missing)}.")
        raise NotPassed(f"{', '.join(missing)}: not written")
    return written


def _count_lines(directory: str, path: str) -> int | None:
    """How many lines a file has; None if there is no file."""
    try:
        real = resolve_inside(directory, path)
        if not os.path.isfile(real):
            return None
        with open(real, "rb") as stream:
            return sum(1 for _ in stream)
    except (BriefProblem, OSError):
        return None


def _run_command(command: str, directory: str) -> None:
    _say(f"$ {command}")
    done = subprocess.run(
        [SHELL, "-ec", command], cwd=directory, stdin=subprocess.DEVNULL, stderr=subprocess.STDOUT
    )
    if done.returncode:
        raise NotPassed(f"exit code {done.returncode} of: {command}")


def _verify(request: CheckRequest, wanted: Verification, folder: Path) -> str:
    """Have the agent judge; the verdict that let it pass."""
    shown = [Shown(path, "written", _read(request.directory, path)) for path in wanted.files]
    prompt = word_judgement(wanted.system, request.prompt, shown)
    replace_file(Path(wanted.prompt_file), prompt.encode("utf-8", "replace"), durable=False)
    out, err = folder / "verdict", folder / "verdict.err"
    with open(wanted.prompt_file, "rb") as stdin, open(out, "wb") as stdout, open(err, "wb") as stderr:
        source = stdin if wanted.on_stdin else subprocess.DEVNULL
        code = subprocess.run(
            wanted.argv, cwd=request.directory, stdin=source, stdout=stdout, stderr=stderr
        ).returncode
    text = strip_thoughts(_read_verdict(wanted, out, err))
    if code:
        raise NotPassed(f"the agent that was to judge ended with exit code {code}")
    match = _FIRST_WORD.match(text)
    word = match[1].upper() if match else ""
    _say(f"Verdict of the review:\n{text.strip()}")
    if word not in PASSES:
        raise NotPassed(
            "the verdict is unclear: it begins with none of PASS, PASS_WITH_WARNINGS, FAIL_SOFT, FAIL_HARD"
        )
    if not PASSES[word]:
        why = text[match.end() :].strip().lstrip("`*_:. \n\t-") if match else ""
        raise NotPassed(f"{word}: {why.splitlines()[0] if why else 'no reason given'}")
    return word


def _read(directory: str, path: str) -> str:
    try:
        return read_inside(directory, path)
    except BriefProblem as problem:
        return f"(cannot be shown: {problem})"


def _read_verdict(wanted: Verification, out: Path, err: Path) -> str:
    result = table.read_result(cast(OutputFormat, wanted.output), out, err)
    if not result.ok:
        raise NotPassed(f"the agent that was to judge failed: {result.reason or 'it does not say why'}")
    return result.text if result.text is not None else out.read_bytes().decode("utf-8", "replace")


def _say(text: str) -> None:
    if text:
        print(text, flush=True)
