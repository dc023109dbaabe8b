"""`serve`: who may ask, what the pages show and change, and that looking costs a session nothing."""

from __future__ import annotations

import asyncio
import hmac
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import uvicorn
from browser import Browser
from conftest import Command, eventually
from stages import make_repository_of
from test_report import HOSTILE, Reader, check_looks

from sessionrun import doors
from sessionrun.doors.server import Desk, Guard, Watch
from sessionrun.store.session import SessionDir

HOST = "127.0.0.1:8000"
TOKEN = "the-token"
BEARER = {"authorization": f"Bearer {TOKEN}"}


class Answer(NamedTuple):
    """Code, headers and body."""

    code: int
    headers: Mapping[str, str]
    body: str


def ask(
    app: Any,
    path: str,
    headers: Mapping[str, str] | None = None,
    *,
    method: str = "GET",
    body: bytes = b"",
    host: str = HOST,
    enough: Callable[[str], bool] = lambda body: False,
) -> Answer:
    """One request; with `enough` the asker leaves once the body is that."""
    path, _, query = path.partition("?")
    given = {"host": host, **(headers or {})}
    scope: dict[str, Any] = {"type": "http", "method": method, "path": path, "query_string": query.encode()}
    scope["headers"] = [(name.lower().encode(), value.encode("latin-1")) for name, value in given.items()]
    asked = iter([{"type": "http.request", "body": body}])
    told: list[dict[str, Any]] = []

    def read() -> str:
        return b"".join(message.get("body", b"") for message in told).decode()

    async def run() -> None:
        left = asyncio.Event()

        async def receive() -> dict[str, Any]:
            if message := next(asked, None):
                return message
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            told.append(message)
            if enough(read()):
                left.set()

        await asyncio.wait_for(app(scope, receive, send), 60)

    asyncio.run(run())
    start = next(message for message in told if message["type"] == "http.response.start")
    named = {name.decode(): value.decode() for name, value in start["headers"]}
    return Answer(start["status"], named, read())


VALUE = hmac.new(TOKEN.encode(), b"cookie of port 8000", "sha256").hexdigest()
COOKIE = {"cookie": f"other=1; sessionrun-8000={VALUE}"}
HERE = {"origin": f"http://{HOST}"}


def guarded(app: Any, *, control: bool = True) -> Guard:
    return Guard(app, TOKEN, [HOST, "localhost:8000"], control=control)


async def let_through(scope: Any, receive: Any, send: Any) -> None:
    """An application that answers "in"."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"in"})


# --- who may ask ---


@pytest.mark.parametrize(
    ("method", "headers", "host", "code"),
    [
        ("GET", {}, HOST, 401),
        ("GET", COOKIE, HOST, 200),
        ("GET", BEARER, HOST, 200),
        ("GET", BEARER, "localhost:8000", 200),
        ("GET", BEARER, "LOCALHOST:8000", 200),
        ("GET", BEARER, "127.0.0.1:8001", 421),
        ("GET", BEARER, "evil.example:8000", 421),
        ("GET", BEARER, "", 421),
        ("GET", COOKIE | HERE, HOST, 200),
        ("GET", COOKIE | {"origin": "http://evil.example"}, HOST, 403),
        ("GET", COOKIE | {"origin": "null"}, HOST, 403),
        ("GET", COOKIE | {"origin": f"https://{HOST}"}, HOST, 403),
        # what a browser sends to a server at another port opens nothing else
        ("GET", {"cookie": f"sessionrun-8001={VALUE}"}, HOST, 401),
        ("GET", {"cookie": f"sessionrun-8000={TOKEN}"}, HOST, 401),
        ("GET", {"authorization": f"Bearer {VALUE}"}, HOST, 401),
        ("POST", {"authorization": f"Bearer {VALUE}"}, HOST, 401),
        ("GET", {"cookie": "sessionrun-8000=\xe4; ;=;"}, HOST, 401),
        ("GET", {"authorization": f"Bearer {TOKEN}x"}, HOST, 401),
        ("GET", {"authorization": "Bearer "}, HOST, 401),
        ("POST", COOKIE | HERE, HOST, 200),
        ("POST", COOKIE, HOST, 403),
        ("POST", BEARER, HOST, 200),
        ("POST", COOKIE | {"origin": "http://localhost:9000"}, HOST, 403),
        ("POST", HERE, HOST, 401),
    ],
)
def test_only_one_who_has_the_token_may_ask(method: str, headers: dict[str, str], host: str, code: int) -> None:
    answer = ask(guarded(let_through), "/x", headers, method=method, host=host)
    assert answer.code == code, answer.body
    assert (answer.body == "in") == (code == 200)
    assert answer.headers["cache-control"] == "no-store" and "frame-ancestors 'none'" in str(answer.headers)


def test_a_server_that_only_shows_changes_nothing() -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
        answer = ask(guarded(let_through, control=False), "/x", COOKIE | HERE, method=method)
        assert (answer.code, "--control" in answer.body) == (403, True), method


def test_a_token_in_the_address_becomes_a_cookie() -> None:
    answer = ask(guarded(let_through), f"/a b?token={TOKEN}&x=1&y=")
    assert (answer.code, answer.headers["location"]) == (303, "/a%20b?x=1&y=")
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith(f"sessionrun-8000={VALUE};") and "HttpOnly" in cookie and "SameSite=strict" in cookie
    for wrong in ("", "x", "%ff", f"{TOKEN}%00", VALUE):
        assert ask(guarded(let_through), f"/?token={wrong}", COOKIE).code == 401


# --- what the pages show and change ---


@pytest.fixture
def desk(sessionrun: Command) -> Any:
    """The application of a server that may change sessions, without its guard."""
    return Desk(sessionrun.results.absolute(), control=True).make_app()


def test_all_pages_of_a_session(sessionrun: Command, desk: Any) -> None:
    assert "None." in ask(desk, "/").body
    bad = {"id": "bad", "title": HOSTILE, "prompt": "echo half; exit 7"}
    red = {"id": "red", "prompt": "true", "check": "seq 99; false"}
    late = {"id": "late", "prompt": "true", "needs": ["bad"]}
    session_id = sessionrun.finished({"prompts": ["true", bad, red, late]}, "--name", HOSTILE)
    address = f"/sessions/{session_id}"
    pages: dict[str, Answer] = {
        path: ask(desk, path)
        for path in ("/", "/part", address, f"{address}/part", f"{address}/tasks/2", f"{address}/report")
    }
    for path, answer in pages.items():
        assert answer.code == 200 and answer.headers["content-type"].startswith("text/html"), path
        reader = Reader(answer.body)
        scripts = [attributes for name, attributes in reader.elements if name == "script"]
        assert len(scripts) <= 2 and all(set(one) <= {"src", "defer"} for one in scripts), path
        assert not [key for _, attributes in reader.elements for key in attributes if key.startswith("on")], path
        assert HOSTILE[:20] in "".join(reader.texts), path
    assert f'href="{address}"' in pages["/"].body
    assert f'action="{address}/retry"' in pages[address].body and "/cancel" not in pages[address].body
    assert f'href="{address}/tasks/2"' in pages[address].body
    assert "half" in pages[f"{address}/tasks/2"].body and "half" in pages[address].body
    assert f'action="{address}/tasks/2/retry"' in pages[f"{address}/tasks/2"].body
    never = ask(desk, f"{address}/tasks/4").body
    assert "tasks/4/continue" not in never and 'disabled="">Ask more</button>' in never, "it has not begun"
    assert f'action="{address}/tasks/2/continue"' in pages[f"{address}/tasks/2"].body
    checked = ask(desk, f"{address}/tasks/3").body
    assert "\n50\n" in checked and "Check, last lines" not in checked and "\n50\n" not in pages[address].body
    assert 'type="search"' in pages["/"].body and "Last event" not in pages[address].body
    assert "EventSource" in ask(desk, "/live.js").body
    shown = ask(Desk(sessionrun.results.absolute(), control=False).make_app(), address).body
    assert "<form" not in shown and "<button" not in shown


def test_what_is_not_there(sessionrun: Command, desk: Any) -> None:
    session_id = sessionrun.finished({"prompts": ["true"]})
    (sessionrun.results / "notes").mkdir()
    odd = ("nosuch", "..", "%2e%2e", "../notes", "x\0y", "\udcff", "\ufffd", "a" * 300, "a" * 70_000)
    nums = ("-1", "1.0", "\u0661", "9" * 5000, "a" * 300)
    for path in (*odd, f"{session_id}/nothing", *(f"{session_id}/tasks/{num}" for num in nums)):
        for more in ("", "/part", "/events"):
            assert ask(desk, f"/sessions/{path}{more}").code in (404, 405), path[:80]
        assert ask(desk, f"/sessions/{path}/cancel", method="POST").code == 404, path[:80]
    assert ask(desk, f"/sessions/{session_id}/tasks/2").code == 404
    assert ask(desk, f"/sessions/{session_id}/explode", method="POST").code == 404
    assert ask(desk, f"/sessions/{session_id}/cancel").code == 405
    (sessionrun.directory(session_id) / "spec.json").write_text("{")
    answer = ask(desk, f"/sessions/{session_id}")
    assert answer.code == 500 and answer.body.startswith("sessionrun: ") and answer.body.count("\n") == 1


def test_buttons_do_what_verbs_do(sessionrun: Command, desk: Any) -> None:
    session_id = sessionrun.start({"prompts": ["sleep 600", "true", {"id": "c", "prompt": "sleep 600"}]})
    sessionrun.until(session_id, lambda view: view["completed"] == 1 and view["running"] == 2)
    address = f"/sessions/{session_id}"
    answer = ask(desk, f"{address}/tasks/3/cancel", method="POST")
    assert (answer.code, answer.headers["location"]) == (303, f"{address}/tasks/3")
    assert [task["outcome"] for task in sessionrun.status(session_id)["tasks"]] == [None, "succeeded", "cancelled"]
    for action in ("hold", "release", "cancel"):
        assert ask(desk, f"{address}/{action}", method="POST").code == 303, action
    assert sessionrun.status(session_id)["status"] == "cancelled"
    refused = ask(desk, f"{address}/land", method="POST")
    assert refused.code == 409 and "no worktrees" in refused.body and f'href="{address}"' in refused.body
    fine = sessionrun.finished({"prompts": [{"id": name, "prompt": "true"} for name in ("2", "1")]})
    nothing = ask(desk, f"/sessions/{fine}/retry", method="POST")
    assert nothing.code == 409 and "nothing to try again" in nothing.body
    assert ask(desk, f"/sessions/{fine}/continue", method="POST", body=b"text=true").code == 404, "of a task alone"
    empty = ask(desk, f"/sessions/{fine}/tasks/1/continue", method="POST")
    assert empty.code == 409 and "follow-up is empty" in empty.body
    long = ask(desk, f"/sessions/{fine}/tasks/1/continue", method="POST", body=b"text=" + b"%41" * (1 << 21))
    assert long.code == 409 and "too long" in long.body
    more = b"text=echo+more+%26%0D%0Aecho+lines"
    assert ask(desk, f"/sessions/{fine}/tasks/1/continue", method="POST", body=more).code == 303
    sessionrun.until(fine, lambda view: view["completed"] == 2 and view["tasks"][0]["attempt"] == 2)
    assert [task["follow_ups"] for task in sessionrun.status(fine)["tasks"]] == [1, 0], "by number, not by id"
    prompts = [path.read_text() for path in sessionrun.results.glob(f"session-{fine}/jobs/*/a2-*/prompt")]
    assert [prompt.strip() for prompt in prompts] == ["echo more &\necho lines"]


def wait_for_news(desk: Any, path: str, between: Callable[[], object]) -> None:
    """A stream of events tells two things; after the first of them something happens."""
    happened: list[object] = []

    def look(body: str) -> bool:
        if "data: " in body and not happened:
            happened.append(between())
        return body.count("data: ") >= 2

    answer = ask(desk, path, enough=look)
    assert answer.headers["content-type"].startswith("text/event-stream"), path


def test_news_come_as_events(sessionrun: Command, desk: Any) -> None:
    wait = "while [ ! -e go ]; do sleep 0.05; done; echo ha''lf; while [ ! -e end ]; do sleep 0.05; done"
    session_id = sessionrun.start({"prompts": [wait]})
    sessionrun.until(session_id, lambda view: view["running"] == 1)
    address = f"/sessions/{session_id}"
    assert "half" not in ask(desk, f"{address}/tasks/1/part").body
    assert re.search(r'Last event <time datetime="[^"]+" class="ago">\d', ask(desk, f"{address}/part").body)
    wait_for_news(desk, f"{address}/tasks/1/events", (sessionrun.cwd / "go").touch)
    eventually(lambda: "half</pre>" in ask(desk, f"{address}/tasks/1/part").body.replace("\n</pre>", "</pre>"))
    wait_for_news(desk, f"{address}/events", (sessionrun.cwd / "end").touch)
    sessionrun.wait(session_id)
    assert "1 succeeded" in ask(desk, f"{address}/part").body
    wait_for_news(desk, "/events", lambda: sessionrun.start({"prompts": ["true"]}))
    assert ask(desk, "/part").body.count('<tr id="s-') == 2


def test_many_who_look_cost_as_much_as_one() -> None:
    looks = []

    def look(name: str) -> int:
        looks.append(name)
        return 7

    watch = Watch(look)
    assert [watch.version("a") for _ in range(20)] == [1] * 20
    assert looks == ["a"]


# --- the verb ---


def test_a_server_of_its_own(sessionrun: Command) -> None:
    session_id = sessionrun.finished({"prompts": ["true"]})
    process = sessionrun.popen("serve", "--control", stdout=subprocess.PIPE, text=True)
    try:
        port, token = process.stdout.readline().strip().removeprefix("http://127.0.0.1:").split("/?token=")
        connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=60)
        let_in = {"Authorization": f"Bearer {token}"}
        for path, headers, code in (
            ("/", {}, 401),
            ("/", let_in, 200),
            ("/", {**let_in, "Host": "evil.example"}, 421),
            (f"/sessions/{session_id}", let_in, 200),
        ):
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            body = answer.read().decode()
            assert (answer.status, session_id[:8] in body) == (code, code == 200), body
        connection.request("GET", f"/sessions/{session_id}/events", headers=let_in)
        assert connection.getresponse().readline() == b"data: 1\n"
        process.send_signal(signal.SIGINT)  # the stream is left open: the server ends all the same
        assert process.wait(60) is not None
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_port_that_is_taken(sessionrun: Command) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = sessionrun("serve", "--port", port)
    assert done.returncode == 2
    assert done.stdout == "" and done.stderr.count("\n") == 1 and port in done.stderr, done.stderr


@pytest.mark.parametrize(("verb", "library"), [("serve", "uvicorn"), ("mcp", "mcp")])
def test_without_its_library_a_verb_says_what_to_install(tmp_path: Path, verb: str, library: str) -> None:
    (tmp_path / f"{library}.py").write_text(f"raise ModuleNotFoundError('No module', name='{library}')")
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    argv = [sys.executable, "-m", "sessionrun", verb]
    done = subprocess.run(argv, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith(f"sessionrun: error: {verb}: {library} is not installed; ")
    assert re.search(rf" pip install .*'sessionrun\[{verb}\]'\n$", done.stderr), "test_installing has all the ways"


class Hosted:
    """A server in a thread, at one port and with one token however often it begins anew."""

    def __init__(self, results: Path) -> None:
        self._results = results
        self._port = 0
        self.start()

    def start(self) -> None:
        listener = socket.create_server(("127.0.0.1", self._port))
        self._port = listener.getsockname()[1]
        self._desk = Desk(self._results, control=True)
        app = Guard(self._desk.make_app(), TOKEN, [f"127.0.0.1:{self._port}"], control=True)
        config = uvicorn.Config(app, lifespan="off", log_level="error", timeout_graceful_shutdown=5)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [listener]})
        self._thread.start()

    def stop(self) -> None:
        """Cut all connections, and answer no more."""
        self._desk.close()
        self._server.should_exit = True
        self._thread.join()

    def at(self, path: str) -> str:
        return f"http://127.0.0.1:{self._port}{path}?token={TOKEN}"


@pytest.fixture
def hosted(sessionrun: Command) -> Iterator[Hosted]:
    """A server that can be stopped and started."""
    server = Hosted(sessionrun.results.absolute())
    yield server
    server.stop()


def wait_for(file: str) -> str:
    """A prompt that ends well once a file is there."""
    return f"while [ ! -e {file} ]; do sleep 0.05; done"


ACTIVE = "document.activeElement.innerText || document.activeElement.type || document.activeElement.localName"


@pytest.mark.slow
def test_each_page_can_be_read_and_keys_reach_all_there_is_in_its_order(
    sessionrun: Command, hosted: Hosted, browser: Browser
) -> None:
    """Nothing that cannot be used takes the focus, what has it can be seen; a dialog opens and closes by keys."""
    prompts = [f"echo begun; {wait_for('go')}", "echo why >&2; exit 3", {"id": "z", "prompt": wait_for("go")}]
    session_id = sessionrun.start({"prompts": prompts}, "--name", "n" * 100)
    sessionrun.until(session_id, lambda view: view["running"] == 2 and view["failed"] == 1)
    for path in ("/", f"/sessions/{session_id}/tasks/2", f"/sessions/{session_id}"):
        browser.open(hosted.at(path))
        is_there = f"location.pathname === '{path}' && document.querySelector('#live')?.innerText"
        eventually(partial(browser.evaluate, f"({is_there}) === 'live'"))
        check_looks(browser)
        browser.evaluate("document.querySelector('#ask-cancel')?.showPopover()")
        check_looks(browser)
    browser.open(hosted.at(f"/sessions/{session_id}"))
    eventually(lambda: "live" in str(browser.evaluate("document.querySelector('#live')?.innerText")))
    expected = browser.evaluate("""
        [...document.querySelectorAll('a, button, input, summary, [tabindex]')]
          .filter((one) => !one.disabled && one.checkVisibility() && (one.type !== 'radio' || one.checked))
          .map((one) => one.innerText || one.type || one.localName)""")
    seen, rings = [], []
    for _ in expected:
        browser.key("Tab")
        seen.append(browser.evaluate(ACTIVE))
        rings.append(
            browser.evaluate("""(() => { const one = document.activeElement;
              return getComputedStyle(one.type === 'radio' ? one.nextSibling : one).outlineStyle; })()""")
        )
    assert seen == expected and seen[:2] == ["To the content", "All sessions"] and set(rings) == {"solid"}
    assert [word for word in seen if word in ("Hold", "Release", "Cancel the session")] == ["Cancel the session"]
    browser.evaluate("document.querySelector('.actions > .danger').focus()")
    browser.key("Enter")
    assert browser.evaluate(ACTIVE) == "Not now"
    browser.key("Escape")
    assert browser.evaluate("document.querySelector('#ask-cancel').matches(':popover-open')") is False
    assert browser.evaluate(ACTIVE) == "Cancel the session"
    (sessionrun.cwd / "go").touch()
    sessionrun.wait(session_id)


@pytest.mark.slow
def test_focus_selection_and_order_stay_while_rows_change(
    sessionrun: Command, hosted: Hosted, browser: Browser
) -> None:
    prompts = [{"id": name, "prompt": f"{wait_for(name)}; [ {name} != b ]"} for name in ("a", "b", "c")]
    session_id = sessionrun.start({"prompts": prompts}, "--name", "first")
    sessionrun.until(session_id, lambda view: view["running"] == 3)
    browser.open(hosted.at(f"/sessions/{session_id}"))
    eventually(lambda: browser.text().count("3 running") == 1 and "Timeline" in browser.text())
    browser.evaluate("window.same = true; const heads = document.querySelectorAll('.tasks th button');")
    browser.evaluate("heads[0].click(); heads[0].click()")  # the last one first
    browser.evaluate("document.querySelector('#r1 a').focus({preventScroll: true})")
    browser.evaluate("getSelection().selectAllChildren(document.querySelector('#r3 a'))")
    state = """[window.same, document.activeElement.innerText, document.activeElement.isConnected,
      `${getSelection()}`,
      [...document.querySelectorAll('.tasks tbody tr')].map((row) => row.cells[0].textContent).join('')].join()"""
    assert browser.evaluate(state) == "true,a,true,c,321"
    (sessionrun.cwd / "a").touch()
    eventually(lambda: "1 succeeded, 2 running" in browser.text())
    assert browser.evaluate(state) == "true,a,true,c,321"
    (sessionrun.cwd / "b").touch()
    eventually(
        lambda: "1 succeeded, 1 failed, 1 running" in browser.text() and "What went wrong" in browser.text()
    )
    assert browser.evaluate(state) == "true,a,true,c,321"
    (sessionrun.cwd / "c").touch()
    sessionrun.wait(session_id)
    # of all sessions: the row of one that begins to need somebody moves, and its link has the focus still
    quiet = sessionrun.start({"prompts": [wait_for("later")]}, "--name", "quiet")
    other = sessionrun.start({"prompts": [f"{wait_for('go')}; exit 3"]}, "--name", "other")
    for one in (quiet, other):
        sessionrun.until(one, lambda view: view["running"] == 1)
    browser.open(hosted.at("/"))
    eventually(lambda: "Need you: 1" in browser.text() and "Running: 2" in browser.text())
    browser.evaluate(f"window.same = true; document.querySelector('#s-{other} a').focus()")
    browser.evaluate(f"getSelection().selectAllChildren(document.querySelector('#s-{quiet} a'))")
    (sessionrun.cwd / "go").touch()
    eventually(lambda: "2 of 3 sessions need you" in browser.text() and "Running: 1" in browser.text())
    rows = "[...document.querySelectorAll('tbody')].map((one) => one.innerText.match(/first|quiet|other/g).join())"
    assert browser.evaluate(rows) == ["other,first", "quiet"]
    kept = "[window.same, document.activeElement.innerText, `${getSelection()}`].join()"
    assert browser.evaluate(kept) == "true,other,quiet"
    (sessionrun.cwd / "later").touch()
    sessionrun.wait(quiet)


@pytest.mark.slow
def test_a_page_is_behind_its_connection_lost_and_its_session_removed(
    sessionrun: Command, hosted: Hosted, browser: Browser
) -> None:
    session_id = sessionrun.start({"prompts": [wait_for("go")]})
    sessionrun.until(session_id, lambda view: view["running"] == 1)
    browser.open(hosted.at(f"/sessions/{session_id}"))

    def says(words: str) -> bool:
        return words in str(browser.evaluate("document.querySelector('#live')?.innerText"))

    eventually(lambda: says("live") and "1 running" in browser.text())
    # a page that is older than what its first event tells
    browser.evaluate("source.close(); document.querySelector('#r1').remove()")
    browser.evaluate(f"{{ {Path(doors.__file__).with_name('live.js').read_text()} }}")
    eventually(lambda: browser.evaluate("document.querySelector('#r1') !== null"))
    browser.evaluate("window.same = true")
    hosted.stop()
    eventually(lambda: says("No connection: trying again."))
    (sessionrun.cwd / "go").touch()
    sessionrun.wait(session_id)
    assert "1 running" in browser.text(), "it cannot know"
    hosted.start()
    eventually(lambda: says("live") and "1 succeeded" in browser.text())
    session = SessionDir(sessionrun.directory(session_id))
    eventually(lambda: not session.is_alive())
    assert sessionrun("clean", session_id).returncode == 0
    eventually(lambda: says("This session was removed"))
    assert "1 succeeded" in browser.text() and browser.evaluate("window.same") is True


@pytest.mark.slow
def test_a_real_browser(sessionrun: Command, hosted: Hosted, tmp_path: Path, browser: Browser) -> None:
    """It sees a task end without loading the page anew, cancels the rest of the session, and lands the work."""
    make_repository_of(sessionrun.cwd, {})
    go = tmp_path / "go"
    browser.open(hosted.at("/"))
    eventually(lambda: "None." in browser.text())
    wait = f"while [ ! -e {go} ]; do sleep 0.05; done; echo new > new.txt"
    plan = {"prompts": [{"id": "a", "title": HOSTILE, "prompt": wait}, {"id": "b", "prompt": "sleep 600"}]}
    session_id = sessionrun.start(plan, "--worktree", "--name", "live")
    eventually(lambda: "2 running" in browser.text())
    field = "document.querySelector('input[type=search]')"
    for word, seen in (("other", False), ("LIVE", True)):
        browser.evaluate(f"{field}.value = '{word}'; {field}.dispatchEvent(new Event('input', {{bubbles: true}}))")
        assert ("2 running" in browser.text()) is seen
    assert browser.press("live")
    eventually(lambda: " s ago" in browser.text())
    eventually(lambda: browser.text().count("2 running") == 1 and "Timeline" in browser.text())
    browser.evaluate(f"window.same = true; {field}.value = 'a'")
    go.touch()
    eventually(lambda: "1 succeeded, 1 running" in browser.text())
    kept = browser.evaluate(f"[window.same, {field}.value].join()")
    assert kept == "true,a", "the page was loaded anew, or lost what a person did"
    senseless = browser.evaluate("[...document.querySelectorAll('button:disabled')].map((one) => one.innerText)")
    assert "Release" in senseless and "Cancel the session" not in senseless
    assert browser.press("Cancel the session")
    asked = browser.evaluate("document.querySelector('#ask-cancel').innerText")
    assert "1 task that runs is stopped" in str(asked) and "sessionrun cancel live" in str(asked)
    assert browser.evaluate("document.activeElement.innerText") == "Not now"
    assert sessionrun.status(session_id)["status"] == "running", "it was not asked"
    browser.evaluate("document.querySelector('#ask-cancel button:not([popovertarget])').click()")
    eventually(lambda: "1 succeeded, 1 cancelled" in browser.text())
    assert sessionrun.status(session_id)["status"] == "cancelled"
    browser.evaluate("document.querySelector('#ask-land button:not([popovertarget])').click()")
    eventually(lambda: "1 landed, 1 cancelled" in browser.text())
    shown = subprocess.run(["git", "show", "main:new.txt"], cwd=sessionrun.cwd, capture_output=True, text=True)
    assert shown.stdout == "new\n"
    assert browser.press("a")
    eventually(lambda: "echo new > new.txt" in browser.text())
    assert browser.evaluate("document.title") == HOSTILE, "nothing of it ran"
    assert "token" not in json.dumps(browser.evaluate("location.href"))
    assert browser.evaluate("violations") == []
    origin = hosted.at("").partition("?")[0]
    assert {address for address in browser.asked if not address.startswith(f"{origin}/")} <= {"about:blank"}
