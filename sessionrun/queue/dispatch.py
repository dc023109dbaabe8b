"""What is done before a session starts that takes its tasks from a queue: look after that, fill an empty one.

What has to be there is a line each, with the problems that stop it.
"""

from __future__ import annotations

import json
import os
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from http.client import HTTPException
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

from sessionrun.client.launching.launch import check_ready, tell_signed_out
from sessionrun.client.planning.plan import Planned
from sessionrun.input.plan_fields import WORKERS
from sessionrun.model.asked import FeedSpec
from sessionrun.model.errors import InputError
from sessionrun.model.spec import SLOT, AgentSpec, SessionSpec
from sessionrun.queue.dispatch_config import FILE as CONFIGURATION
from sessionrun.queue.feed import Feed, open_feed
from sessionrun.queue.file import NAME as FILE
from sessionrun.queue.graph import by_id, choose_group
from sessionrun.queue.lists import parse_list
from sessionrun.queue.open import import_list, open_queue, read_text, take_back
from sessionrun.queue.sync import choose_id, choose_next, make_task
from sessionrun.queue.task import QueuePlace, QueueTask, find_place

TIMEOUT_S: Final = 5.0
OLLAMA_URL: Final = "http://localhost:11434"
PARALLEL: Final = "OLLAMA_NUM_PARALLEL"

_PREFIXES: Final = ("ollama/", "ollama_chat/")
_MAX_ANSWER: Final = 4 * 1024 * 1024


class Preflight(NamedTuple):
    """One thing that was looked at.

    Attributes:
        what: the thing, in a word.
        text: what was found, and what to do if that is bad.
        level: ``ok``, ``warning``, or ``error``: nothing can be done without it.
    """

    what: str
    text: str
    level: str = "ok"


def look(agent: AgentSpec, model: str | None, workers: int, environ: Mapping[str, str]) -> Iterator[Preflight]:
    """Yield what is found of an agent and its model."""
    yield Preflight("agent", f"{agent.name} ({agent.argv[0]})")
    name = next((model[len(prefix) :] for prefix in _PREFIXES if model and model.startswith(prefix)), None)
    if name is None and agent.name == "ollama":
        name = model
    if name is None:
        return
    url = find_url(environ)
    try:
        known = _load_models(url)
    except (OSError, ValueError, HTTPException) as error:
        why = getattr(error, "reason", None) or error or type(error).__name__
        yield Preflight("ollama", f"no server answers at {url} ({why}): start it with `ollama serve`", "error")
        return
    yield Preflight("ollama", f"{url} answers")
    if {name.casefold(), f"{name}:latest".casefold()} & known:
        yield Preflight("model", f"{name} is there")
    else:
        yield Preflight("model", f"{name} is not there: fetch it with `ollama pull {name}`", "error")
    yield _look_at_width(workers, environ.get(PARALLEL, ""))


def find_url(environ: Mapping[str, str]) -> str:
    """Where the server of Ollama is, by the variables that aider and Ollama read."""
    url = environ.get("OLLAMA_API_BASE") or environ.get("OLLAMA_HOST") or OLLAMA_URL
    url = url if "://" in url else f"http://{url}"
    scheme, _, rest = url.partition("://")
    rest, _, _ = rest.partition("/")
    host, _, port = rest.rpartition(":") if not rest.endswith("]") else (rest, "", "")
    host, port = (host, port) if port.isdigit() else (rest, "11434")
    host = "localhost" if host in ("", "0.0.0.0", "[::]") else host
    return f"{scheme}://{host}:{port}"


def _load_models(url: str) -> set[str]:
    """The models that a server has; raises OSError, ValueError or HTTPException."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{url}/api/tags", timeout=TIMEOUT_S) as answer:
            record = json.loads(answer.read(_MAX_ANSWER))
    except urllib.error.HTTPError as error:
        raise ValueError(f"it answers with status {error.code}") from None
    if not isinstance(record, dict) or not isinstance(record.get("models"), list):
        raise ValueError("its answer is not a list of models")
    return {str(one.get("name")).casefold() for one in record["models"] if isinstance(one, dict)}


def _look_at_width(workers: int, text: str) -> Preflight:
    if not text.isdigit() or not int(text):
        hint = f"if the server answers fewer than {workers} at once, workers wait (export {PARALLEL}={workers})"
        return Preflight("parallel", f"{PARALLEL} is not set here; {hint}", "warning")
    if int(text) < workers:
        hint = f"set it before `ollama serve`, or give -j {text}"
        return Preflight("parallel", f"{PARALLEL} is {text}, for {workers} workers: {hint}", "warning")
    return Preflight("parallel", f"{PARALLEL} is {text}, for {workers} workers")


LIST: Final = "BEADS_FOR_ANALYSIS.md"
"""The list in the top of a repository from which an empty queue is filled."""


class Prepared(NamedTuple):
    """A fed session that can be started.

    Attributes:
        ready: the tasks of the queue that it can claim at once, the first first.
        left: how many tasks of the queue, of those that it is for, are not closed.
        findings: what was looked at.
    """

    ready: list[QueueTask]
    left: int
    findings: list[Preflight]


def find_configuration() -> Path | None:
    """The configuration in the top of the repository that has the queue, if there is one."""
    path = find_place(Path.cwd()).top / CONFIGURATION
    return path if os.path.lexists(path) else None


def prepare(
    spec: SessionSpec,
    listed: Path | None = None,
    *,
    results_dir: Path | None = None,
    preview: bool = False,
    ready: bool = True,
) -> Prepared:
    """Look after the queue of a session that is to be fed; fill an empty one from the list of the repository.

    Args:
        listed: a list whose tasks come into the queue first.
        preview: nothing will be started: change nothing.
        ready: look whether the agent's model can be asked.

    Raises:
        InputError: it cannot be started as it is asked for; no session was created.
    """
    wanted = spec.feed
    assert wanted is not None
    feed = open_queue(Path(wanted.top), backend=wanted.backend)
    _check_wanted(feed, wanted.chosen)
    back = []
    if wanted.take_back_s and not preview:  # else the tasks of sessions that are gone would not count as ready
        settled = take_back(feed, results_dir, most=wanted.take_back_most)
        back = [Preflight("queue", f"{task.id} is {task.status}: {task.reason}") for task in settled]
    if not (preview or wanted.watch) and _find_list(wanted, feed, listed) is None:
        tasks, left = _choose(wanted, feed)
        if not tasks:
            return Prepared([], left, back)
    findings = _look_at_agent(spec, preview=preview) if ready else []
    problems = [f"{one.what}: {one.text}" for one in findings if one.level == "error"]
    if problems and not preview:
        raise InputError(f"{'; '.join(problems)} (--no-ready starts all the same)")
    with _copy_queue(feed) if preview else nullcontext(feed) as queue:
        drafted = _import(wanted, queue, listed, preview=preview)
        tasks, left = _choose(wanted, queue)
    finding = Preflight("queue", f"{feed.place.name}: {len(tasks)} of {left} open tasks are ready{drafted}")
    return Prepared(tasks, left, [*back, finding, *findings])


def find_follow_ups(spec: SessionSpec) -> list[str]:
    """Say by which commands a user does what the session does not do by itself."""
    short, landing = spec.session_id[:8], spec.landing
    if landing is None:
        return []
    lines = []
    if not landing.mends:
        lines.append(f"a conflict makes no task; its work stays on its branch: sessionrun merge {short}")
    if spec.feed is not None and not spec.feed.lands_again:
        lines.append(f"work that did not land is not tried again by itself: sessionrun retry {short}")
    return lines


def foresee(planned: Planned, prepared: Prepared) -> Planned:
    """The session with the tasks that it begins with, for a preview."""
    spec = planned.spec
    assert spec.template is not None
    taken: set[str] = set()
    tasks = []
    for task in prepared.ready[: spec.resources.get(SLOT)]:
        name = choose_id(task.id, taken)
        taken.add(name.casefold())
        tasks.append(make_task(spec.template, task, name))
    return planned._replace(spec=replace(spec, tasks=tuple(tasks)))


def _look_at_agent(spec: SessionSpec, *, preview: bool) -> list[Preflight]:
    """Look whether it can be asked; refuse one that is not signed in or ready, as `run` does, or only say so."""
    assert spec.template is not None
    agent, first = spec.agents[spec.template.agent], replace(spec, tasks=(spec.template,))
    width, environ = spec.resources.get(SLOT, WORKERS), {**os.environ, **agent.env}
    found = [*look(agent, spec.template.model, width, environ)]
    if preview:
        return [*found, *(Preflight("agent", line, "warning") for line in tell_signed_out(first))]
    check_ready(first)
    return found


def _import(wanted: FeedSpec, feed: Feed, listed: Path | None, *, preview: bool) -> str:
    """Fill the queue from a list; what to say of that."""
    path = _find_list(wanted, feed, listed)
    if path is None:
        return ""
    if preview and feed.name != FILE:
        return f"; {len(parse_list(read_text(path)))} in {path} would be imported"
    added, present = import_list(feed, path, group=wanted.group)
    done = "would be" if preview else "were"
    return f"; {len(added)} {done} imported from {path}" + (f", {len(present)} were known" if present else "")


@contextmanager
def _copy_queue(feed: Feed) -> Iterator[Feed]:
    """A copy of the queue, to try an import with; a queue of another program is given as it is."""
    if feed.name != FILE:
        yield feed
        return
    with TemporaryDirectory(prefix="sessionrun-") as name:
        place = QueuePlace(Path(name), Path(name, "lock"))
        with suppress(FileNotFoundError):
            shutil.copyfile(feed.place, place.top / feed.place.name)
        yield open_feed(place, FILE)


def _find_list(wanted: FeedSpec, feed: Feed, listed: Path | None) -> str | None:
    """The list to import: the one that is named, or else the repository's own if the queue is empty."""
    known = Path(wanted.top) / LIST
    if listed is None and (not known.is_file() or feed.load()):
        return None
    return str(listed or known)


def _choose(wanted: FeedSpec, feed: Feed) -> tuple[list[QueueTask], int]:
    """The tasks that can be claimed, of those that are asked for, and how many of these are open."""
    tasks = by_id(feed.load())
    among = [*tasks.values()] if wanted.group is None else choose_group(tasks, wanted.group)
    chosen = frozenset(wanted.chosen)
    left = [
        task
        for task in among
        if task.status != "closed" and not task.is_group and (not chosen or task.id in chosen)
    ]
    return [*choose_next(tasks, {}, wanted, retries=0)], len(left)


def _check_wanted(feed: Feed, wanted: tuple[str, ...]) -> None:
    """Refuse ids of tasks that no worker would get.

    Raises:
        InputError: the first of them, and why.
    """
    tasks = by_id(feed.load()) if wanted else {}
    for task_id in wanted:
        if task_id not in tasks:
            raise InputError(f"the queue has no task {task_id!r}; `sessionrun queue list` shows its tasks")
        if (why := _find_obstacle(tasks[task_id], frozenset(wanted))) is not None:
            raise InputError(f"task {task_id} {why}")


def _find_obstacle(task: QueueTask, wanted: frozenset[str]) -> str | None:
    """Why a task would not be worked on; None: it is ready, claimed by a session, or waits for others of `wanted`.

    A claim may be of a session that is gone.
    """
    if task.status == "closed":
        return f"is closed; open it again first (sessionrun queue reopen {task.id})"
    if task.is_group:
        return f"is a group; name the group instead (sessionrun queue work --group {task.id})"
    if task.status == "deferred":
        return f"is {task.backend_status}"
    waits_for = [one for one in task.blocked_by if one not in wanted]
    return f"waits for {', '.join(waits_for)}; close that first, or name it, too" if waits_for else None
