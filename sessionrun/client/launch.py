"""Starts a session of a settled spec: its directory, its exports, its processes.

A session that a job of another session launches has limits: whose it is, how deep, how dear.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from sessionrun.agents.installed import Question, Use, ask, find_known, find_sign_in, find_unready, is_wrapper
from sessionrun.agents.programs import find_program
from sessionrun.client.graph import walk
from sessionrun.client.lookup import resolve_results_dir
from sessionrun.client.notices import notify
from sessionrun.client.reading.view import load_or_warn, load_summary_view
from sessionrun.house import find_due
from sessionrun.model.errors import InputError, SessionrunError
from sessionrun.model.keys import JobKey
from sessionrun.model.spec import BUDGET_VARIABLE, DEPTH_VARIABLE, MAX_DEPTH, Limits, Parent, SessionSpec
from sessionrun.session.launch import start_detached
from sessionrun.store import index
from sessionrun.store.creation import create_session, discard_session, show_first
from sessionrun.store.processes import JOB_MARKER
from sessionrun.store.requests import send_request
from sessionrun.store.session import SessionDir, iterate_sessions


def launch(
    spec: SessionSpec, results_dir: Path | None = None, *, ready: bool = True, held: bool = False
) -> SessionDir:
    """Create the session of `spec` and start it; return once its processes are up.  It outlives this process.

    With `ready` the agents that can answer are first asked whether they are; with `held` no task starts until the
    session is released.

    Raises:
        InputError: an agent is not signed in or not ready, its machine lacks what it needs, or an export is
            another session's; nothing was created.
        StoreError: the directory cannot be made, or the processes did not come up.
    """
    if spec.parent is not None or JOB_MARKER in os.environ:
        spec = settle_nesting(spec, os.environ)
    session = SessionDir((resolve_results_dir(results_dir) / f"session-{spec.session_id}").absolute())
    check_start(spec, ready=ready)
    _tell_limits(spec)
    if spec.exports:
        from sessionrun.session.exports import settle_exports

        spec = replace(spec, exports=settle_exports(spec.exports))
    # Until there are processes that can be asked to end, Ctrl+C waits: it would leave a part of a session.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT,))
    try:
        lock_fd, status = _begin(session, spec, held=held)

        def meanwhile() -> None:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            with suppress(Exception):  # a supervisor may have been faster; else the logs are enough
                from sessionrun.engine.status import project_summary

                pending = status or _project_first(spec)
                show_first(session, pending, project_summary(pending))

        if not start_detached(session, lock_fd, meanwhile=meanwhile):
            notify(f"session {spec.session_id} was started, but is slow to come up (see: sessionrun status)")
        _remember(session)
    except KeyboardInterrupt:  # its id was not printed yet, so it must not run on
        with suppress(SessionrunError, OSError):
            send_request(session, {"kind": "cancel"})
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return session


def _tell_limits(spec: SessionSpec) -> None:
    """Warn that tasks will wait, because another session met a limit of their account; scripts have no account."""
    is_scripts = all(agent.prompt_kind == "script" for agent in spec.agents.values())
    if is_scripts or not index.limits_path().exists():
        return
    from sessionrun.session.partners import find_files, load_limit

    now = time.time()
    for path in find_files(spec, os.environ).values():
        limit = load_limit(path, now)
        if limit is not None and limit.until_at > now:
            until = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(limit.until_at))
            why = f"{limit.reason}, met by session {limit.session[:8]}"
            waits = f"its tasks wait (sessionrun explain {spec.session_id[:8]})"
            notify(f"provider {limit.provider} is held until {until}: {why}; {waits}")


def _begin(session: SessionDir, spec: SessionSpec, *, held: bool) -> tuple[int, dict[str, Any] | None]:
    """Make all that is there before the processes, or nothing: the held lock and, with exports, the status."""
    lock_fd = create_session(session, spec)
    try:
        if held:  # the supervisor takes it before it starts anything
            send_request(session, {"kind": "hold", "reason": "held since its start, until it is released"})
        if not spec.exports:
            return lock_fd, None
        from sessionrun.session.exports import Shown, open_exports

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


def settle_nesting(spec: SessionSpec, environ: Mapping[str, str]) -> SessionSpec:
    """The spec with its parent, if a job launches it, and with a budget that is not above what that job has."""
    parent = find_parent(environ)
    if parent is None:
        return spec if spec.parent is None else replace(spec, parent=None)
    from sessionrun.input.config import load_config

    most = load_config(Path.cwd(), environ).values.get("max_depth", MAX_DEPTH)
    if parent.depth > most:
        raise InputError(
            f"task {parent.task!r:.140} of session {parent.session_id[:8]} launches a session that would be "
            f"{parent.depth} deep, but max_depth is {most}: let the task work by itself, or set max_depth in "
            "sessionrun.toml"
        )
    return replace(spec, parent=parent, limits=_cap(spec.limits, environ))


def find_parent(environ: Mapping[str, str]) -> Parent | None:
    """The task by whose job this process was started."""
    words = environ.get(JOB_MARKER, "").split("/")
    if len(words) == len(("node", "session", *JobKey._fields)):
        words = words[1:]
    if len(words) < 2 or not all(words[:2]):
        return None
    depth = environ.get(DEPTH_VARIABLE, "")
    return Parent(words[0], words[1], int(depth) if depth.isdecimal() and len(depth) < 10 else 1)


def _cap(limits: Limits, environ: Mapping[str, str]) -> Limits:
    try:
        most = float(environ.get(BUDGET_VARIABLE, ""))
    except ValueError:
        return limits
    if not most > 0 or (limits.budget_usd is not None and limits.budget_usd <= most):
        return limits
    if limits.budget_usd is not None:
        notify(f"the budget is ${most:g}, which is what the task has that launches this session")
    soft = limits.soft_budget_usd
    return replace(limits, budget_usd=most, soft_budget_usd=None if soft is None else min(soft, most))


def find_nested(sessions: Collection[SessionDir], tasks: Collection[str] = ()) -> list[SessionDir]:
    """The sessions that jobs of these, or of these tasks, launched, and those inside, the outer ones first."""
    places = {session.path.parent for session in sessions}
    known = {os.fspath(session.path): session for place in places for session in iterate_sessions(place)}
    known |= {os.fspath(session.path): session for session in index.sessions()}
    outer = [session.session_id for session in sessions]
    inside: dict[str, SessionDir] = {}
    children: dict[str, list[str]] = {}
    for session in known.values():
        view = load_or_warn(session, load_summary_view)
        parent = view and view.get("parent")
        if parent and (not tasks or parent["session_id"] not in outer or parent["task"] in tasks):
            inside[session.session_id] = session
            children.setdefault(parent["session_id"], []).append(session.session_id)
    return [inside[session_id] for session_id in walk(outer, lambda around: children.get(around, []))]


# --- is the machine ready ---

STATUS_TIMEOUT_S: Final = 10.0


def check_ready(spec: SessionSpec) -> None:
    """Refuse an agent that is certainly not signed in, or whose own check says that it is not ready."""
    problems = tell_signed_out(spec)
    if not problems and any(agent.ready for agent in spec.agents.values()):
        models: dict[str, dict[str | None, None]] = {}  # of each agent those that tasks want, in their order
        for choice in (choice for task in spec.tasks for choice in task.choices):
            models.setdefault(choice.agent, {})[choice.model] = None
        for name, why in find_unready(spec.agents.values(), models).items():
            program = find_program(spec.agents[name].argv[0])
            mend = f"; {program.mend}" if program is not None and program.mend else ""
            problems.append(f"agent {name!r} is not ready: {why}{mend}")
    if problems:
        raise InputError(f"{'; '.join(problems)} (--no-ready starts all the same)")


def check_start(spec: SessionSpec, *, ready: bool) -> None:
    """Refuse what this machine cannot give the tasks: uv, walls and, with `ready`, agents that are ready; warn."""
    if ready:
        check_ready(spec)
    tasks = (*spec.tasks, *((spec.template,) if spec.template else ()))
    for check in find_due("start", tasks, spec):
        if (warning := check(spec)) is not None:
            notify(warning)


def tell_signed_out(spec: SessionSpec) -> list[str]:
    """A line for each installed agent that is certainly not signed in; only wrappers are run to find out."""
    problems: dict[str, str] = {}
    uses = dict.fromkeys(
        (choice.agent, task.cwd, () if rank else task.args, choice.model, tuple(task.env.items()))
        for task in spec.tasks
        for rank, choice in enumerate(task.choices)  # only the first gets the arguments
    )
    for name, cwd, args, model, env in uses:
        agent = spec.agents[name]
        about = find_known(agent) if name not in problems and os.path.isabs(agent.argv[0]) else None
        if about is None:
            continue
        environ = {**os.environ, **agent.env, **dict(env)}
        answer, _ = find_sign_in(agent, environ, sys.platform, Use((model,), args, (cwd or spec.cwd,)))
        if answer == "cannot tell" and is_wrapper(agent) and about.status:  # the program itself may say it
            asked = ask({name: Question((agent.argv[0], *about.status), environ)}, timeout_s=STATUS_TIMEOUT_S)
            answer = "no" if any(ended.exit_code == 1 for ended in asked.values()) else answer
        if answer == "no":
            problems[name] = f"agent {name!r} is not signed in: {about.sign_in}"
    return list(problems.values())
