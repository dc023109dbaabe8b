"""The program that brings commits out of the walls: it runs inside, and prints what HEAD has that is new.

    python -I -S export.py VIEW BRANCH BASE KNOWN...

It prints one line of JSON and then a pack (gitformat-pack) of the commits that are new beside KNOWN.  Other
branches and tags that lead to something which only the view has are named, and the files that the index has
beside HEAD.  If HEAD or the branch leads to something that cannot be read, it says so and fails.  The program
outside believes nothing of it without a check.

The settings of the view do not count, for the task may have made them useless: git takes those of the repository.
"""

import json
import os
import stat
import subprocess
import sys

SETTINGS = "/run/config"
"""The repository's settings, if it has any."""

COMMON = "/run/view"
"""What git takes for the common directory: links to what is in the view, and those settings."""

NOT_TAKEN = ("config", "config.worktree", "hooks", "info", "worktrees")
READ = ("HEAD", "packed-refs", "shallow", "objects", "refs", "reftable", "logs")
"""What of it git opens by its name."""

MOST_STAGED = 32 * 1024
"""The most bytes that the names of staged files may come to."""


def main(view: str, branch: str, base: str, known: list[str]) -> int:
    """Print where HEAD is, and the objects of all that it reaches beside the commits in `known`."""
    odd = find_odd(view, os.environ["GIT_DIR"])
    if odd is not None:
        return fail(f"{odd} is no regular file")
    make_common(view)
    git_dir, why = run("rev-parse", "--absolute-git-dir")
    if git_dir is None:
        return fail(why)
    head, reference, own = find("HEAD^{commit}"), ask("symbolic-ref", "-q", "HEAD"), f"refs/heads/{branch}"
    tip = find(f"{own}^{{commit}}")
    if head is None and (reference is None or not is_absent(reference)):
        return fail("HEAD leads to a commit that is not there")
    if tip is None and not is_absent(own):
        return fail(f"{own} leads to a commit that is not there")
    merge = [commit for commit in read_lines(os.path.join(git_dir, "MERGE_HEAD")) if find(f"{commit}^{{commit}}")]
    staged, many = list_staged()
    found = {
        "head": head,
        "reference": reference,
        "own": tip,
        "merge": merge,
        "unmerged": bool(ask("ls-files", "--unmerged")),
        "staged": staged,
        "many": many,
        "stashes": len((ask("stash", "list") or "").splitlines()),
        "branches": list_new("refs/heads", base, view, but=own),
        "tags": list_new("refs/tags", base, view),
    }
    print(json.dumps(found), flush=True)
    new = [commit for commit in dict.fromkeys((head, tip, *merge)) if commit and commit not in known]
    if not new:
        return 0
    lines = [*new, *(f"^{commit}" for commit in known if find(f"{commit}^{{commit}}"))]
    words = ["git", "pack-objects", "--revs", "--stdout", "-q"]
    return subprocess.run(words, input="".join(f"{line}\n" for line in lines).encode()).returncode


def find_odd(view: str, git_dir: str) -> str | None:
    """What git would read, and wait for or follow: anything in the place of a file of its own."""
    for folder in (view, git_dir, os.path.join(view, "refs")):
        for root, folders, files in os.walk(folder):
            links = [name for name in folders if os.path.islink(os.path.join(root, name))]
            for name in (*links, *files):
                path = os.path.join(root, name)
                is_read = root != view or name in READ
                if is_read and not stat.S_ISREG(os.lstat(path).st_mode):
                    return os.path.relpath(path, view)
            if folder != os.path.join(view, "refs"):
                break
    return None


def make_common(view: str) -> None:
    """Make the common directory of our git commands."""
    os.mkdir(COMMON)
    for name in os.listdir(view):
        if name not in NOT_TAKEN:
            os.symlink(os.path.join(view, name), os.path.join(COMMON, name))
    if os.path.exists(SETTINGS):
        os.symlink(SETTINGS, os.path.join(COMMON, "config"))
    os.environ["GIT_COMMON_DIR"] = COMMON


def fail(why: str) -> int:
    """Say why nothing can be brought out."""
    print(why, file=sys.stderr)
    return 1


def run(*words: str, **more: str) -> tuple[str | None, str]:
    """What git prints, without the end of its last line, or None if it fails; and what it says."""
    environ = {**os.environ, **more}
    done = subprocess.run(["git", *words], stdin=subprocess.DEVNULL, capture_output=True, env=environ)
    error = done.stderr.decode("utf-8", "replace").strip()
    return (done.stdout.decode("utf-8", "surrogateescape").rstrip("\n") if done.returncode == 0 else None), error


def ask(*words: str) -> str | None:
    """What git prints, or None."""
    return run(*words)[0]


def find(name: str) -> str | None:
    """The id of an object, or None."""
    return ask("rev-parse", "--verify", "--quiet", "--end-of-options", name)


def is_absent(reference: str) -> bool:
    """Whether there is no such ref; one that is broken is there."""
    return run("for-each-ref", "--format=%(refname)", reference) == ("", "")


def list_new(prefix: str, base: str, view: str, but: str = "") -> list[str]:
    """The names of at most 20 refs that lead to something which BASE lacks, and which only the view has."""
    lines = (
        ask("for-each-ref", "--format=%(objectname) %(refname)", "--no-merged", base, prefix) or ""
    ).splitlines()
    pairs = [line.partition(" ") for line in lines]
    theirs = os.path.join(view, "base-objects")
    new = [
        name
        for commit, _, name in pairs
        if name != but and run("cat-file", "-e", commit, GIT_OBJECT_DIRECTORY=theirs)[0] is None
    ]
    return new[:20]


def list_staged() -> tuple[list[str], bool]:
    """The files that the index has beside HEAD, also those that git ignores; and whether there are too many."""
    words = ("diff-index", "--cached", "--name-only", "--diff-filter=A", "-z", "HEAD")
    names = [name for name in (ask(*words) or "").split("\0") if name]
    fits = len(json.dumps(names)) <= MOST_STAGED
    return (names, False) if fits else ([], True)


def read_lines(path: str) -> list[str]:
    """The words of a small file; none if there is no such file."""
    try:
        with open(path, encoding="ascii") as stream:
            return stream.read(4096).split()
    except (OSError, UnicodeDecodeError):
        return []


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:]))
