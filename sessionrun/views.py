"""Views: files in other programs' formats that show a session while it runs, outside of its directory.

A view is a projection of status.json and no session reads its own: it can be written anew at any time, and what
goes wrong with it never harms the session.  The supervisor writes views before status.json, so that whoever finds
the end there finds it in the views too.  A results file says whose it is (`session`): the session that was
launched last with it.  An older one that is resumed leaves it alone.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import orjson

from sessionrun import jobstatus
from sessionrun.errors import InputError, SessionrunError, StoreError
from sessionrun.model import JobKey, SessionSpec, TaskSpec, View
from sessionrun.regular import NotRegular, find_mode, read_regular
from sessionrun.runfile import ENDS, LINKS, find_done, find_others, has_diff, project_runs, read_runs
from sessionrun.status import format_time
from sessionrun.store import AGENT_DIR, SessionDir, replace_file

_PATIENCE_S: Final = 1.0
_LAST_PATIENCE_S: Final = 5.0


class ViewWriter:
    """Writes the views of one session."""

    def __init__(self, session: SessionDir, spec: SessionSpec) -> None:
        self._session = session
        self._spec = spec
        self._views: tuple[View, ...] | None = None
        self._settled: set[tuple[str, int]] = set()
        self._linked: set[Path] = set()
        self._complaint: str | None = None

    def write(self, status: Mapping[str, Any], *, durable: bool) -> str | None:
        """Bring the views up to date; never raises.  What went wrong, if that is something new."""
        if not self._spec.views:
            return None
        complaint = None
        try:
            if self._views is None:
                self._views = tuple(view for view in self._spec.views if is_ours(view, self._session))
                foreign = len(self._spec.views) - len(self._views)
                complaint = "its results file belongs to a later session, and is left alone" if foreign else None
            for view in self._views:
                self._write_view(view, status, durable=durable)
        except Exception as error:  # whatever it is, the session goes on
            complaint = f"a view cannot be written: {error}"
        told, self._complaint = self._complaint, complaint or self._complaint
        return complaint if complaint != told else None

    def _write_view(self, view: View, status: Mapping[str, Any], *, durable: bool) -> None:
        if view.kind == jobstatus.KIND:
            jobstatus.write_jobs(view, status, _now(), self._session.path, patience_s=self._find_patience(status))
            return
        try:
            self._link_outputs(Path(view.settings["outputs_dir"]), status)
        finally:  # the file does not wait for links that cannot be made
            write_runs(view, status, self._session, self._spec, durable=durable)

    def _find_patience(self, status: Mapping[str, Any]) -> float:
        """How long to wait for the lock on a view: a session goes on although somebody never gives that back."""
        if status["ended_at"] is not None:
            return _LAST_PATIENCE_S
        return 0 if self._complaint else _PATIENCE_S

    def _link_outputs(self, outputs: Path, status: Mapping[str, Any]) -> None:
        """All links that can be made; then the first error of those that cannot."""
        problems = []
        for task in status["tasks"]:
            if task["status"] == "pending" or (task["id"], task["attempt"]) in self._settled:
                continue
            try:
                self._link_task(outputs / task["id"], task)
            except OSError as error:
                problems.append(error)
        if problems:
            raise problems[0]

    def _link_task(self, folder: Path, task: Mapping[str, Any]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for name, target in self._targets(task):
            if (folder / name) not in self._linked and target.exists():
                _link(folder / name, target)
                self._linked.add(folder / name)
        if task["status"] == "completed":
            self._settled.add((task["id"], task["attempt"]))
            for key in ("diff_file", "stderr_file"):  # another attempt may have another one
                self._linked.discard(folder / LINKS[key])

    def _targets(self, task: Mapping[str, Any]) -> Iterator[tuple[str, Path]]:
        session, name = self._session, task["id"]
        release = JobKey(name, task["attempt"], 1, "release", 1)
        yield LINKS["stdout_file"], session.output_path(name)
        yield LINKS["stderr_file"], self._find_errors(task)
        yield LINKS["logs_dir"], session.job_path(release).parent / AGENT_DIR / "logs"
        if has_diff(task):
            yield LINKS["diff_file"], session.patch_path(release)

    def _find_errors(self, task: Mapping[str, Any]) -> Path:
        """The agent's standard error, or, where it came to nothing without an agent, that of the setup."""
        path = self._session.error_path(task["id"])
        if task["reason_class"] not in ("setup_failed", "setup_timeout"):
            return path
        setup = JobKey(task["id"], task["attempt"], 1, "setup", 1)
        starts = (self._session.job_path(setup._replace(start=start)) / "stderr" for start in (3, 2, 1))
        return next((found for found in starts if found.exists()), path)


def carry_over(view: View, tasks: Sequence[TaskSpec]) -> tuple[View, set[str]]:
    """The view with the runs that succeeded before, and the ids of the tasks that need not run for it.

    Raises:
        InputError: there is something else than a results file in its place.
    """
    if view.kind == jobstatus.KIND:  # its dialect has left out what has passed
        return view, set()
    found = find_done(load_runs(view), tasks)
    return _keep(view, found), {tasks[place].id for place in found}


def carry_others(view: View, tasks: Sequence[TaskSpec]) -> View:
    """The view with all runs that its file holds but those that these tasks do again.

    Raises:
        InputError: there is something else than a results file in its place.
    """
    if view.kind == jobstatus.KIND:
        return jobstatus.narrow_view(view, {task.id for task in tasks})
    return _keep(view, find_others(load_runs(view), tasks))


def claim_views(session: SessionDir, spec: SessionSpec, status: Mapping[str, Any]) -> None:
    """Make the views those of a session that is about to start, whose locks are held.

    Raises:
        InputError: a session that lives writes one of them, or something else lies in its place.
        StoreError: one cannot be written.
    """
    from sessionrun.workspaces.registration import hold_lock

    for view in spec.views:
        if view.kind == jobstatus.KIND:
            _claim_jobs(view, status, session.path)
            continue
        path = _results_path(view)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _make_outputs(view.settings["outputs_dir"])
            with hold_lock(_lock_path(path), timeout_s=jobstatus.CLAIM_PATIENCE_S):
                owner = _owner(view)
                if owner is not None and owner.path != session.path and owner.is_alive():
                    raise InputError(
                        f"{path} is being written by session {owner.session_id}: wait for it, or name another file"
                    )
                load_runs(view)
                write_runs(view, status, session, spec, durable=True)
        except OSError as error:
            at = error.filename if error.filename == view.settings["outputs_dir"] else path
            raise StoreError(f"cannot write {at}: {error.strerror}") from error


def mend_views(spec: SessionSpec) -> None:
    """Bring up to date the views of sessions that ended, where nothing is left to start: see `load_runs`.

    Raises:
        StoreError: one cannot be written.
    """
    from sessionrun.workspaces.registration import hold_lock

    for view in spec.views:
        if view.kind == jobstatus.KIND:
            continue
        path, owner = _results_path(view), _owner(view)
        try:
            with hold_lock(_lock_path(path), timeout_s=jobstatus.CLAIM_PATIENCE_S):
                document, runs = _load(path), load_runs(view)
                if owner is not None and not owner.is_alive() and document["runs"] != runs:
                    _replace(path, {**document, "runs": runs}, durable=True)
        except OSError as error:
            raise StoreError(f"cannot write {path}: {error.strerror}") from error


def find_behind(session: SessionDir, spec: SessionSpec) -> list[str]:
    """The results files of a session that ended which do not say so: it could not write them."""
    views = [view for view in spec.views if view.kind != jobstatus.KIND and is_ours(view, session)]
    return [str(_results_path(view)) for view in views if not _shows_end(view)]


def _shows_end(view: View) -> bool:
    try:
        document = _load(_results_path(view))
        return document is not None and all(run.get("status") in ENDS for run in read_runs(document, ""))
    except SessionrunError:
        return False


def remark_on_owner(view: View) -> str | None:
    """What to say of a session that was interrupted over the view's file; None: there is none."""
    owner = None if view.kind == jobstatus.KIND else _owner(view)
    if owner is None or owner.is_alive() or not owner.spec_path.exists():
        return None
    summary = owner.load_summary()
    if summary is not None and summary["ended_at"]:
        return None
    told = f"session {owner.session_id}, which wrote {view.settings['results_file']}, was interrupted"
    return f"{told}: what it began is begun anew (to go on with it instead: sessionrun resume {owner.session_id})"


def find_outputs(session: SessionDir) -> list[str]:
    """The directories of outputs whose links lead into a session: with it they lose what they show.

    Raises:
        StoreError: its spec cannot be read.
    """
    spec = session.load_spec()
    folders = [view.settings["outputs_dir"] for view in spec.views if view.kind != jobstatus.KIND]
    return [folder for folder in folders if any(_leads_into(session, folder, task.id) for task in spec.tasks)]


def _leads_into(session: SessionDir, folder: str, task: str) -> bool:
    links = (os.path.join(folder, task, name) for name in LINKS.values())
    inside = f"{session.path.absolute()}/"
    return any(os.path.islink(link) and os.readlink(link).startswith(inside) for link in links)


def _make_outputs(path: str) -> None:
    os.makedirs(path, exist_ok=True)
    if not os.access(path, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)


def _claim_jobs(view: View, status: Mapping[str, Any], session: Path) -> None:
    try:
        jobstatus.write_jobs(view, status, _now(), session, claim=True)
    except OSError as error:
        raise StoreError(f"cannot write {view.settings['path']}: {error.strerror}") from error


def is_ours(view: View, session: SessionDir) -> bool:
    """Whether the view's file is this session's to write: no later one has it."""
    if view.kind == jobstatus.KIND:  # each of its entries says whose it is
        return True
    owner = _owner(view)
    return owner is None or owner.path == session.path


def load_runs(view: View) -> list[dict[str, Any]]:
    """The runs that a view's file holds now; none where there is no file.

    Where a run has not ended, what counts is what its session says: the disk may have been full at the end.

    Raises:
        InputError: there is something else than a results file.
    """
    path = _results_path(view)
    document = _load(path)
    if document is None:
        return []
    runs, owner = read_runs(document, str(path)), _owner(view)
    if owner is None or all(run.get("status") in ENDS for run in runs):
        return runs
    told = _told_by(owner)
    return [run if run.get("status") in ENDS else told.get(run.get("run_id"), run) for run in runs]


def _told_by(owner: SessionDir) -> dict[Any, dict[str, Any]]:
    """The runs of a session by their ids, as its status.json has them."""
    try:
        spec, status = owner.load_spec(), owner.load_status()
    except SessionrunError:
        return {}
    views = [view for view in spec.views if view.kind != jobstatus.KIND] if status else []
    return {run["run_id"]: run for view in views for run in _project(view, status or {}, owner, spec)["runs"]}


def write_runs(
    view: View, status: Mapping[str, Any], session: SessionDir, spec: SessionSpec, *, durable: bool
) -> None:
    """Replace a results file.

    Raises:
        OSError: it cannot be written.
    """
    _replace(_results_path(view), _project(view, status, session, spec), durable=durable)


def _project(view: View, status: Mapping[str, Any], session: SessionDir, spec: SessionSpec) -> dict[str, Any]:
    worktree_dir = spec.repository.worktree_dir if spec.repository else ""
    return project_runs(
        status, view.settings, worktree_dir=worktree_dir, session=str(session.path), now=time.time()
    )


def _replace(path: Path, document: Mapping[str, Any], *, durable: bool) -> None:
    content = orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    replace_file(path, content, durable=durable, mode=find_mode(path))


def _keep(view: View, runs: Mapping[int, Mapping[str, Any]]) -> View:
    return replace(view, settings={**view.settings, "kept": {str(place): run for place, run in runs.items()}})


def _results_path(view: View) -> Path:
    """The file itself, also where a link leads to it: it is replaced, and the link is not."""
    return Path(os.path.realpath(view.settings["results_file"]))


def _lock_path(path: Path) -> Path:
    return path.with_name(f".{path.name}.lock")


def _owner(view: View) -> SessionDir | None:
    """The session that was launched last with the view's file."""
    try:
        document = _load(_results_path(view))
    except SessionrunError:
        return None
    named = document.get("session") if isinstance(document, dict) else None
    return SessionDir(Path(named)) if isinstance(named, str) else None


def _load(path: Path) -> Any:
    try:
        return orjson.loads(read_regular(path))
    except FileNotFoundError:
        return None
    except (NotRegular, orjson.JSONDecodeError) as error:
        why = "is no plain file" if isinstance(error, NotRegular) else "is no JSON"
        raise InputError(f"{path} {why}, so it is no results file: move it away or name another one") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None


def _now() -> str:
    return format_time(time.time()) or ""


def _link(place: Path, target: Path) -> None:
    """A link that leads there, in place of one that led elsewhere; what is no link stays."""
    if place.is_symlink() and os.readlink(place) == str(target):
        return
    if place.exists() and not place.is_symlink():
        return
    beside = place.with_name(f".{place.name}.{os.getpid()}.tmp")
    beside.unlink(missing_ok=True)
    beside.symlink_to(target)
    os.replace(beside, place)
