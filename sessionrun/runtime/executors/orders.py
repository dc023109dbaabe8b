"""A job as it travels to another machine, and its end as it travels back, as JSON: to nodes of ours and Slurm's.

A value of a variable that is ``{env:NAME}`` is that of NAME where the job runs.  So a secret is in no plan, spec
or order: the last of our processes before the job's own looks it up.  What runs around a job at Slurm imports this
module without site-packages.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Final

from sessionrun.model.cluster import CACHE_TOKEN, NODE_TOKEN, PATH_TOKEN
from sessionrun.model.events import JobLost
from sessionrun.model.keys import JobKey
from sessionrun.runtime.executors.protocol import Exit
from sessionrun.runtime.keeper.command import PACKAGE_ROOT
from sessionrun.runtime.keeper.wire import JobOrder

if TYPE_CHECKING:
    from sessionrun.model.spec import Job

SESSION_TOKEN: Final = "@sessionrun-session@"
PYTHON_TOKEN: Final = "@sessionrun-python@"
PACKAGE_TOKEN: Final = "@sessionrun-package@"
"""In an order to a node, of what each machine has its own: the directory of the session, for which
there is the job's folder; our Python; the directory of our package.  There are more in `model.cluster`."""

_BY_NAME: Final = re.compile(r"\{env:([A-Za-z_][A-Za-z0-9_]*)\}")


class NotSet(Exception):
    """A variable that a job needs is not set on its machine."""


def put_tokens(session: str) -> Callable[[str], str]:
    """What puts tokens into the words of a job whose session's directory that is."""

    def there(word: str) -> str:
        if word == sys.executable:
            return PYTHON_TOKEN
        if word.startswith(PACKAGE_ROOT + os.sep):
            word = PACKAGE_TOKEN + word[len(PACKAGE_ROOT) :]
        return word.replace(session, SESSION_TOKEN)

    return there


def take_tokens(text: str, folder: str, node: str) -> str:
    """A text with the places of this machine: of a job's folder, and of its node."""
    text = text.replace(SESSION_TOKEN, folder).replace(NODE_TOKEN, node)
    text = text.replace(PYTHON_TOKEN, sys.executable).replace(PACKAGE_TOKEN, PACKAGE_ROOT)
    if CACHE_TOKEN in text:
        from sessionrun.store.user_directories import find_cache_folder  # most jobs have no environment

        text = text.replace(CACHE_TOKEN, str(find_cache_folder()))
    return text.replace(PATH_TOKEN, os.environ.get("PATH") or os.defpath)


def describe_job(job: Job, there: Callable[[str], str] = str) -> dict[str, Any]:
    """A job as JSON; `there` makes its words those that travel.  What it may leave behind is of one machine."""
    return {
        "key": job.key.text(),
        "grace_s": job.stop_grace_s,
        "cwd": there(job.cwd),
        "stdin": there(job.stdin or ""),
        "stdout": job.stdout,
        "stderr": job.stderr,
        "argv": [there(word) for word in job.argv],
        "env": {name: there(value) for name, value in job.env.items()},
    }


def read_job(about: Mapping[str, Any], here: Callable[[str], str] = str) -> JobOrder:
    """The process to start for a job that was described; `here` makes its words those of this machine.

    Raises:
        NotSet: a variable is given by a name that is not set.
        ValueError, KeyError, TypeError, AttributeError: it is damaged.
    """
    env = look_up(about["env"], os.environ)
    return JobOrder(
        key=about["key"],
        grace_s=float(about["grace_s"]),
        cwd=os.fsencode(here(about["cwd"])),
        stdin=os.fsencode(here(about["stdin"])),
        stdout=os.fsencode(here(about["stdout"])),
        stderr=os.fsencode(here(about["stderr"])),
        argv=[os.fsencode(here(word)) for word in about["argv"]],
        env=[os.fsencode(word) for name, value in env.items() for word in (name, here(value))],
    )


def describe_end(end: Exit | JobLost) -> dict[str, Any]:
    """An end as JSON.  Where a ledger has it means nothing elsewhere."""
    about = {**asdict(end), "key": end.key.text()}
    if isinstance(end, Exit):
        return {**about, "kind": "exit", "ledger": None, "left": [*about["left"]]}
    return {**about, "kind": "lost"}


def read_end(end: Mapping[str, Any], key: JobKey, where: str) -> Exit | JobLost:
    """The end of a job that was described; `where` it was is told to people.

    Raises:
        ValueError, KeyError: it is damaged.
    """
    from sessionrun.store.codec import build  # Slurm's node has no library, and reads no end

    about = {**end, "key": key.text()}
    if end["kind"] == "exit":
        left = build(Exit, about)
        return replace(left, detail=left.detail and f"{left.detail} on {where}")
    lost = build(JobLost, about)
    return replace(lost, reason=f"{lost.reason} ({where})")


def look_up(env: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of a job, with the values of those that are given by name.

    Raises:
        NotSet: one has none.
    """
    return {name: _find(name, value, environ) for name, value in env.items()}


def list_named(env: Mapping[str, str]) -> dict[str, str]:
    """Those variables that are given by name."""
    return {name: value for name, value in env.items() if _BY_NAME.fullmatch(value)}


def _find(name: str, value: str, environ: Mapping[str, str]) -> str:
    found = _BY_NAME.fullmatch(value)
    if found is None:
        return value
    if found[1] not in environ:
        raise NotSet(f"the variable {found[1]}, which {name} is to be, is not set")
    return environ[found[1]]
