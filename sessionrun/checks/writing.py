"""Writes what an answer says, files or a patch: all of it or nothing, and only inside of the task's directory.

What comes out is known before the first file changes, and a record says it.  A CHECK that is done again after a
crash goes on by the record, so no answer is written twice or half.

New files are written beside the old ones, then the record says which they are, then each is renamed to its place.
Directories are opened one below the other and no link is followed: a link put there meanwhile leads nowhere.

A patch is tried on a private index; the record names the tree that comes out.  What agents do to its text (line
ends, no-break spaces) is mended in a second spelling, which counts only where the first does not apply.

Must not know how files and patches are found in an answer.
"""

from __future__ import annotations

import fnmatch
import hashlib
import os
import re
import signal
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import orjson

from sessionrun.checks.answers import Unclear, apply_edits, read_edits, read_files
from sessionrun.git.git import Git, GitError, check
from sessionrun.git.rooms import is_behind_link
from sessionrun.model.checks import Brief
from sessionrun.model.errors import JobFileError
from sessionrun.model.frozen import frozen
from sessionrun.session.prompt import BriefProblem, count_lines, read_inside, resolve_inside
from sessionrun.store.files import NotRegular, read_regular, replace_file
from sessionrun.store.jobfiles import load_record_if_any
from sessionrun.store.outside import open_folder
from sessionrun.worktrees.park import write_patch, write_worktree
from sessionrun.worktrees.rounds import work_base
from sessionrun.worktrees.site import Site

_CREATE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@frozen
class _Change:
    """One file to be written: its place, links resolved, and the new file's name."""

    path: str
    folder: str
    name: str
    new: str
    content: bytes


def apply_answer(brief: Brief, directory: str, answer: str, record: Path) -> dict[str, int]:
    """Write what an answer says; the lines of each file written.

    Args:
        record: a file outside of `directory`, written when all new files exist: it lists what is renamed then.

    Raises:
        Unclear: the answer does not say what to write, or too much.
        BriefProblem: it would write where it must not.
        OSError: a file cannot be written; none was changed, unless a rename was refused.
    """
    files = _read_answer(brief, directory, answer)
    lines = {path: count_lines(text) for path, text in files.items()}
    limit = brief.max_output_lines
    if brief.mode != "edit" and limit is not None and sum(lines.values()) > limit:
        raise Unclear(f"the answer has {sum(lines.values())} lines, and at most {limit} are allowed")
    owner = hashlib.sha256(os.fsencode(record)).hexdigest()[:16]
    changes: dict[tuple[str, str], _Change] = {}
    for number, (path, text) in enumerate(files.items()):
        change = _prepare(brief, directory, path, text, f".sessionrun-{owner}-{number}")
        other = changes.setdefault((change.folder, change.name), change)
        if other is not change:
            raise Unclear(f"{other.path} and {path} are the same file")
    _write_all(list(changes.values()), Path(os.path.realpath(directory)), record, lines)
    return lines


def finish_answer(directory: str, record: Path) -> dict[str, int]:
    """Finish the renames of an answer whose writing was broken off; the lines of each file."""
    written, top = orjson.loads(read_regular(record)), Path(os.path.realpath(directory))
    for move in written["moves"]:
        with suppress(FileNotFoundError):  # it is in its place
            _rename(top, *move)
    return dict(written["lines"])


def _read_answer(brief: Brief, directory: str, answer: str) -> dict[str, str]:
    if brief.mode == "edit":
        edits = read_edits(answer, brief.targets)
        return apply_edits(edits, {edit.path: _current(directory, edit.path) for edit in edits})
    files = read_files(answer, brief.outputs)
    missing = [path for path in brief.outputs if path not in files]
    if missing and (brief.mode == "split" or len(missing) == len(brief.outputs)):
        raise Unclear(f"the answer has no {', '.join(missing)}, but {', '.join(files)}")
    return files


def _current(directory: str, path: str) -> str | None:
    """The text of a file that is to be edited; anything but text is refused, for the file is written anew."""
    real = resolve_inside(directory, path)
    if not os.path.lexists(real):
        return None
    text = read_inside(directory, path)
    if "\ufffd" in text:
        raise BriefProblem(path, f"{path} is not UTF-8 and cannot be edited")
    return text


def _prepare(brief: Brief, directory: str, path: str, text: str, new: str) -> _Change:
    real = resolve_inside(directory, path)
    inside = os.path.relpath(real, os.path.realpath(directory))
    if any(fnmatch.fnmatch(inside, pattern) for pattern in brief.protected):
        raise BriefProblem(path, f"{path} must not be written by an answer")
    if not brief.create_directories and not os.path.isdir(os.path.dirname(real)):
        raise BriefProblem(path, f"{path}: there is no directory {os.path.dirname(path)}")
    folder, name = os.path.split(inside)
    return _Change(path, folder, name, new, text.encode("utf-8", "replace"))


def _write_all(changes: Sequence[_Change], top: Path, record: Path, lines: Mapping[str, int]) -> None:
    folders = {top / change.folder for change in changes}
    parents = {parent for folder in folders for parent in (folder, *folder.parents)}
    to_make = [folder for folder in sorted(parents, reverse=True) if not os.path.lexists(folder)]
    try:
        for change in changes:
            _write_new(change, top)
        moves = [(change.folder, change.new, change.name) for change in changes]
        with _undisturbed():
            replace_file(record, orjson.dumps({"lines": lines, "moves": moves}), durable=False)
            for move in moves:
                _rename(top, *move)
    except (OSError, BriefProblem):
        record.unlink(missing_ok=True)
        for change in changes:
            with suppress(OSError), open_folder(top / change.folder) as fd:
                os.unlink(change.new, dir_fd=fd)
        for folder in to_make:
            with suppress(OSError), open_folder(folder.parent) as fd:
                os.rmdir(folder.name, dir_fd=fd)
        raise


def _rename(top: Path, folder: str, new: str, name: str) -> None:
    with open_folder(top / folder) as fd:
        os.replace(new, name, src_dir_fd=fd, dst_dir_fd=fd)


def _write_new(change: _Change, top: Path) -> None:
    try:
        with open_folder(top / change.folder, make=True) as fd:
            mode = None
            with suppress(FileNotFoundError):
                mode = os.stat(change.name, dir_fd=fd, follow_symlinks=False).st_mode
            if mode is not None and not stat.S_ISREG(mode):
                raise BriefProblem(change.path, f"{change.path} is not a regular file")
            with suppress(FileNotFoundError):
                os.unlink(change.new, dir_fd=fd)  # left by a writing that was broken off
            with os.fdopen(os.open(change.new, _CREATE, 0o666, dir_fd=fd), "wb") as stream:
                stream.write(change.content)
                if mode is not None:
                    os.fchmod(stream.fileno(), mode & 0o7777)
    except NotRegular:
        why = f"{change.path}: a file or a link is where its directory should be"
        raise BriefProblem(change.path, why) from None


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Let a request to stop wait until all files are in their places."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# --- a patch ---


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
            applied = _try_patch(site, index, patch, below, record)
            replace_file(record, orjson.dumps(applied), durable=True)
        return _write_tree(index, applied)
    finally:
        (site.folder / "patch-index").unlink(missing_ok=True)


def _try_patch(site: Site, index: Git, patch: str, below: str, record: Path) -> Applied:
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
            _refuse_changes(site, index, ground, written.tree, after)
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


def _refuse_changes(site: Site, index: Git, ground: str, before: str, after: str) -> None:
    """Refuse what git takes, and we do not: no change, a way through a link, a file that git ignores."""
    rows = index.names("diff-tree", "-r", "-z", "--raw", "--no-renames", "--no-abbrev", ground, after)
    if not rows:
        raise DoesNotApply("it changes nothing")
    modes, names = rows[::2], rows[1::2]
    if any({row[1:7], row[8:14]} & {"120000", "160000"} for row in modes):
        raise DoesNotApply("it changes a symbolic link or a submodule")
    tracked = set(index.names("ls-tree", "-r", "-z", "--name-only", before))
    ignored = set(index.names("ls-files", "-z", "--cached", "--ignored", "--exclude-standard"))
    for name in names:
        if name in ignored and name not in tracked:
            raise DoesNotApply(f"{name} is ignored by git: no work is kept there")
        if name in site.brought.links or is_behind_link(site.git.directory, name):
            raise DoesNotApply(f"{name} is beyond a symbolic link")


def _write_tree(index: Git, applied: Applied) -> list[str]:
    """Write what the patch changed, from the record alone, and nothing else; the paths."""
    index("read-tree", applied.before)
    # a file that a sparse checkout leaves out is written, too: else the change of the patch would be lost
    words = ("read-tree", "--reset", "-u", "--no-sparse-checkout", applied.before, applied.after)
    done = index.attempt(*words)
    check(words, done)
    for name in re.findall(rb"^warning: unable to unlink '(.*)'", done.stderr, re.MULTILINE):
        if not os.path.isdir(index.directory / os.fsdecode(name)):  # the patch may have put a directory there
            raise GitError(words, 1, f"{os.fsdecode(name)} cannot be deleted")
    return index.names("diff-tree", "-r", "-z", "--name-only", "--no-renames", applied.before, applied.after)
