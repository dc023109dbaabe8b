"""Applies a patch that an agent answered with to its worktree: as a whole, inside of it, or not at all.

The patch is tried on a private index.  So what comes out is a tree before any file changes: a record names it, and
then its files are written.  If this is done again after a crash, the record says what to write, and nothing is
applied twice.  What agents do to its text (line ends, no-break spaces) is mended in a second spelling, which
counts only where the first does not apply.  Must not know how a patch is found in an answer.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import orjson

from sessionrun.git.git import Git, GitError
from sessionrun.git.rooms import is_behind_link
from sessionrun.model.errors import JobFileError
from sessionrun.model.frozen import frozen
from sessionrun.store.files import remove_empty, replace_file
from sessionrun.store.jobfiles import load_record_if_any
from sessionrun.worktrees.park import write_patch, write_worktree
from sessionrun.worktrees.rounds import work_base
from sessionrun.worktrees.site import Site

REPLACED: Final = "before.patch"
"""Beside the record, if the patch applies only to what the work began with: the changes whose place it takes."""

_PREFIXES: Final = re.compile(r'^(?:--- "?a/|\+\+\+ "?b/|diff --git "?a/)', re.MULTILINE)
_SPACES: Final = str.maketrans(
    {**dict.fromkeys("\u00a0\u2007\u202f", " "), **dict.fromkeys("\u200b\u2060\ufeff", None)}
)
_LINE_ENDS: Final = re.compile(r"\r+\n?|\u2028|\u2029|\x85")


class DoesNotApply(Exception):
    """The patch cannot be applied, and nothing was changed; the text says why, as git does."""


@frozen
class Applied:
    """The record of a patch that applies: the trees `before` and `after` it."""

    before: str
    after: str


def apply_patch(site: Site, patch: str, below: str, record: Path) -> list[str]:
    """Apply a patch to the worktree; the paths of the files that it changed.

    Args:
        below: the task's directory in the worktree: paths may count from there.
        record: the file that settles what is written.

    Raises:
        DoesNotApply: nothing was changed; after other errors it may be done again.
    """
    if re.search(r"^(?:GIT binary patch|Binary files )", _mend(patch), re.MULTILINE):
        raise DoesNotApply("it holds binary content")
    try:
        applied = load_record_if_any(record, Applied)
    except JobFileError as error:
        raise DoesNotApply(f"the record of the patch cannot be used: {error.why}") from None
    index = site.git.with_index(site.folder / "patch-index")
    try:
        if applied is None:
            applied = _try(site, index, patch, below, record)
            replace_file(record, orjson.dumps(applied), durable=True)
        return _write(site, index, applied)
    finally:
        (site.folder / "patch-index").unlink(missing_ok=True)


def _try(site: Site, index: Git, patch: str, below: str, record: Path) -> Applied:
    """The first try that git accepts: on what lies there, or else on what WORK began with."""
    written = write_worktree(site)
    base = site.git.line("rev-parse", f"{work_base(site.place)}^{{tree}}")
    refusals: list[str] = []
    for ground in dict.fromkeys((written.tree, base)):
        index("read-tree", ground)
        for words, spelling in _list_tries(patch, below):
            done = index.attempt("apply", "--cached", "--whitespace=nowarn", *words, stdin=spelling)
            if done.returncode:
                refusals.append(done.stderr.decode("utf-8", "replace").strip())
                continue
            after = index.line("write-tree")
            _check(site, index, ground, written.tree, after)
            if ground != written.tree:
                write_patch(site.git, base, written.tree, record.with_name(REPLACED))
            return Applied(written.tree, after)
    raise DoesNotApply(refusals[0][:2000])


def _list_tries(patch: str, below: str) -> Iterator[tuple[tuple[str, ...], bytes]]:
    """Options of ``git apply``, and the text: as it is, its lines counted anew, and as if it lay below."""
    inside = below not in ("", ".") and below.split(os.sep)[0] != os.pardir
    strip = "-p1" if _PREFIXES.search(patch) else "-p0"
    for spelling in dict.fromkeys((patch, _mend(patch))):
        for place in ((), (f"--directory={below}",)) if inside else ((),):
            for way in ((), ("--recount",)):
                yield (strip, *way, *place), spelling.encode("utf-8", "replace")


def _mend(patch: str) -> str:
    """The second spelling."""
    return _LINE_ENDS.sub("\n", patch).translate(_SPACES)


def _check(site: Site, index: Git, ground: str, before: str, after: str) -> None:
    """Refuse what git takes, and we do not: no change, a way through a link, a file that git ignores."""
    names = index.names("diff-tree", "-r", "-z", "--name-only", "--no-renames", ground, after)
    if not names:
        raise DoesNotApply("it changes nothing")
    modes = index.names("diff-tree", "-r", "-z", "--raw", "--no-renames", "--no-abbrev", ground, after)[::2]
    if any({row[1:7], row[8:14]} & {"120000", "160000"} for row in modes):
        raise DoesNotApply("it changes a symbolic link or a submodule")
    tracked = set(index.names("ls-tree", "-r", "-z", "--name-only", before))
    ignored = set(index.names("ls-files", "-z", "--cached", "--ignored", "--exclude-standard"))
    for name in names:
        if name in ignored and name not in tracked:
            raise DoesNotApply(f"{name} is ignored by git: no work is kept there")
        if name in site.brought.links or is_behind_link(site.git.directory, name):
            raise DoesNotApply(f"{name} is beyond a symbolic link")


def _write(site: Site, index: Git, applied: Applied) -> list[str]:
    """Write what the patch changed, from the record alone."""
    index("read-tree", applied.after)
    rows = index.names("diff-tree", "-r", "-z", "--name-status", "--no-renames", applied.before, applied.after)
    status, top = dict(zip(rows[1::2], rows[::2], strict=True)), site.git.directory
    for name, letter in status.items():
        if letter == "D":
            if is_behind_link(top, name):
                raise GitError(("apply",), 1, f"{name} is beyond a symbolic link")
            (top / name).unlink(missing_ok=True)
            remove_empty((top / name).parent, top)
    kept = b"".join(os.fsencode(name) + b"\0" for name, letter in status.items() if letter != "D")
    if kept:
        index("checkout-index", "--force", "-z", "--stdin", stdin=kept)
    return list(status)
