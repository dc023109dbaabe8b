"""The steps of a CHECK: make files of the answer, run the commands, ask for a verdict, keep the round's work.

The first step that does not pass is the last one.  The next round is given what the CHECK printed, or our words.
"""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from sessionrun.agents import table
from sessionrun.checks.answers import Unclear, find_patch, strip_thoughts
from sessionrun.checks.requests import CheckRequest, Verification
from sessionrun.checks.running import load_red, run_commands, run_known
from sessionrun.checks.writing import DoesNotApply, apply_answer, apply_patch, finish_answer
from sessionrun.model.checks import Brief, Checked, CheckReport
from sessionrun.model.errors import SessionrunError, name_some
from sessionrun.model.words import CHECK_NOT_RUN
from sessionrun.session.prompt import BriefProblem, Shown, read_inside, resolve_inside, word_judgement
from sessionrun.store.files import read_regular, replace_file
from sessionrun.store.jobfiles import FEEDBACK
from sessionrun.walls.argv import Walls
from sessionrun.walls.build import raise_if_any
from sessionrun.walls.shell import word_end
from sessionrun.walls.wish import WallsWish
from sessionrun.worktrees.request import WorkspaceRequest
from sessionrun.worktrees.rounds import keep_round, show_changes
from sessionrun.worktrees.site import open_site

_PASSES: Final = {"PASS": True, "PASS_WITH_WARNINGS": True, "FAIL_SOFT": False, "FAIL_HARD": False, "FAIL": False}
"""The words that a verdict may be, and whether each lets the work pass."""

_MAX_ANSWER_BYTES: Final = 16 * 1024 * 1024
_MAX_PROBLEM: Final = 200

_WHOLE_PATCH: Final = "Answer with your whole change as a unified diff, in a fenced block of the language diff."
_FIRST_WORD: Final = re.compile(r"[\s`*#_]*([A-Za-z]+(?:_[A-Za-z]+)*)")


class NotPassed(Exception):
    """A step did not pass; the text is the reason in one line, `feedback` what the next round is told of it."""

    def __init__(self, reason: str, feedback: str = "", reason_class: str = "check_failed") -> None:
        super().__init__(reason)
        self.feedback = feedback
        self.reason_class = reason_class


def check(request: CheckRequest, folder: Path) -> CheckReport:
    """Do what the request asks; `folder`, the job's own, gets prompt and output of the agent that judges."""
    report = CheckReport(earlier=request.earlier)
    feedback = ""
    try:
        if request.brief is None:
            if request.answer is not None:
                _apply_patch(request, folder)
        elif request.answer is not None:
            report = replace(report, written=_apply(request.brief, request))
        else:
            report = replace(report, written=_find_written(request.brief, request.directory))
        walls = _raise_walls(request.walls)
        ran = run_commands(request.check, request.directory, folder, walls)
        if ran.problem is None and request.known is not None:
            ran = run_known(request.known, request.directory, folder, load_red(request.before), walls)
        report = replace(report, checked=None if ran.counts is None else Checked(ran.counts))
        if ran.lacks is not None and not _is_of_work(request, ran.lacks, folder):
            raise NotPassed(f"it could not be run: {ran.problem}", ran.feedback, CHECK_NOT_RUN)
        if ran.problem is not None:
            raise NotPassed(ran.problem, ran.feedback)
        if request.verification is not None:
            _verify(request, request.verification, folder)
    except NotPassed as problem:
        reason = " ".join(str(problem).split())[:_MAX_PROBLEM]
        report, feedback = replace(report, problem=reason, reason_class=problem.reason_class), problem.feedback
    except OSError as error:
        print(f"The check cannot go on: {error}", flush=True)
        report = replace(report, problem=f"the check cannot go on: {error}"[:_MAX_PROBLEM])
    if request.keeps and request.workspace is not None and report.problem is not None:
        report, feedback = _keep_round(request, request.workspace, report, feedback, folder)
    # of answers and verdicts the next round is told by the end of the output
    if feedback and request.brief is None and not request.check.verify:
        replace_file(folder / FEEDBACK, feedback.encode("utf-8", "replace"), durable=False)
    return report


def _raise_walls(wish: WallsWish | None) -> Walls | None:
    try:
        return raise_if_any(wish)
    except SessionrunError as error:
        raise NotPassed(f"it could not be run: {error}", "", CHECK_NOT_RUN) from None


def _is_of_work(request: CheckRequest, program: str, folder: Path) -> bool:
    """Whether the work has made or removed a program that could not be run: then the agent can mend it."""
    if "/" not in program or request.workspace is None or request.workspace.place is None:
        return False
    try:
        with open_site(request.workspace, folder) as site:
            path = os.path.relpath(os.path.join(os.path.realpath(request.directory), program), site.git.directory)
            was_there = site.git.attempt("cat-file", "-e", f"{site.place.base_commit}:{path}").returncode == 0
            return was_there != os.path.lexists(os.path.join(site.git.directory, path))
    except SessionrunError:
        return True  # the worktree is not what it was


def _keep_round(
    request: CheckRequest, workspace: WorkspaceRequest, report: CheckReport, feedback: str, folder: Path
) -> tuple[CheckReport, str]:
    """Keep the work of a round that did not pass; that it cannot be kept is no reason for another verdict."""
    try:
        kept = keep_round(workspace, folder)
        if request.resets and feedback:
            changes = show_changes(workspace, kept, folder)
            what = f"What you had changed, and what is taken back:\n\n{changes}"
            feedback += f"\n{what}" if changes else "\nYou had changed nothing.\n"
    except (SessionrunError, OSError) as error:
        print(f"The round's work cannot be kept: {error}", file=sys.stderr, flush=True)
        return report, feedback
    checked = replace(report.checked or Checked(), snapshot=kept.commit, diff_stat=kept.diff_stat)
    return replace(report, checked=checked), feedback


def _apply(brief: Brief, request: CheckRequest) -> dict[str, int]:
    record = Path(request.applied)
    try:
        if record.exists():  # an earlier start of this check was broken off after that, and is repeated
            return finish_answer(request.directory, record)
        lines = apply_answer(brief, request.directory, _read_answer(request), record)
    except (Unclear, BriefProblem) as problem:
        print(f"Your answer could not be used, and no file was written: {problem}", flush=True)
        raise NotPassed(str(problem)) from None
    except OSError as error:
        print(f"The files could not be written: {error}", flush=True)
        raise NotPassed(f"the answer's files cannot be written: {error.strerror}") from None
    print("\n".join(f"wrote {path} ({count} lines)" for path, count in lines.items()), flush=True)
    return lines


def _apply_patch(request: CheckRequest, folder: Path) -> None:
    assert request.workspace is not None
    try:
        patch = find_patch(strip_thoughts(_read_answer(request)))
    except Unclear as problem:
        raise _refuse_patch(str(problem), f"Your answer could not be used: {problem}.", "no_patch") from None
    if patch is None:
        raise _refuse_patch("the answer holds no patch", f"Your answer holds no patch. {_WHOLE_PATCH}", "no_patch")
    try:
        with open_site(request.workspace, folder) as site:
            below = os.path.relpath(os.path.realpath(request.directory), os.path.realpath(site.git.directory))
            names = apply_patch(site, patch, below, Path(request.applied))
    except DoesNotApply as problem:
        why = str(problem)
        feedback = f"Your patch was not applied, and no file was changed. git says:\n\n{why}\n\n{_WHOLE_PATCH}"
        raise _refuse_patch(f"the patch does not apply: {why}", feedback, "bad_patch") from None
    except SessionrunError as error:
        raise _refuse_patch(f"the patch cannot be applied: {error}", str(error), "check_failed") from None
    print(f"Your patch was applied to {name_some(names, 20)}.", flush=True)


def _refuse_patch(reason: str, feedback: str, reason_class: str) -> NotPassed:
    print(feedback, flush=True)
    return NotPassed(reason, feedback + "\n", reason_class)


def _read_answer(request: CheckRequest) -> str:
    try:
        return read_regular(request.answer or "", _MAX_ANSWER_BYTES).decode("utf-8", "replace")
    except OSError as error:
        if error.errno != errno.EFBIG:
            raise
        raise Unclear(f"the answer is larger than {_MAX_ANSWER_BYTES >> 20} MiB") from None


def _find_written(brief: Brief, directory: str) -> dict[str, int]:
    """The files that an editing agent was asked to write, with their lines; at least one must exist."""
    written = {}
    for path in brief.outputs:
        with suppress(BriefProblem, OSError):
            real = resolve_inside(directory, path)
            if os.path.isfile(real):
                with open(real, "rb") as stream:
                    written[path] = sum(1 for _ in stream)
    missing = ", ".join(path for path in brief.outputs if path not in written)
    if missing and (brief.mode == "split" or not written):
        print(f"You did not write {missing}.", flush=True)
        raise NotPassed(f"{missing}: not written")
    return written


def _verify(request: CheckRequest, wanted: Verification, folder: Path) -> None:
    shown = []
    for path in request.check.files:
        try:
            text = read_inside(request.directory, path)
        except BriefProblem as problem:
            text = f"(cannot be shown: {problem})"
        shown.append(Shown(path, "written", text))
    prompt = word_judgement(request.check.verify or "", request.prompt, shown)
    replace_file(Path(wanted.prompt_file), prompt.encode("utf-8", "replace"), durable=False)
    out, err = folder / "verdict", folder / "verdict.err"
    walls = _raise_walls(wanted.walls)
    argv, env = (wanted.argv, None) if walls is None else (walls.wrap(request.directory, *wanted.argv), walls.env)
    with open(wanted.prompt_file, "rb") as stdin, open(out, "wb") as stdout, open(err, "wb") as stderr:
        source = stdin if wanted.on_stdin and walls is None else subprocess.DEVNULL
        code = subprocess.run(
            argv, cwd=request.directory, env=env, stdin=source, stdout=stdout, stderr=stderr
        ).returncode
    result = table.read_result(wanted.output, out, err)
    if result.problem is not None:
        raise NotPassed(f"the agent that was to judge failed: {result.problem.text or 'it does not say why'}")
    if code:
        raise NotPassed(f"the agent that was to judge ended with {word_end(code)}")
    printed = out.read_bytes().decode("utf-8", "replace") if result.text is None else result.text
    _judge(strip_thoughts(printed))


def _judge(text: str) -> None:
    """Read the verdict with which a review begins."""
    print(f"Verdict of the review:\n{text.strip()}", flush=True)
    match = _FIRST_WORD.match(text)
    if match is None or match[1].upper() not in _PASSES:
        raise NotPassed(f"the verdict is unclear: it begins with none of {', '.join(_PASSES)}")
    word = match[1].upper()
    if not _PASSES[word]:
        why = text[match.end() :].strip().lstrip("`*_:. \n\t-")
        raise NotPassed(f"{word}: {why.splitlines()[0] if why else 'no reason given'}")
