"""The tests of an instance that should pass before the work: they run behind the commands of a SETUP."""

from __future__ import annotations

import sys
from pathlib import Path

import orjson

from sessionrun.checks.requests import KnownRequest, name_known
from sessionrun.engine.task import TaskState
from sessionrun.model.errors import SessionrunError
from sessionrun.model.spec import Job
from sessionrun.session.shared import Site
from sessionrun.store.files import replace_file
from sessionrun.store.jobfiles import KNOWN, load_record
from sessionrun.walls.enclosing import wish_walls


def ask_baseline(site: Site, state: TaskState, job: Job) -> Job:
    """A SETUP, which is asked to run these tests, if there are any.

    Raises:
        OSError: the session directory cannot be written.
    """
    known = name_known(state.spec)
    if job.key.phase == "setup" and known is not None and known.pass_to_pass:
        request = KnownRequest(known, wish_walls(site, state.spec, job.key, state.place))
        folder = site.session.make_job_path(job.key)
        replace_file(folder / KNOWN, orjson.dumps(request), durable=False)
    return job


def run_first(_: object, folder: Path) -> None:
    """Run these tests before it is committed what the SETUP left.

    If they cannot be run, a line says so, and the setup goes on.
    """
    from sessionrun.checks.running import run_baseline  # what the supervisor does not need

    request = load_record(folder / KNOWN, KnownRequest)
    try:
        run_baseline(request.known, request.walls, folder)
    except (SessionrunError, OSError) as error:
        print(error, file=sys.stderr)
