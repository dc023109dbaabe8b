"""What the supervisor asks of an executor: start jobs, stop jobs, tell what happened; and the order of one job.

An order is a frame to the keeper of this machine, or JSON for nodes of ours and Slurm's.

    Job -> as_order -> JobOrder -> a frame to the keeper                              this machine
                                -> describe_order -> JSON -> parse_order -> JobOrder  nodes of ours, and Slurm's

A value of a variable that is ``{env:NAME}`` is that of NAME where the job runs.  So a secret is in no plan, spec
or order: the last of our processes before the job's own looks it up.  What runs around a job at Slurm imports this
module without site-packages.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any, Final, TypeAlias

from sessionrun.keeper.wire import JobOrder
from sessionrun.model.asked import SlotsOffered
from sessionrun.model.errors import SessionrunError
from sessionrun.model.events import HoldPlaced, JobLost, JobStarted
from sessionrun.model.frozen import frozen
from sessionrun.model.keys import JobKey
from sessionrun.model.kinds import Seconds
from sessionrun.model.places import KILLED_BY_AGENT, STOPPED_BY_US, Leftover
from sessionrun.model.spec import SLOT, Job
from sessionrun.store.logs import KILLED


@frozen
class Exit:
    """The end of a job as the system told it; `wait_status` is the raw status of wait(2).

    `errno` is set, and `wait_status` None, when the program could not be started at all; `detail` then says
    what was at fault.  `left` names the processes that the job left behind: how each ended, and its command.
    """

    key: JobKey
    wait_status: int | None
    ledger: int | None = None
    cpu_s: Seconds | None = None
    errno: int | None = None
    detail: str | None = None
    left: tuple[Leftover, ...] = ()


def name_left(left: Iterable[tuple[str, str]]) -> tuple[Leftover, ...]:
    """What the keeper says that a job left, in words."""
    return tuple(Leftover(command, KILLED_BY_AGENT if how == KILLED else STOPPED_BY_US) for how, command in left)


REFUSED_RETRY_S: Final = 1.0
UNSEEN: Final = "its end was not seen: the process that had started it was dead by then"

Notice: TypeAlias = JobStarted | Exit | JobLost | HoldPlaced | SlotsOffered


def read_frame(fields: list[Any], key: JobKey) -> list[Notice]:
    """Return the notices of a job that a frame of the keeper holds (see `keeper.wire`)."""
    kind, rest = fields[0], fields[2:]
    if kind == "P":
        return [JobStarted(key, *rest)]
    if kind == "X":
        status, cpu_s, ledger, left = rest
        return [Exit(key, status, ledger, cpu_s, left=name_left(left))]
    if kind == "F":
        number, detail, ledger = rest
        return [Exit(key, None, ledger, errno=number, detail=detail)]
    if kind == "L":
        return [JobLost(key, "lost", UNSEEN, gone=True)]
    if kind == "R":
        reason = os.fsencode(rest[0]).decode("utf-8", "replace")  # it may name a path; the journal is UTF-8
        hold = HoldPlaced(SLOT, reason, until=time.monotonic() + REFUSED_RETRY_S, until_exit=True)
        return [hold, JobLost(key, "void", reason, counts=False)]
    if kind == "D":
        return [JobLost(key, "lost", "its start was claimed before, and nothing more is known of it")]
    return []


_BY_NAME: Final = re.compile(r"\{env:([A-Za-z_][A-Za-z0-9_]*)\}")


class NotSet(SessionrunError):
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
    values = dict(env)
    for name, value in list_named(env).items():
        wanted = value[len("{env:") : -1]
        if wanted not in environ:
            raise NotSet(f"the variable {wanted}, which {name} is to be, is not set")
        values[name] = environ[wanted]
    return values


def list_named(env: Mapping[str, str]) -> dict[str, str]:
    """Those variables that are given by name."""
    return {name: value for name, value in env.items() if _BY_NAME.fullmatch(value)}
