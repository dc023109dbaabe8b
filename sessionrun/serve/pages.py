"""The pages: all sessions, one session as it goes, one task; with buttons where something may be changed.

A page is whole without its script; that only puts a new `main` in the place of the old one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from sessionrun.client.report.gathering import Matter, Shown
from sessionrun.client.report.markup import Markup, join, table, tag
from sessionrun.client.report.page import find_title, frame, make_overview, section, tell_state, tell_task
from sessionrun.model.wording import tell_span, took_s
from sessionrun.model.words import BAD, tell_counts

SCRIPT: Final = """'use strict';
const main = document.querySelector('main');
const source = new EventSource(main.dataset.events);
let told = null, busy = false, again = false;
async function renew() {
  if (busy) { again = true; return; }
  busy = true;
  try {
    const answer = await fetch(main.dataset.part);
    if (answer.ok) { main.innerHTML = await answer.text(); }
  } catch (error) {} finally { busy = false; }
  if (again) { again = false; renew(); }
}
source.onmessage = (event) => {
  if (told !== null && told !== event.data) { renew(); }
  told = event.data;
};
source.onerror = () => { told = ''; };
"""
"""Fetches what is in `main` again when the server says that it changed."""

_HOME: Final = tag("nav", tag("a", "All sessions", href="/"))
_HEADS: Final = ("Session", "State", "Tasks", "Took", "Agent", "Started")


def make_document(title: str, main: Markup, address: str) -> str:
    """A whole page that is renewed: below its address are `part`, its main part, and `events`, the news of it."""
    root = address.removesuffix("/")
    home = None if address == "/" else _HOME
    content = tag("main", main, data_part=f"{root}/part", data_events=f"{root}/events")
    return frame(title, join([home, content]), tag("script", src="/live.js", defer=""))


def make_notice(words: str, address: str) -> str:
    """A whole page for what could not be done; `address` is that of the page before it."""
    body = join([section("Not done", tag("p", words)), tag("p", tag("a", "Back", href=address))])
    return frame("Not done", join([_HOME, tag("main", body)]))


def make_list(views: Sequence[Mapping[str, Any]], now: float) -> Markup:
    """All sessions, the newest first."""
    rows = [
        (
            tag("a", find_title(view), href=f"/sessions/{view['session_id']}"),
            tell_state(view),
            tell_counts(view["counts"]),
            tell_span(took_s(view, now)),
            view["agent"],
            view["started_at"][:19].replace("T", " ") + " UTC",
        )
        for view in views
    ]
    return join([tag("h1", "Sessions"), table(_HEADS, rows) if rows else tag("p", "None.")])


def make_session(matter: Matter, now: float, *, control: bool) -> Markup:
    """One session."""
    view = matter.view
    address = f"/sessions/{view['session_id']}"
    title, *rest = make_overview(matter, now, link=f"{address}/tasks/")
    actions = list_actions(view, [shown.task for shown in matter.tasks]) if control else []
    buttons = [_button(f"{address}/{action}", word) for action, word in actions]
    report = tag("p", tag("a", "Report with all details", href=f"{address}/report"))
    return join([title, tag("p", *buttons) if buttons else None, *rest, report])


def list_actions(view: Mapping[str, Any], tasks: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """What can be done now with a session: the action, and what its button says."""
    is_open = view["ended_at"] is None
    actions = [("cancel", "Cancel the session"), ("hold", "Hold"), ("release", "Release")] if is_open else []
    if any(task["word"] in (*BAD, "cancelled") for task in tasks):
        actions.append(("retry", "Retry what failed"))
    if any(map(_can_land, tasks)):
        actions.append(("land", "Land what succeeded"))
    return actions


def make_task(shown: Shown, view: Mapping[str, Any], *, control: bool) -> Markup:
    """One task with all details."""
    task = shown.task
    address = f"/sessions/{view['session_id']}"
    actions = [("cancel", "Cancel the task")] if task["outcome"] is None else []
    if task["outcome"] not in (None, "succeeded"):
        actions.append(("retry", "Retry the task"))
    if _can_land(task):
        actions.append(("land", "Land its work"))
    buttons = [_button(f"{address}/tasks/{task['num']}/{action}", word) for action, word in actions if control]
    above = tag("p", tag("a", find_title(view), href=address))
    return join(
        [tag("h1", task["title"]), above, tag("p", *buttons) if buttons else None, tell_task(shown, unfolded=True)]
    )


def _can_land(task: Mapping[str, Any]) -> bool:
    return (
        bool(task["branch"])
        and task["outcome"] == "succeeded"
        and task["word"] not in ("landed", "changed_nothing")
    )


def _button(address: str, word: str) -> Markup:
    return tag("form", tag("button", word), method="post", action=address, style="display: inline")
