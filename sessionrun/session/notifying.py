"""Tells a user's command or web address what became of a session: once for its end, its first failure, hold and
landing.

`notifications.json` has what was to be told and what became of that; a supervisor that is started anew delivers
what was not.  So nothing is lost if all of ours are killed in between, but the last one may then be told twice.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from subprocess import TimeoutExpired
from typing import Any, Final

import orjson

from sessionrun.model.shown import Counters, NotifiedTask, Verdict
from sessionrun.model.spec import SessionSpec
from sessionrun.model.wording import name_tasks, tell_reason, tell_session, tell_word
from sessionrun.model.words import BAD, format_time, tell_counts
from sessionrun.session.shared import SHELL
from sessionrun.session.worker import Worker, serve
from sessionrun.store.files import open_regular, read_regular, replace_file
from sessionrun.store.programs import run
from sessionrun.store.session import SessionDir

FILE: Final = "notifications.json"
LOG: Final = "notify.log"
"""What the commands print."""

EVENTS: Final = ("failed", "held", "landed", "completed")
TRIES: Final = 3
TIMEOUT_S: Final = 30.0
"""How long a receiver may take."""

WAITS_S: Final = (1.0, 4.0)
"""How long to wait before the second and the third try."""

_KEYS: Final = (*Verdict.__annotations__, *Counters.__annotations__, *("name", "labels", "started_at", "ended_at"))
Status = Mapping[str, Any]


class Notifying:
    """Watches what is shown of a session, and tells the receivers.

    Each receiver has a thread of its own, so that one which is slow or broken holds no other up.
    """

    def __init__(self, session: SessionDir, spec: SessionSpec, say: Callable[[str], None]) -> None:
        self._session, self._receivers, self._cwd, self._say = session, spec.notify, spec.cwd, say
        self._told: dict[str, dict[str, Any]] = _load(session, len(spec.notify))
        self._asked: set[str] = set()
        self._tellers: list[Worker[tuple[str, Status], tuple[str, dict[str, Any]]]] = [
            Worker("notifier", serve(partial(self._tell, receiver))) for receiver in spec.notify
        ]
        self.fds = tuple(teller.fd for teller in self._tellers)
        """When one is readable, there is something to `note`."""

    @property
    def is_busy(self) -> bool:
        """Whether something is still to be told."""
        return any(None in record["deliveries"] for record in self._told.values())

    def show(self, status: Status) -> None:
        """Look at what is shown now, and have told what is new."""
        status = {**status, "tasks": list(status["tasks"])}
        new = [event for event in EVENTS if event not in self._told and find_cause(status, event) is not None]
        for event in new:
            self._told[event] = {"at": format_time(time.time()), "deliveries": [None] * len(self._receivers)}
        if new:
            self._save()  # if we are killed before it is told, another supervisor tells it
        for event in [event for event in self._told if event not in self._asked]:
            for teller, delivery in zip(self._tellers, self._told[event]["deliveries"], strict=True):
                if delivery is None:
                    teller.ask((event, status))
        self._asked |= self._told.keys()

    def note(self) -> None:
        """Write down what became of what was to be told."""
        done = [(place, *news) for place, teller in enumerate(self._tellers) for news in teller.take()]
        for place, event, delivery in done:
            self._told[event]["deliveries"][place] = delivery
            if delivery["error"] is not None:
                self._say(f"the notification {event!r} was not delivered: {delivery['error']}")
        if done:
            self._save()

    # --- the thread of a receiver ---

    def _tell(self, receiver: str, asked: tuple[str, Status]) -> Iterator[tuple[str, dict[str, Any]]]:
        """Tell of an event, several times if need be, and yield what became of it."""
        event, status = asked
        error: str | None = None
        for number in range(1, TRIES + 1):
            try:
                message = make_message(status, event, str(self._session.path.absolute()))
                is_address = receiver.startswith(("http://", "https://"))
                error = (
                    _post(receiver, message) if is_address else _run(receiver, message, self._session, self._cwd)
                )
            except (OSError, ValueError) as fault:  # the second: an address that is none
                error = str(getattr(fault, "strerror", None) or fault)
            except Exception as fault:  # the session has to end all the same
                error = repr(fault)
            if error is None or number == TRIES:
                at = format_time(time.time()) if error is None else None
                yield event, {"delivered_at": at, "tries": number, "error": error}
                return
            time.sleep(WAITS_S[number - 1])

    def _save(self) -> None:
        content = orjson.dumps({"schema_version": 1, "events": self._told})
        try:
            replace_file(self._session.path / FILE, content, durable=True)
        except OSError as error:  # the disk is full, or the session was removed
            self._say(f"cannot write {FILE}: {error.strerror}")


def find_cause(status: Status, event: str) -> Mapping[str, Any] | None:
    """The task because of which an event is to be told, or the session itself; None: it has not happened."""
    if event == "completed":
        return status if status["ended_at"] else None
    tasks = [task for task in status["tasks"] if _IS[event](task)]
    return min(tasks, key=lambda task: task["ended_seq"] or task["num"], default=None)


_IS: Final[Mapping[str, Callable[[Mapping[str, Any]], bool]]] = {
    "failed": lambda task: task["word"] in BAD,
    "held": lambda task: task["status"] != "completed" and task["word"] == "held",
    "landed": lambda task: task["word"] in ("landed", "bounced"),
}


def make_message(status: Status, event: str, results_dir: str) -> dict[str, Any]:
    task = None if event == "completed" else find_cause(status, event)
    if task is None:
        message = f"{tell_session(status)} {status['result'] or status['state']}: {tell_counts(status['counts'])}"
    else:
        message = f"{tell_session(status)}: {task['id']} {tell_word(task['word'])}"
        if reason := tell_reason(task, name_tasks(status), time.time()):
            message += f": {reason}"
    return {
        "schema_version": 1,
        "event": event,
        "message": message,
        **{key: status[key] for key in _KEYS},
        "results_dir": results_dir,
        "task": task and {key: task.get(key) for key in NotifiedTask.__annotations__},
    }


def _post(address: str, message: Mapping[str, Any]) -> str | None:
    """Tell an address; what went wrong, or None."""
    from urllib.error import HTTPError, URLError
    from urllib.request import Request, urlopen

    headers = {"Content-Type": "application/json", "User-Agent": "sessionrun"}
    try:
        with urlopen(Request(address, orjson.dumps(message), headers), timeout=TIMEOUT_S):
            return None
    except HTTPError as error:
        return f"the answer was {error.code}"
    except URLError as error:
        return str(error.reason)


def _run(command: str, message: Mapping[str, Any], session: SessionDir, cwd: str) -> str | None:
    """Tell a command; what went wrong, or None."""
    environ = {
        **os.environ,
        "SESSIONRUN_EVENT": str(message["event"]),
        "SESSIONRUN_SESSION": session.session_id,
        "SESSIONRUN_MESSAGE": str(message["message"]),
    }
    argv, content = (SHELL, "-c", command), orjson.dumps(message)
    with open(session.path / LOG, "ab", buffering=0, opener=open_regular) as log:
        try:
            done = run(argv, environ=environ, limit_s=TIMEOUT_S, cwd=cwd, stdin=content, stdout=log, stderr=log)
        except TimeoutExpired:
            return f"it took longer than {TIMEOUT_S:.0f} s"
    return None if done.returncode == 0 else f"exit code {done.returncode}; see {LOG}"


def _load(session: SessionDir, receivers: int) -> dict[str, dict[str, Any]]:
    """What was told before; nothing if the file is not there or damaged."""
    try:
        events = orjson.loads(read_regular(session.path / FILE))["events"]
        known = {event: record for event, record in events.items() if event in EVENTS}
        lists = [record["deliveries"] for record in known.values()]
        return known if all(type(each) is list and len(each) == receivers for each in lists) else {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
