"""`run --into ID`: the tasks go to a session that runs, instead of a new one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from sessionrun.cli.control import tell_reply
from sessionrun.cli.render import warn
from sessionrun.client.asking.adding import add, load_open
from sessionrun.client.lookup import open_session
from sessionrun.client.planning.joining import refuse_session_options, settle_addition
from sessionrun.client.planning.sandboxing import check_sandboxes
from sessionrun.model.events import TasksAdded
from sessionrun.model.spec import SessionSpec
from sessionrun.store.session import SessionDir


class Joined(NamedTuple):
    """The session to which tasks are added, and its spec as it is now."""

    session: SessionDir
    spec: SessionSpec

    def settle(self, planned: SessionSpec) -> TasksAdded:
        """What of a plan is added; refused here if it does not fit the session."""
        return settle_addition(planned, self.spec)

    def add(
        self, planned: SessionSpec, addition: TasksAdded, *, as_json: bool, quiet: bool, sync: bool, ready: bool
    ) -> int:
        """Add the tasks and say what became of them; the exit code."""
        from sessionrun.client.launching.readiness import check_environments, check_ready

        if ready:
            check_ready(planned)
        check_environments(planned)
        warning = check_sandboxes(planned)
        if warning is not None:
            warn(warning)
        reply = add(self.session, addition)
        if reply.taken and sync:
            from sessionrun.cli.sync import follow_run

            return follow_run(self.session, as_json=as_json, quiet=quiet)
        return tell_reply(reply, f"{len(reply.tasks)} added", as_json=as_json, quiet=quiet)


def open_joined(results_dir: Path | None, session_id: str, options: Mapping[str, Any]) -> Joined:
    """Find a session to which tasks can be added; `options` are those of `run`.

    Raises:
        InputError: it has ended, or an option holds for a whole session.
    """
    session = open_session(results_dir, session_id)
    joined = Joined(session, load_open(session))
    refuse_session_options(options, joined.spec)
    return joined
