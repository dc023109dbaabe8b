"""Frozen records about git: the repository of a session or of a task, a task's workspace and its end.

Pure: a text is taken apart here, and nothing is looked up.  This module must not know git, files or the network.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final, Literal, NamedTuple, get_args

from sessionrun.model.frozen import frozen
from sessionrun.model.kinds import DiffStat, PathText, Seconds
from sessionrun.model.words import LandWord

KeepPolicy = Literal["always", "on-failure", "never"]


@frozen
class GitSettings:
    """What decides how git reads and writes the files of a repository, as it was at the launch.

    `config` are settings by their full names, in order (a value of None is a name without a value); `attributes`
    is the text of the system's and the user's attribute files, `shared_attributes` that of ``info/attributes``;
    `git_dir` is the administrative directory of the user's checkout.
    """

    config: tuple[tuple[str, str | None], ...]
    user_attributes: str
    shared_attributes: str
    git_dir: str


@frozen
class Repository:
    """The git repository that worktrees are made from; all paths absolute.

    `top` is the user's checkout, `common_dir` what its worktrees share; branches are called after
    `base_branch` and begin at `base_commit`; `worktree_dir` holds the worktrees.  `excludes` is what git ignores
    there by rules outside of its tree, `settings` how it treats files.  A mirror has no checkout: `top` and
    `common_dir` are the mirror, and `upstream` says of which repository.
    """

    top: PathText
    common_dir: PathText
    base_branch: PathText
    base_commit: PathText
    worktree_dir: PathText
    keep: KeepPolicy = "never"
    excludes: str = ""
    settings: GitSettings | None = None
    upstream: str | None = None


@frozen
class Start:
    """Where the ref that a task names stood in its mirror, for the whole session: `name` and `commit`."""

    name: str
    commit: str


@frozen
class EnvironmentStep:
    """One step of making an environment, and how long it took (seconds)."""

    name: str
    duration_s: Seconds


@frozen
class MadeEnvironment:
    """How an environment was made."""

    digest: str
    """Of what decides about it."""
    cached: bool
    """Whether it was there already and was only copied."""
    path: PathText | None = None
    """It goes with the worktree."""
    choice: str | None = None
    """What was installed."""
    steps: tuple[EnvironmentStep, ...] = ()


@frozen
class Place:
    """A task's workspace in git, as far as PREPARE and RELEASE tell; None = there is no such thing.

    `worktree` is its path while it exists; it began at `base_commit`, and its work at `setup_commit` if its setup
    left something that git does not ignore.  `commit` holds the work, on `branch` or, where that could not be,
    on `rescue`; `diff_stat` counts files, insertions and deletions against `work_base`; `kept` is why the
    worktree was not removed; `remark` is what became of work that is nowhere.  `changed` is whether anything in it
    that git does not ignore differs from `work_base`, as far as RELEASE can tell.  `start` is there
    if the worktree is of a mirror.  `environment` is what SETUP made for it.  `seat` is the number of a worktree
    that stays.  `taken_up` is the commit at which the last attempt began, if it went on with earlier work.
    `refused` is why the work of a mend may not land.
    """

    branch: PathText | None = None
    worktree: PathText | None = None
    base_commit: PathText | None = None
    commit: PathText | None = None
    diff_stat: DiffStat | None = None
    rescue: PathText | None = None
    kept: str | None = None
    remark: str | None = None
    changed: bool | None = None
    setup_commit: PathText | None = None
    start: Start | None = None
    environment: MadeEnvironment | None = None
    seat: int | None = None
    taken_up: PathText | None = None
    refused: str | None = None

    @property
    def work_base(self) -> str | None:
        """The commit at which the task's work began: what setup left is no work."""
        return self.setup_commit or self.base_commit

    @property
    def holds_no_work(self) -> bool:
        """Whether it is known that the task committed nothing beyond what it began with."""
        return self.commit is not None and self.commit in (self.base_commit, self.work_base)


Placement = Literal["inside", "sibling"]
PLACEMENTS: Final[tuple[Placement, ...]] = get_args(Placement)

SEATS_INSIDE: Final = "worktrees"
"""The directory in the user's checkout for seats that lie inside."""

TASK_FILE: Final = ".current_task.txt"
"""In a seat while a task has it: the task's prompt."""


@frozen
class Seats:
    """Where the worktrees that stay lie: `prefix` and a number, from 1, in `directory` (absolute)."""

    directory: str
    prefix: str = "w"
    placement: Placement = "inside"

    def path_of(self, number: int) -> str:
        return f"{self.directory}/{self.prefix}{number}"


@frozen
class Handed:
    """Where a task ended that another one needs: `commit` holds its work, on `branch` while that is there.

    Without a commit nothing holds it, and `why` says so.  `follow`: if the branch goes on from the commit, its tip
    counts; for a user has looked at it since, and perhaps mended it.
    """

    task: str
    commit: str | None
    branch: str | None = None
    why: str | None = None
    follow: bool = False


@frozen
class Leftover:
    """A process that a job left behind."""

    command: str
    """Its first 200 bytes; of one that the agent killed the name of its program alone."""
    how: str
    """`stopped by us`, or `killed by the agent`."""


STOPPED_BY_US: Final = "stopped by us"
KILLED_BY_AGENT: Final = "killed by the agent"


class LandEntry(NamedTuple):
    """The work of a task in the landing queue of its session; `shown.Landing` says what is in it.

    `at` is in seconds since the epoch, `seq` the number of the journal's record with which it came to stand there;
    None: that of the task's end.
    """

    status: LandWord
    reason_class: str | None = None
    reason: str | None = None
    commit: str | None = None
    mend: str | None = None
    files: tuple[str, ...] = ()
    against: tuple[str, ...] = ()
    output: str | None = None
    at: float | None = None
    seq: int | None = None


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
    r"([A-Za-z0-9_][A-Za-z0-9_.+-]*@)?([A-Za-z0-9_][A-Za-z0-9_.-]*|\[[0-9A-Fa-f:.]+\]):([^-:].*)"
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


def begin_at(repository: Repository, start: Start) -> Repository:
    """The repository of a mirror's task that begins there; only then it is known how its objects are named."""
    settings = repository.settings
    if settings is not None:
        settings = replace(settings, config=(*settings.config, *list_formats(start.commit)))
    return replace(repository, base_branch=start.name, base_commit=start.commit, settings=settings)


def list_formats(commit: str | None) -> list[tuple[str, str]]:
    """The settings by which git understands a repository whose objects have names like that of `commit`."""
    if commit is None or len(commit) != 64:
        return []
    return [("core.repositoryformatversion", "1"), ("extensions.objectformat", "sha256")]


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
        return f"{match[1] or ''}{match[2].lower()}:{match[3].rstrip('/')}"
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


WORKSPACE_LIMIT_S: Final = 600.0
"""How long one git command of PREPARE, RELEASE and `clean` may take (seconds), unless a session sets a limit."""
