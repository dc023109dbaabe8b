"""The walls around the gates of a `merge`: of the session, unless the command says otherwise."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from sessionrun.landing.records import LandRequest
from sessionrun.model.errors import InputError
from sessionrun.model.keys import JobKey
from sessionrun.model.spec import Landing, SessionSpec
from sessionrun.store.session import SessionDir

if TYPE_CHECKING:
    from sessionrun.model.sandbox import Policy, Sandbox


def choose_sandbox(spec: SessionSpec, policy: Policy | None) -> Sandbox | None:
    """The sandbox of the gates: by the command's policy, as the session lands, or that of its tasks; None: none.

    Raises:
        InputError: its tasks have different ones.
    """
    if policy is not None:
        from sessionrun.dialects.fields import make_sandbox

        return None if policy == "none" else make_sandbox(policy)
    if spec.landing is not None:
        return spec.landing.sandbox
    wanted = {task.sandbox for task in spec.tasks if task.upstream is None and task.sandbox is not None}
    if len(wanted) > 1:
        raise InputError("the tasks of this session have different sandboxes: say --sandbox, for the gates")
    return next(iter(wanted), None)


@contextmanager
def enclose_request(
    session: SessionDir,
    spec: SessionSpec,
    request: LandRequest,
    sandbox: Sandbox | None,
    tell: Callable[[str], None],
) -> Iterator[LandRequest]:
    """The request with walls around its gates, for as long as it is carried out.

    Raises:
        InputError: the walls cannot be built here; nothing may be tried.
        SessionrunError, OSError: the session directory cannot be written.
    """
    if sandbox is None or not request.gates.commands:
        yield request
        return
    from sessionrun.runtime.jobs.land.build import enclose_gates
    from sessionrun.runtime.jobs.shared import Site
    from sessionrun.runtime.jobs.walled_end import leave_groups
    from sessionrun.runtime.proxying import Proxying
    from sessionrun.walls.trial import check_spec
    from sessionrun.workspaces.registration import remove_tree

    check_spec(replace(spec, tasks=(), template=None, landing=Landing(request.target, sandbox=sandbox)))
    key = JobKey(f".merge-{os.getpid()}", 1, 1, "land", 1)  # no task has such a name
    proxying = Proxying(session, tell)
    site = Site(session, lambda: spec, proxying)
    try:
        yield replace(request, gates=enclose_gates(site, request.gates, request.target, sandbox, key))
    finally:
        proxying.end()
        leave_groups(site, key, sandbox, None)
        remove_tree(session.job_path(key).parent)
