"""The way of a job to its process, the same for all executors, and of its end back from another machine.

    Job -> as_order -> JobOrder -> a frame to the keeper                              this machine
                                -> describe_order -> JSON -> parse_order -> JobOrder  nodes of ours, and Slurm's

A value of a variable that is ``{env:NAME}`` is that of NAME where the job runs.  So a secret is in no plan, spec
or order: the last of our processes before the job's own looks it up.  What runs around a job at Slurm imports this
module without site-packages.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Final

from sessionrun.model.events import JobLost
from sessionrun.model.keys import JobKey
from sessionrun.runtime.executors.protocol import Exit
from sessionrun.runtime.keeper.wire import JobOrder

if TYPE_CHECKING:
    from sessionrun.model.spec import Job

_BY_NAME: Final = re.compile(r"\{env:([A-Za-z_][A-Za-z0-9_]*)\}")


class NotSet(Exception):
    """A variable that a job needs is not set on its machine."""


def as_order(job: Job) -> JobOrder:
    """The order for a job; its variables are yet to be looked up."""
    places = (job.cwd, job.stdin or "", job.stdout, job.stderr)
    return JobOrder(job.key.text(), job.stop_grace_s, *places, [*job.argv], {**job.env}, job.keeps)


def fill_in(order: JobOrder) -> JobOrder:
    """An order with the values of the variables that are given by name: where its job runs.

    Raises:
        NotSet: one has none.
    """
    return order._replace(env=look_up(order.env, os.environ))


def move(order: JobOrder, place: Callable[[str], str]) -> JobOrder:
    """An order whose words are those of another place."""
    return order._replace(
        cwd=place(order.cwd),
        stdin=place(order.stdin),
        argv=[place(word) for word in order.argv],
        env={name: place(value) for name, value in order.env.items()},
    )


def describe_order(order: JobOrder) -> dict[str, Any]:
    """An order as JSON.  What its job may leave behind is of one machine."""
    about = order._asdict()
    del about["keeps"]
    return about


def parse_order(about: Mapping[str, Any]) -> JobOrder:
    """The order that was described, among other things.

    Raises:
        KeyError: it is damaged.
    """
    return JobOrder(*(about[name] for name in JobOrder._fields if name != "keeps"))


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
