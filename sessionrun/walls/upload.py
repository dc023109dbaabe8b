"""Serves the commits of a walled task to the `git fetch` outside (see `worktrees.bringing_out`); it runs inside.

    python -I -S upload.py BRANCH BASE GIT_DIR VIEW

It prints one line to its standard error, which names what stays inside, and becomes ``git upload-pack`` of a
repository with refs of ours alone, below refs/out/:

    head, own               the commits of HEAD and of BRANCH
    merge00, merge01, ...   those of an unfinished merge
    index                   the tree of the index, if it is another one than that of HEAD
    attached, unmerged      like head; they are there if HEAD names BRANCH, and if the index has conflicts

If HEAD or BRANCH leads to something that cannot be read, it says so and fails.  The settings of the view do not
count, for the task may have made them useless: git takes those of the repository.
"""

import os
import shutil
import stat
import subprocess
import sys

SETTINGS = "/run/config"
"""The repository's settings, if it has any."""

COMMON = "/run/view"
"""What git takes for the common directory: links to what is in the view, and those settings."""

INDEX = "/run/index"
"""A copy of the index: a lock that a git of the task has left is none of that."""

SERVED = "/run/served"
"""The repository that is served: the objects of the view, and our refs."""

LEFT = "left: "
"""How the line begins that names what stays inside."""

MOST_MERGED = 32
NOT_TAKEN = ("config", "config.worktree", "hooks", "info", "worktrees")
READ = ("HEAD", "packed-refs", "shallow", "objects", "refs", "reftable", "logs")
"""What of the view git opens by its name."""


def main(branch: str, base: str, git_dir: str, view: str) -> None:
    """Say what stays inside, and serve the rest."""
    odd = find_odd(view, git_dir)
    if odd is not None:
        sys.exit(f"{odd} is no regular file")
    make_common(view, git_dir)
    found, why = run("rev-parse", "--absolute-git-dir")
    if found is None:
        sys.exit(why)
    own, reference = f"refs/heads/{branch}", ask("symbolic-ref", "-q", "HEAD")
    head, tip = find("HEAD^{commit}"), find(f"{own}^{{commit}}")
    if head is None and (reference is None or not is_absent(reference)):
        sys.exit("HEAD leads to a commit that is not there")
    if tip is None and not is_absent(own):
        sys.exit(f"{own} leads to a commit that is not there")
    unmerged = bool(ask("ls-files", "--unmerged"))
    tree = None if unmerged else ask("write-tree", "--missing-ok")  # what is missing makes the fetch fail
    merged = read_words(os.path.join(git_dir, "MERGE_HEAD"))[:MOST_MERGED]
    served = {
        "head": head,
        "own": tip,
        "index": tree if tree != find("HEAD^{tree}") else None,
        "attached": head if reference == own else None,
        "unmerged": head if unmerged else None,
        **{f"merge{number:02}": find(f"{commit}^{{commit}}") for number, commit in enumerate(merged)},
    }
    print(f"{LEFT}{word_left(base, view, own)}", file=sys.stderr, flush=True)
    serve(view, {name: commit for name, commit in served.items() if commit is not None})


def serve(view: str, commits: dict[str, str]) -> None:
    """Become git's program that sends commits; it finds a repository with these refs alone."""
    os.makedirs(f"{SERVED}/refs/out")
    os.symlink(f"{view}/objects", f"{SERVED}/objects")
    sha256 = ask("rev-parse", "--show-object-format") == "sha256"
    files = {f"refs/out/{name}": commit for name, commit in commits.items()} | {
        "HEAD": "ref: refs/heads/none",
        "config": "[core]\nrepositoryformatversion = 1\nbare = true"
        + ("\n[extensions]\nobjectFormat = sha256" if sha256 else ""),
    }
    for name, content in files.items():
        with open(f"{SERVED}/{name}", "w") as stream:
            stream.write(f"{content}\n")
    if os.path.exists(f"{view}/shallow"):
        shutil.copyfile(f"{view}/shallow", f"{SERVED}/shallow")
    del os.environ["GIT_DIR"], os.environ["GIT_COMMON_DIR"]
    os.execvp("git", ["git", "upload-pack", "--strict", SERVED])


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


def make_common(view: str, git_dir: str) -> None:
    """Make the common directory of our git commands."""
    os.mkdir(COMMON)
    for name in os.listdir(view):
        if name not in NOT_TAKEN:
            os.symlink(os.path.join(view, name), os.path.join(COMMON, name))
    if os.path.exists(SETTINGS):
        os.symlink(SETTINGS, os.path.join(COMMON, "config"))
    if os.path.exists(f"{git_dir}/index"):
        shutil.copyfile(f"{git_dir}/index", INDEX)
    os.environ |= {"GIT_DIR": git_dir, "GIT_COMMON_DIR": COMMON, "GIT_INDEX_FILE": INDEX}


def run(*words: str, stdin: str = "", **more: str) -> tuple[str | None, str]:
    """What git prints, without the end of its last line, or None if it fails; and what it says."""
    done = subprocess.run(["git", *words], input=stdin.encode(), capture_output=True, env={**os.environ, **more})
    error = done.stderr.decode("utf-8", "replace").strip()
    return (done.stdout.decode("utf-8", "surrogateescape").rstrip("\n") if done.returncode == 0 else None), error


def ask(*words: str) -> str | None:
    """What git prints, or None."""
    return run(*words)[0]


def find(name: str) -> str | None:
    """The object that a name stands for, or None."""
    return ask("rev-parse", "--verify", "--quiet", "--end-of-options", name)


def is_absent(reference: str) -> bool:
    """Whether there is no such ref; one that is broken is there."""
    return run("for-each-ref", "--format=%(refname)", reference) == ("", "")


def word_left(base: str, view: str, own: str) -> str:
    """What stays inside, in one line; '' for nothing."""
    stashes = len((ask("stash", "list") or "").splitlines())
    parts = [f"{stashes} stashes" if stashes > 1 else "a stash"] if stashes else []
    for one, many, prefix in (("branch", "branches", "refs/heads/"), ("tag", "tags", "refs/tags/")):
        names = [name.removeprefix(prefix) for name in list_new(prefix, base, view) if name != own]
        parts += [f"{one if len(names) == 1 else many} {', '.join(names[:5])}"] if names else []
    text = f"stayed inside of its walls: {'; '.join(parts)}" if parts else ""
    return os.fsencode(text).decode("utf-8", "replace")


def list_new(prefix: str, base: str, view: str) -> list[str]:
    """The names of refs that lead to something which BASE lacks, and which only the view has."""
    form = "--format=%(objectname) %(refname)"
    lines = (ask("for-each-ref", form, "--no-merged", base, prefix) or "").splitlines()
    commits, names = [line.partition(" ")[0] for line in lines], [line.partition(" ")[2] for line in lines]
    theirs = {"GIT_OBJECT_DIRECTORY": os.path.join(view, "base-objects")}
    found, _ = run("cat-file", "--batch-check", stdin="\n".join(commits), **theirs)
    answers = (found or "").splitlines()
    return [name for name, answer in zip(names, answers, strict=False) if answer.endswith(" missing")]


def read_words(path: str) -> list[str]:
    """The words of a small file; none if there is no such file."""
    try:
        with open(path, encoding="ascii") as stream:
            return stream.read(4096).split()
    except (OSError, UnicodeDecodeError):
        return []


if __name__ == "__main__":
    main(*sys.argv[1:])
