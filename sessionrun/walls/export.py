"""The program that brings commits out of the walls: it runs inside, and prints what HEAD has that is new.

    python -I -S export.py BRANCH BASE KNOWN...

It prints one line of JSON and then a pack (gitformat-pack) of the commits that are new beside KNOWN.  Other
branches and tags that lead to something which BASE does not have are named.  The program outside believes nothing
of it without a check.
"""

import json
import os
import subprocess
import sys


def main(branch: str, base: str, known: list[str]) -> int:
    """Print where HEAD is, and the objects of all that it reaches beside the commits in `known`."""
    git_dir = ask("rev-parse", "--absolute-git-dir") or ""
    head, own = find("HEAD^{commit}"), find(f"refs/heads/{branch}^{{commit}}")
    merge = [commit for commit in read_lines(os.path.join(git_dir, "MERGE_HEAD")) if find(f"{commit}^{{commit}}")]
    found = {
        "head": head,
        "reference": ask("symbolic-ref", "-q", "HEAD"),
        "own": own,
        "merge": merge,
        "unmerged": bool(ask("ls-files", "--unmerged")),
        "stashes": len((ask("stash", "list") or "").splitlines()),
        "branches": list_new("refs/heads", base, but=f"refs/heads/{branch}"),
        "tags": list_new("refs/tags", base),
    }
    print(json.dumps(found), flush=True)
    new = [commit for commit in dict.fromkeys((head, own, *merge)) if commit and commit not in known]
    if not new:
        return 0
    lines = [*new, *(f"^{commit}" for commit in known if find(f"{commit}^{{commit}}"))]
    words = ["git", "pack-objects", "--revs", "--stdout", "-q"]
    return subprocess.run(words, input="".join(f"{line}\n" for line in lines).encode()).returncode


def ask(*words: str) -> str | None:
    """What git prints, without the end of its last line; None if it fails."""
    done = subprocess.run(["git", *words], stdin=subprocess.DEVNULL, capture_output=True)
    return done.stdout.decode("utf-8", "replace").rstrip("\n") if done.returncode == 0 else None


def find(name: str) -> str | None:
    """The id of an object, or None."""
    return ask("rev-parse", "--verify", "--quiet", "--end-of-options", name)


def list_new(prefix: str, base: str, but: str = "") -> list[str]:
    """The names of at most 20 refs that lead to something which the commit `base` does not have."""
    names = (ask("for-each-ref", "--format=%(refname)", "--no-merged", base, prefix) or "").splitlines()
    return [name for name in names if name != but][:20]


def read_lines(path: str) -> list[str]:
    """The words of a small file; none if there is no such file."""
    try:
        with open(path, encoding="ascii") as stream:
            return stream.read(4096).split()
    except (OSError, UnicodeDecodeError):
        return []


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
