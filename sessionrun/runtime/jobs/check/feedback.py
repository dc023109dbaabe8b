"""Words for the next round what a CHECK found wrong: the telling part first, and never more than fits.  Pure."""

from __future__ import annotations

from typing import Final

from sessionrun.model.checks import Counts
from sessionrun.runtime.jobs.check.junit import FailedTest
from sessionrun.workspaces.shell import word_end

MAX_BYTES: Final = 12 * 1024
"""Of the whole feedback."""

_HEAD_BYTES: Final = 8 * 1024
"""Of what stands before the output."""


def word_failure(
    command: str, code: int, counts: Counts | None, failed: tuple[FailedTest, ...], output: bytes, size: int
) -> str:
    """Describe a command that failed, for the agent.

    Args:
        command: as it was given.
        code: how it ended, as `Popen.returncode` has it.
        counts: how its tests came out, if it counted any.
        failed: the first of those that did not pass.
        output: the end of what it printed.
        size: how much it printed in all (bytes).
    """
    how = f"failed with {word_end(code)}" if code else "did not pass, though its exit code is 0"
    lines = [f"This command {how}: {_shorten(command, 1000)}"]
    if counts is not None:
        lines += ["", word_counts(counts), *(_word_test(one) for one in failed)]
        missing = counts.failed + counts.errors - len(failed)
        lines += [f"[... {missing} more tests that did not pass]"] if missing > 0 else []
    head = _cut_lines(lines)
    text = _cut_end(output.decode("utf-8", "replace"), MAX_BYTES - len(head.encode()) - 200)
    if not text.strip():
        return f"{head}\n\nIt printed nothing.\n"
    left_out = size - len(text.encode("utf-8", "replace"))
    mark = f"[... {left_out:,} bytes left out]\n" if left_out > 0 else ""
    return f"{head}\n\nThe end of its output:\n\n{mark}{text}"


def word_counts(counts: Counts) -> str:
    """How the tests came out, in one line."""
    if not counts.total:
        return "No test was found."
    others = {"failed": counts.failed, "with an error": counts.errors, "skipped": counts.skipped}
    rest = [f"{number} {word}" for word, number in others.items() if number]
    return ", ".join([f"{counts.passed} of {counts.total} tests passed", *rest]) + "."


def word_stat(files: list[tuple[str, str, str]]) -> str:
    """What the round had changed, file by file, before it was taken back.

    Args:
        files: path, lines added and lines deleted ("-" for a binary file) of each.
    """
    if not files:
        return "\nYou had changed nothing.\n"
    lines = ["  " + _shorten(f"{path}: +{added} -{deleted}", 200) for path, added, deleted in files[:50]]
    lines += [f"  [... {len(files) - 50} more files]"] if len(files) > 50 else []
    return "\n".join(["", "What you had changed, and what is taken back:", *lines, ""])


def _word_test(test: FailedTest) -> str:
    return _shorten(f"FAILED {test.name}" + (f": {test.message}" if test.message else ""), 500)


def _cut_lines(lines: list[str]) -> str:
    kept: list[str] = []
    size = 0
    for number, line in enumerate(lines):
        size += len(line.encode("utf-8", "replace")) + 1
        if size > _HEAD_BYTES:
            kept.append(f"[... {len(lines) - number} more lines left out]")
            break
        kept.append(line)
    return "\n".join(kept)


def _cut_end(text: str, limit: int) -> str:
    """The end of a text in so many bytes, from the beginning of a line where there is one."""
    content = text.encode("utf-8", "replace")
    if len(content) <= limit:
        return text
    cut = content[-limit:].decode("utf-8", "ignore")
    _, newline, rest = cut.partition("\n")
    return rest if newline and rest.strip() else cut


def _shorten(text: str, limit: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 4] + " ..."
