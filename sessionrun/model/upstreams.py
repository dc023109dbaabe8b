"""Where a task's repository comes from, if it names one: the words that people may write, and the settled record.

Pure: a text is taken apart here, and nothing is looked up.  This module must not know git, files or the network.
"""

from __future__ import annotations

import re
from typing import Final

from sessionrun.model.frozen import frozen
from sessionrun.model.places import GitSettings, KeepPolicy, Start

SCHEMES: Final = ("https", "http", "ssh", "git")
"""The schemes of URLs by which our git may reach another machine."""

FORMS: Final = (
    "owner/name of GitHub, a URL (https, ssh, git, file), user@host:path, or a path that begins with / . or ~"
)

GITHUB: Final = "https://github.com/"

_PROGRAM: Final = re.compile(r"[A-Za-z0-9]+::")
_SHORT: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]*/[A-Za-z0-9_.-]+")
_URL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/]*)(/.*)?")
_HOST: Final = re.compile(r"(?:([^@:/]+)@)?([A-Za-z0-9_][A-Za-z0-9_.-]*|\[[0-9A-Fa-f:.]+\])(?::([0-9]+))?")
_SCP: Final = re.compile(
    r"(?:[A-Za-z0-9_][A-Za-z0-9_.+-]*@)?([A-Za-z0-9_][A-Za-z0-9_.-]*|\[[0-9A-Fa-f:.]+\]):([^-:].*)"
)
_PORTS: Final = {"https": "443", "http": "80", "ssh": "22", "git": "9418"}

_COMMIT: Final = re.compile("[0-9a-f]{40}|[0-9a-f]{64}")
_NO_REF: Final = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//|/\.|^[-./]|[./]$|\.lock(/|$)|^@$")
"""What the name of a branch or tag does not have (git-check-ref-format(1))."""


@frozen
class Upstream:
    """The repository of a task: `repo` is a URL or an absolute path, `ref` a branch, tag or commit.

    Without a `ref` it is the HEAD of the repository.  Once a plan is settled, `mirror` is the absolute path of its
    mirror, and `home` the common git directory of a local repository, which gets the branches of its tasks, too.
    With `history` the task gets a repository of its own: its base, so many commits before that, and no others.
    `start` is where the `ref` stands, if that is known before the task begins: on nodes of a cluster.
    """

    repo: str
    ref: str | None = None
    mirror: str = ""
    home: str | None = None
    history: int | None = None
    start: Start | None = None


@frozen
class MirrorSite:
    """What all mirrors of a session share: where they are and how their worktrees are kept.

    `cache_dir` is absolute.  `worktree_dir` holds the worktrees; None: a directory for each mirror in the cache.
    `excludes` and `settings` are the user's own rules and settings of git, as they were at the launch.  With
    `require_cache` nothing is fetched.
    """

    cache_dir: str
    excludes: str
    settings: GitSettings
    worktree_dir: str | None = None
    keep: KeepPolicy = "never"
    require_cache: bool = False


def parse_repo(text: str) -> str:
    """A repository's name in one spelling: a URL, ``user@host:path``, or a path as it was written.

    Raises:
        ValueError: it is none of `FORMS`; the message tells what is wrong.
    """
    if text[:1] in ("/", ".", "~"):
        return text
    if _PROGRAM.match(text):
        raise ValueError("must not name a program of git's that fetches (NAME::...)")
    if match := _URL.fullmatch(text):
        return _parse_url(match[1].lower(), match[2], match[3] or "")
    if text.endswith(".bundle") and ":" not in text and not text.startswith("-"):
        return f"./{text}"
    if _SHORT.fullmatch(text) and text.partition("/")[2] not in (".", "..", ".git"):
        return GITHUB + text.removesuffix(".git")
    if match := _SCP.fullmatch(text):
        host = match[1]
        return text.replace(host, host.lower(), 1).rstrip("/") if text.startswith(host) else _lower_host(text)
    raise ValueError(f"must be {FORMS}")


def is_path(repo: str) -> bool:
    """Whether a name that `parse_repo` gave is a path."""
    return repo[:1] in ("/", ".", "~")


def is_commit(ref: str | None) -> bool:
    """Whether it is the full name of a commit, and no branch or tag."""
    return ref is not None and _COMMIT.fullmatch(ref) is not None


def check_ref(text: str) -> str:
    """A branch, tag or commit, as it was written.

    Raises:
        ValueError: git can have no such name.
    """
    if _NO_REF.search(text):
        raise ValueError("must be a branch, a tag or a commit")
    return text


def name_readably(repo: str) -> str:
    """A few words of a repository's name that may stand in a file name; different repositories may share them."""
    parts = [part for part in re.split(r"[/:]", repo.removesuffix(".git").rstrip("/")) if part]
    kept = parts[-1:] if is_path(repo) else parts[-2:]
    words = re.sub(r"[^A-Za-z0-9._-]+", "-", "-".join(kept)).strip(".-")
    return words[:60].rstrip(".-") or "repository"


def _parse_url(scheme: str, authority: str, path: str) -> str:
    if scheme == "file":
        if authority.lower() not in ("", "localhost") or not path or "%" in path:
            raise ValueError("must be file:///PATH without % in it; or write the path alone")
        return path
    if scheme not in SCHEMES:
        raise ValueError(f"must be {FORMS}")
    if ":" in authority.rpartition("@")[0]:
        raise ValueError("must not hold a password: spec.json would show it; git's credential helpers are asked")
    match = _HOST.fullmatch(authority)
    if match is None or not path.strip("/"):
        raise ValueError(f"must be {FORMS}")
    user, host, port = match[1], match[2].lower(), match[3]
    path = path.rstrip("/")
    if host == "github.com":
        path = path.removesuffix(".git")
    where = f"{user}@{host}" if user else host
    return f"{scheme}://{where}{f':{port}' if port and port != _PORTS[scheme] else ''}{path}"


def _lower_host(text: str) -> str:
    user, _, rest = text.partition("@")
    host, _, path = rest.partition(":")
    return f"{user}@{host.lower()}:{path.rstrip('/')}"
