"""Starts a session of a settled spec: its directory, its exports, its processes."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from sessionrun.client.lookup import resolve_results_dir
from sessionrun.client.notices import notify
from sessionrun.model.errors import SessionrunError
from sessionrun.model.spec import SessionSpec
from sessionrun.runtime.launch import start_detached
from sessionrun.store import index
from sessionrun.store.creation import create_session, discard_session, show_first, sweep_unbegun
from sessionrun.store.inbox import send_request
from sessionrun.store.processes import JOB_MARKER
from sessionrun.store.session import SessionDir


def launch(
    spec: SessionSpec,
    results_dir: Path | None = None,
    *,
    ready: bool = True,
    held: bool = False,
    indexed: bool = True,
) -> SessionDir:
    """Create the session of `spec` and start it; return once its processes are up.  It outlives this process.

    Args:
        spec: what `plan` or `renew` settled.
        results_dir: where the session's directory is made, else in the results directory in use.
        ready: first ask the agents that can answer whether they are ready.
        held: no task starts until the session is released.
        indexed: it is in the user's index, so that verbs find it from everywhere, and a forecast counts on it.

    Raises:
        InputError: an agent is not signed in or not ready, its machine lacks what it needs, or an export is
            another session's; nothing was created.
        StoreError: the directory cannot be made, or the processes did not come up.
    """
    if spec.parent is not None or JOB_MARKER in os.environ:
        from sessionrun.client.launching.nesting import settle_nesting

        spec = settle_nesting(spec, os.environ)
    session = SessionDir((resolve_results_dir(results_dir) / f"session-{spec.session_id}").absolute())
    from sessionrun.client.launching.readiness import check_machine, check_ready

    if ready:
        check_ready(spec)
    for warning in check_machine(spec):
        notify(warning)
    _tell_limits(spec)
    if spec.exports:
        from sessionrun.runtime.exports.writer import settle_exports

        spec = replace(spec, exports=settle_exports(spec.exports))
    # Until there are processes that can be asked to end, Ctrl+C waits: it would leave a part of a session.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT,))
    try:
        lock_fd, status = _begin(session, spec, held=held)

        def meanwhile() -> None:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            _show_first(session, spec, status)

        if not start_detached(session, lock_fd, meanwhile=meanwhile):
            notify(f"session {spec.session_id} was started, but is slow to come up (see: sessionrun status)")
        if indexed:
            _remember(session)
    except KeyboardInterrupt:  # its id was not printed yet, so it must not run on
        with suppress(SessionrunError, OSError):
            send_request(session, {"kind": "cancel"})
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return session


def mend_exports(spec: SessionSpec) -> None:
    """Bring the exports of a plan without tasks up to date, for no session will do it.

    Raises:
        StoreError: an export cannot be written.
    """
    from sessionrun.runtime.exports.writer import open_exports

    for export in open_exports(spec.exports):
        export.mend()


def _tell_limits(spec: SessionSpec) -> None:
    """Warn that tasks will wait, because another session met a limit of their account; scripts have no account."""
    from sessionrun.store.index import limits_path

    if all(agent.prompt_kind == "script" for agent in spec.agents.values()) or not limits_path().exists():
        return
    from sessionrun.runtime.limits import find_files, load_limit

    now = time.time()
    for path in find_files(spec, os.environ).values():
        limit = load_limit(path, now)
        if limit is not None and limit.until_at > now:
            until = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(limit.until_at))
            why = f"{limit.reason}, met by session {limit.session[:8]}"
            waits = f"its tasks wait (sessionrun explain {spec.session_id[:8]})"
            notify(f"provider {limit.provider} is held until {until}: {why}; {waits}")


def _begin(session: SessionDir, spec: SessionSpec, *, held: bool) -> tuple[int, dict[str, Any] | None]:
    """Make all that is there before the processes, or nothing of it.

    Returns the descriptor of the held lock and, with exports, the first status.
    """
    lock_fd = create_session(session, spec)
    try:
        if held:  # the supervisor takes it before it starts anything
            send_request(session, {"kind": "hold", "reason": "held since its start, until it is released"})
        sweep_unbegun(session.path.parent)
        if not spec.exports:
            return lock_fd, None
        from sessionrun.runtime.exports.export_file import Shown
        from sessionrun.runtime.exports.writer import open_exports

        status = _project_first(spec)
        for export in open_exports(spec.exports):
            export.claim(Shown(session, spec, status))
        return lock_fd, status
    except BaseException:
        discard_session(session)
        os.close(lock_fd)
        raise


def _remember(session: SessionDir) -> None:
    """Note it in the user's index.  It runs already, so that no failure here is one of the start."""
    try:
        index.remember(session.path)
    except Exception as error:
        why = f"{index.index_path()}: {getattr(error, 'strerror', None) or error}"
        elsewhere = f"from other directories use --results-dir {session.path.parent}"
        notify(f"session {session.session_id} was started, but is not in your index ({why}); {elsewhere}")


def _project_first(spec: SessionSpec) -> dict[str, Any]:
    """The status before the first record: all tasks pending.  No rules have anything to say of it yet."""
    from sessionrun.engine.moves import begin
    from sessionrun.engine.status import project

    return project(begin(spec, ()))


def _show_first(session: SessionDir, spec: SessionSpec, status: dict[str, Any] | None) -> None:
    """Show all tasks as pending, unless a supervisor was faster; if that fails, the logs are enough."""
    with suppress(Exception):
        from sessionrun.engine.status import project_summary

        status = status or _project_first(spec)
        show_first(session, status, project_summary(status))
