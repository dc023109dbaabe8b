"""The proxy of tasks inside of walls: which hosts a list lets through, and that nothing else is reached."""

from __future__ import annotations

import hashlib
import http.server
import json
import os
import random
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import psutil
import pytest
from conftest import IGNORING, eventually
from test_cli_worktrees import Project, project_in
from walled import need_walls

from sessionrun.agents.programs import PROGRAMS
from sessionrun.model.keys import JobKey
from sessionrun.store.jobfiles import DENIED, DOOR, LIST, NETWORK, SOCKET, read_denials
from sessionrun.store.session import SessionDir
from sessionrun.walls.build import PROXY
from sessionrun.walls.programs import list_rules
from sessionrun.walls.proxy.request import (
    BadRequest,
    Rule,
    find_refusal,
    find_wrong_address,
    make_rule,
    normalize,
    parse_head,
    split_authority,
)
from sessionrun.walls.proxy.upstream import Unreachable, find_parent, keep_environment

PIECE = random.Random(17).randbytes(1 << 20)
KEY = JobKey("t", 1, 1, "work", 1)

# --- names ---


@pytest.mark.parametrize(
    ("listed", "asked", "port", "passes"),
    [
        ("example.org", "example.org", 443, True),
        ("example.org", "EXAMPLE.org.", 443, True),
        ("Example.ORG", "example.org", 8080, True),
        ("example.org", "www.example.org", 443, False),
        ("example.org", "notexample.org", 443, False),
        ("example.org", "example.org.evil.net", 443, False),
        ("*.example.org", "www.example.org", 443, True),
        ("*.example.org", "a.b.example.org", 443, True),
        ("*.example.org", "example.org", 443, False),
        ("*.example.org", "evilexample.org", 443, False),
        ("*.0.1", "127.0.0.1", 80, False),
        ("127.0.0.1", "127.0.0.1", 80, True),
        ("127.0.0.1", "[::ffff:127.0.0.1]", 80, True),
        ("127.0.0.1", "localhost", 80, False),
        ("127.0.0.1", "127.1", 80, False),
        ("127.0.0.1", "2130706433", 80, False),
        ("localhost", "127.0.0.1", 80, False),
        ("::1", "[0:0:0:0:0:0:0:1]", 80, True),
        ("bücher.example", "xn--bcher-kva.example", 443, True),
    ],
)
def test_which_names_a_list_lets_through(listed: str, asked: str, port: int, passes: bool) -> None:
    host = normalize(asked)
    assert host is not None
    why = None if passes else f"{host} is not in the list of this task's network"
    assert find_refusal([make_rule(listed)], host, port) == why
    rules = [make_rule(listed, (port,))]
    why = f"port 22 of {host} is not in the list of this task's network" if passes else why
    assert (find_refusal(rules, host, port) is None, find_refusal(rules, host, 22)) == (passes, why)


@pytest.mark.parametrize(
    ("text", "usual", "found"),
    [
        *(
            (f"{text}:80", None, None)
            for text in ("", ".", "a..b", "a b", "a@b", "x" * 64, "[::1", "a:1", "é" * 80)
        ),
        ("example.org:443", None, ("example.org", 443)),
        ("example.org", 80, ("example.org", 80)),
        ("example.org", None, None),
        ("[::1]:8080", None, ("::1", 8080)),
        ("::1:8080", None, None),
        ("example.org:0", None, None),
        ("example.org:65536", None, None),
        ("example.org:", 80, None),
        ("me@example.org:80", None, None),
    ],
)
def test_host_and_port(text: str, usual: int | None, found: tuple[str, int] | None) -> None:
    assert split_authority(text, usual) == found


# --- addresses ---

_PUBLIC = ("93.184.215.14", "2606:2800:21f:cb07:6820:80da:af6b:8b2c", "64:ff9b::5db8:d70e")
_PRIVATE = (
    *("127.0.0.1", "127.8.8.8", "10.0.0.5", "172.16.1.1", "192.168.0.1", "169.254.169.254", "100.64.0.1"),
    *("0.0.0.0", "224.0.0.1", "255.255.255.255", "::1", "::", "fe80::1", "fe80::1%eth0", "fd00::1", "ff02::1"),
    *("::ffff:127.0.0.1", "::ffff:10.0.0.5", "64:ff9b::7f00:1", "2002:7f00:1::", "2002:a00:5::1"),
)


@pytest.mark.parametrize("address", [*_PUBLIC, *_PRIVATE])
@pytest.mark.parametrize("listed", ["example.org", "*.org"])
def test_a_name_may_lead_to_the_internet_and_to_no_private_network(listed: str, address: str) -> None:
    wrong = find_wrong_address([make_rule(listed)], "example.org", 443, address)
    assert (wrong is None) == (address in _PUBLIC)


@pytest.mark.parametrize(
    ("host", "port", "address", "passes"),
    [
        ("git.corp", 443, "10.0.0.5", True),
        ("git.corp", 443, "::ffff:10.0.0.5", True),
        ("git.corp", 443, "10.0.0.6", False),
        ("localhost", 80, "::1", True),
        ("localhost", 80, "10.0.0.6", False),
        ("other.corp", 80, "127.0.0.1", False),
        ("models.corp", 8080, "10.0.0.6", True),
        ("models.corp", 8081, "10.0.0.6", False),
    ],
)
def test_where_names_of_a_list_may_lead(host: str, port: int, address: str, passes: bool) -> None:
    """To an address that is listed; the user's own server of models may be anywhere, but at its port."""
    rules = [make_rule(name) for name in ("*.corp", "10.0.0.5", "localhost")]
    rules.append(make_rule("models.corp", (8080,), private=True))
    wrong = find_wrong_address(rules, host, port, address)
    problem = f"{host} leads to the private address {address}, which is not in the list of this task's network"
    assert wrong == (None if passes else problem)


# --- lists ---


def test_which_variables_name_a_server() -> None:
    names = (
        *("OPENAI_BASE_URL", "OPENAI_API_BASE", "CODEX_OSS_BASE_URL", "ANTHROPIC_VERTEX_BASE_URL", "OLLAMA_HOST"),
        *("AIDER_OPENAI_API_BASE", "DEEPSEEK_API_BASE", "GOOGLE_GEMINI_BASE_URL", "DASHSCOPE_BASE_URL"),
    )
    others = (
        "BASE_URL",
        "SHOP_BASE_URL",
        "OPENAI_BASE_URL_OLD",
        "OPENAI_HOST",
        "DOCKER_HOST",
        "MY_OPENAI_API_BASE",
    )
    for value in ("https://models.example.net/v1", "models.example.net:443"):
        env = dict.fromkeys(others, value)
        assert [rule for rule in list_rules((), PROGRAMS["codex"], env, ()) if rule.private] == []
        for name in names:
            assert make_rule("models.example.net", [443], private=True) in list_rules(
                (), PROGRAMS["codex"], {**env, name: value}, ()
            ), name


def test_the_list_of_an_agent_and_that_a_script_has_the_hosts_of_the_plan_alone(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('[model_providers.x]\nbase_url = "http://127.0.0.1:4000/v1"\n')
    env = {"OPENAI_BASE_URL": "https://models.example.net/v1", "CODEX_HOME": str(tmp_path)}
    env["ANTHROPIC_BASE_URL"] = "rubbish"
    words = ("codex", "exec", "-c", 'model_providers.y.base_url="http://[::1]:4001"')
    rules = list_rules(["pypi.org"], PROGRAMS["codex"], env, words)
    assert rules[0] == Rule("pypi.org")
    assert Rule("api.openai.com", (80, 443)) in rules
    assert [rule for rule in rules if rule.private] == [
        Rule("models.example.net", (443,), True),
        Rule("rubbish", (80,), True),
        Rule("::1", (4001,), True),
        Rule("127.0.0.1", (4000,), True),
    ]
    assert list_rules(["*.pypi.org"], None, env, ("sh",)) == (Rule("*.pypi.org"),)


# --- requests ---


def test_a_request_is_sent_on_as_a_server_wants_it() -> None:
    head = b"POST http://me:pw@Example.org:8080/a?b#c HTTP/1.1\r\nHost: evil.net\r\nProxy-Authorization: x\r\n"
    request = parse_head(head + b"Connection: keep-alive\r\nAccept: */*\r\nContent-Length: 5")
    assert (request.host, request.port, request.tunnel, request.body) == ("example.org", 8080, False, 5)
    assert request.word(whole=False) == (
        b"POST /a?b HTTP/1.1\r\nHost: example.org:8080\r\nAccept: */*\r\nContent-Length: 5\r\n"
        b"Connection: close\r\n\r\n"
    )
    assert request.word(whole=True, extra=b"X: y\r\n").startswith(b"POST http://example.org:8080/a?b HTTP/1.1\r\n")
    assert request.word(whole=True, extra=b"X: y\r\n").endswith(b"Connection: close\r\nX: y\r\n\r\n")
    assert parse_head(b"GET http://example.org?x HTTP/1.0").target == b"/?x"


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"\x16\x03\x01",
        b"GET / HTTP/1.1",
        b"GET https://example.org/ HTTP/1.1",
        b"GET http:///x HTTP/1.1",
        b"GET http://a b/ HTTP/1.1",
        b"GET http://example.org/ HTTP/2",
        b"CONNECT example.org HTTP/1.1",
        b"CONNECT http://example.org:443/ HTTP/1.1",
        b"GET http://example.org/ HTTP/1.1\r\n folded: x",
        b"GET http://example.org/ HTTP/1.1\r\nA: b\nC: d",
        b"POST http://example.org/ HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2",
        b"POST http://example.org/ HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked",
        b"POST http://example.org/ HTTP/1.1\r\nContent-Length: -1",
    ],
)
def test_what_is_no_request_to_a_proxy(head: bytes) -> None:
    with pytest.raises(BadRequest):
        parse_head(head)


def test_the_user_s_own_proxy_is_asked() -> None:
    tunnel, plain = parse_head(b"CONNECT a.example.org:443 HTTP/1.1"), parse_head(b"GET http://[::1]/ HTTP/1.1")
    environ = {"https_proxy": "http://me:p%40ss@proxy.corp:3128/", "HTTP_PROXY": "proxy.corp:8080"}
    parent = find_parent(environ, tunnel)
    assert parent is not None
    assert (parent.host, parent.port) == ("proxy.corp", 3128)
    assert parent.login == b"Proxy-Authorization: Basic bWU6cEBzcw==\r\n"
    assert find_parent(environ, plain) is None
    for direct in ("*", "example.org", ".example.org", "x, *.example.org:443"):
        assert find_parent({**environ, "NO_PROXY": direct}, tunnel) is None
    assert find_parent({**environ, "NO_PROXY": "ample.org,example.org:80"}, tunnel) is not None
    with pytest.raises(Unreachable, match="HTTPS_PROXY"):
        find_parent({"HTTPS_PROXY": "socks5://proxy.corp:1"}, tunnel)


# --- the process ---


class Server(http.server.ThreadingHTTPServer):
    """A server on loopback; what it was asked, and a gate in the middle of its slow answer."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.port = self.server_address[1]
        self.asked: list[str] = []
        self.half_sent, self.gate = threading.Event(), threading.Event()
        self.files: dict[str, bytes] = {"/x": b"from the server\n", "/slow": PIECE * 2}
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, *_: Any) -> None:
        """A client that has gone is no error here."""


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        server = self.server
        server.asked.append(self.path)
        content = server.files.get(self.path)
        if content is None:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[: len(PIECE)])
        if self.path == "/slow":
            server.half_sent.set()
            server.gate.wait(60)
        self.wfile.write(content[len(PIECE) :])

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        content = hashlib.sha256(body).hexdigest().encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
        self.connection.shutdown(socket.SHUT_WR)
        self.server.asked.append(f"body, then {self.rfile.read()!r}")

    def log_message(self, *_: Any) -> None:
        """Nothing is printed."""


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.gate.set()
    made.shutdown()
    made.server_close()


class Proxied:
    """Programs that have a proxy, without a session; asked as the forwarder inside asks it."""

    def __init__(self, place: Path) -> None:
        place.mkdir()
        self.session = SessionDir(place)
        self.programs: list[subprocess.Popen[bytes]] = []

    def open(self, *hosts: str, key: JobKey = KEY, program: tuple[str, ...] = ("/bin/cat",)) -> Path:
        """The socket of a program that ends when its standard input does; those of one job come one by one."""
        folder = self.session.make_job_path(key) / f"{NETWORK}1"
        socket_path = folder / DOOR / SOCKET
        (folder / DOOR).mkdir(parents=True, exist_ok=True)
        (folder / LIST).write_text(json.dumps([list(make_rule(host)) for host in hosts]))
        self.start(folder, *program)
        eventually(lambda: is_open(socket_path))
        return socket_path

    def start(self, folder: Path, *program: str, **env: str) -> subprocess.Popen[bytes]:
        environ = {"PATH": os.environ["PATH"], **keep_environment(os.environ), **env}
        files = (folder / DOOR / SOCKET, folder / LIST, folder / DENIED)
        words = (sys.executable, "-I", "-S", PROXY, *map(str, files), "-", *program)
        argv = (sys.executable, "-c", IGNORING, *words)
        begun = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ)
        self.programs.append(begun)
        return begun

    def end(self) -> None:
        while self.programs:
            self.programs.pop().communicate(timeout=60)


@pytest.fixture
def proxied(own_place: Path) -> Iterator[Proxied]:
    made = Proxied(own_place / "session-x")
    yield made
    made.end()


@contextmanager
def connected(door: Path) -> Iterator[socket.socket]:
    """A connection to a door, whose path may be longer than the name of a socket."""
    folder = os.open(door.parent, os.O_PATH)
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(60)
        try:
            client.connect(f"/proc/self/fd/{folder}/{door.name}")
        finally:
            os.close(folder)
        yield client


def is_open(door: Path) -> bool:
    """Whether a proxy listens: its socket is there a moment before, and its program begins a moment after."""
    try:
        with connected(door):
            return True
    except (FileNotFoundError, ConnectionRefusedError):
        return False


def ask(door: Path, content: bytes) -> bytes:
    """What a proxy answers to these bytes, to its end."""
    with connected(door) as client:
        client.sendall(content)
        answer = b""
        while chunk := client.recv(1 << 16):
            answer += chunk
        return answer


def test_what_programs_of_a_job_are_denied_one_after_the_other_is_counted_together(proxied: Proxied) -> None:
    get = b"GET http://127.0.0.1:1/x HTTP/1.1\r\n\r\n"
    for _ in range(2):
        assert ask(proxied.open("example.org"), get).startswith(b"HTTP/1.1 403 ")
        proxied.end()
    assert [found["count"] for found in read_denials(proxied.session.path, "t")] == [2]


@pytest.mark.parametrize(
    ("script", "code"), [("exit 3", 3), ("kill -9 $$", -9), ("kill -TERM $PPID; sleep 0.1; exit 0", 0)]
)
def test_a_proxy_ends_as_its_program_does(
    proxied: Proxied, monkeypatch: pytest.MonkeyPatch, script: str, code: int
) -> None:
    """The names of the user's own proxy are for ours alone."""
    monkeypatch.setenv("https_proxy", "http://me:secret@127.0.0.1:9")
    door = proxied.open("example.org")
    begun = proxied.start(door.parents[1], "/bin/sh", "-c", f"env; {script}", A="b")
    printed, _ = begun.communicate(timeout=60)
    assert begun.returncode == code
    assert b"A=b\n" in printed and b"secret" not in printed
    assert not door.exists()


def test_a_listed_server_answers_and_no_other(proxied: Proxied, server: Server) -> None:
    door, other = proxied.open("127.0.0.1"), proxied.open("example.org", "127.1", key=KEY._replace(task="u"))
    get = f"GET http://127.0.0.1:{server.port}/x HTTP/1.1\r\n\r\n".encode()
    assert ask(door, get).endswith(b"\r\n\r\nfrom the server\n")
    tunnel = f"CONNECT 127.0.0.1:{server.port} HTTP/1.1\r\n\r\nGET /x HTTP/1.0\r\n\r\n"
    assert b"from the server\n" in ask(door, tunnel.encode())
    assert server.asked == ["/x", "/x"]
    for _ in range(3):
        answer = ask(other, get)
        assert answer.startswith(b"HTTP/1.1 403 Forbidden\r\n")
        assert answer.endswith(b"\r\n\r\nsessionrun: 127.0.0.1 is not in the list of this task's network\n")
    # 127.1 is a name that leads to this machine, as any name of the list could be made to
    rebound = ask(other, get.replace(b"127.0.0.1", b"127.1"))
    assert rebound.startswith(b"HTTP/1.1 403 ")
    assert b"127.1 leads to the private address 127.0.0.1, which is not in the list" in rebound
    assert ask(door, b"nonsense\r\n\r\n").startswith(b"HTTP/1.1 400 ")
    assert server.asked == ["/x", "/x"]
    proxied.end()
    assert read_denials(proxied.session.path, "t") == []
    denied = read_denials(proxied.session.path, "u")
    assert [(host["host"], host["port"], host["count"]) for host in denied] == [
        ("127.0.0.1", server.port, 3),
        ("127.1", server.port, 1),
    ]


@pytest.mark.slow
def test_a_body_is_carried_and_nothing_behind_it(proxied: Proxied, server: Server) -> None:
    door = proxied.open("127.0.0.1")
    second = f"GET http://127.0.0.1:{server.port}/second HTTP/1.1\r\n\r\n".encode()
    for body in (PIECE * 20, b"short"):  # it comes in pieces, or with its head and what is behind it
        head = f"POST http://127.0.0.1:{server.port}/ HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        assert ask(door, head + body + second).endswith(hashlib.sha256(body).hexdigest().encode())
    eventually(lambda: server.asked == ["body, then b''"] * 2)  # another proxy would ask any host the second


@pytest.mark.slow
def test_a_client_that_hangs_up_leaves_nothing_open(proxied: Proxied, server: Server) -> None:
    door = proxied.open("127.0.0.1")
    with connected(door) as client:
        client.sendall(f"GET http://127.0.0.1:{server.port}/slow HTTP/1.1\r\n\r\n".encode())
        assert server.half_sent.wait(60)
    process = psutil.Process(proxied.programs[-1].pid)
    eventually(lambda: process.num_threads() == 2)  # each connection has two more


@pytest.mark.slow
def test_many_denials_are_counted_and_bounded(proxied: Proxied) -> None:
    door = proxied.open()
    for number in range(230):
        ask(door, f"GET http://h{number}.example.org/ HTTP/1.1\r\n\r\n".encode())
    proxied.end()
    assert not door.exists()
    denied = read_denials(proxied.session.path, "t")
    assert (len(denied), denied[0]["host"], denied[0]["count"]) == (201, "(others)", 30)


@pytest.mark.slow
def test_a_chain_of_proxies(proxied: Proxied, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bytes] = []
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            near, _ = listener.accept()
            with near:
                asked.append(near.recv(1 << 16))
                near.sendall(b"HTTP/1.1 200 fine\r\n\r\nanswer")

    threading.Thread(target=serve, daemon=True).start()
    for name in ("HTTPS_PROXY", "http_proxy"):
        monkeypatch.setenv(name, f"http://me:pw@127.0.0.1:{listener.getsockname()[1]}")
    door = proxied.open("nowhere.example.org")
    tunnel = b"CONNECT nowhere.example.org:443 HTTP/1.1\r\n\r\n"
    assert ask(door, tunnel).endswith(b"established\r\n\r\nanswer")
    assert ask(door, b"GET http://nowhere.example.org/x HTTP/1.1\r\n\r\n").endswith(b"answer")
    assert ask(door, tunnel.replace(b"nowhere", b"elsewhere")).startswith(b"HTTP/1.1 403")
    login = b"Proxy-Authorization: Basic bWU6cHc=\r\n\r\n"
    assert asked[0].startswith(b"CONNECT nowhere.example.org:443 HTTP/1.1\r\n")
    assert asked[1].startswith(b"GET http://nowhere.example.org/x HTTP/1.1\r\n")
    assert all(head.endswith(login) for head in asked)
    assert len(asked) == 2


# --- sessions ---


class Walled(Project):
    """Sessions in walls, and a server outside."""

    server: ClassVar[Server]

    def plan(self, *hosts: str, prompt: str, policy: str = "strict", **more: Any) -> dict[str, Any]:
        sandbox = {"policy": policy, "network": list(hosts) or "proxy"}
        return {"id": "a", "prompt": prompt, "sandbox": sandbox, **more}

    def begin(self, *tasks: dict[str, Any]) -> str:
        return self.start({"prompts": list(tasks)}, "--worktree")

    def processes(self, session_id: str) -> list[psutil.Process]:
        """The processes that are the session's by their command lines."""
        return [
            process
            for process in psutil.process_iter(["cmdline"])
            if any(word.startswith(str(self.directory(session_id))) for word in process.info["cmdline"] or ())
        ]

    def proxies(self, session_id: str) -> list[psutil.Process]:
        return [found for found in self.processes(session_id) if PROXY in found.info["cmdline"]]


@pytest.fixture
def walled(own_place: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> Walled:
    """A project whose tasks can have walls; says why they cannot where that is so."""
    need_walls()
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    made = project_in(own_place, monkeypatch)
    project = Walled(made.cwd, made.results)
    Walled.server = server
    return project


def python(script: str) -> str:
    """A command that runs a script inside."""
    return f"/usr/bin/python3 -c {shlex.quote(script)}"


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["strict", "project"])
def test_what_is_not_listed_is_denied_and_explained(walled: Walled, policy: str) -> None:
    url = f"http://127.0.0.1:{walled.server.port}/x"
    commands = (
        f"curl -sS {url}; curl -sS {url}; curl -sS https://telemetry.example.org/ 2>&1;"
        f" curl -sS --noproxy '*' {url} 2>&1; true"
    )
    also: dict[str, Any] = {"setup": [f"! curl -sS -f {url}"], "check": [f"! curl -sS -f {url}"]}
    session_id = walled.begin(walled.plan(prompt=commands, policy=policy, **also))
    assert walled.wait(session_id)["successful"] == 1
    said = walled.output(session_id, "a")
    assert said.count("sessionrun: 127.0.0.1 is not in the list of this task's network\n") == 2
    assert "403" in said
    assert "curl: (7)" in said
    assert walled.server.asked == []
    lines = walled("explain", session_id).stdout.splitlines()
    assert f"Network: denied 127.0.0.1:{walled.server.port} (4 times), asked for by a" in lines
    assert "Network: denied telemetry.example.org (1 time), asked for by a" in lines
    story = walled("explain", session_id, "a").stdout
    assert "\nnetwork: denied telemetry.example.org (1 time): telemetry.example.org is not in the list" in story
    denied = walled.load("explain", session_id)["denied"]
    assert [(found["task"], found["host"], found["count"]) for found in denied] == [
        ("a", "127.0.0.1", 4),
        ("a", "telemetry.example.org", 1),
    ]
    eventually(lambda: not walled.processes(session_id))


@pytest.mark.slow
def test_clients_of_all_kinds_reach_what_is_listed(walled: Walled, tmp_path: Path) -> None:
    bare = tmp_path / "bare.git"
    subprocess.run(["git", "clone", "-q", "--bare", str(walled.cwd), str(bare)], check=True)
    # so that a plain server of files can give it
    subprocess.run(["git", "update-server-info"], cwd=bare, check=True)
    files = (path for path in bare.rglob("*") if path.is_file())
    walled.server.files |= {f"/r.git/{path.relative_to(bare)}": path.read_bytes() for path in files}
    walled.server.files["/big"] = big = PIECE * 100
    base = f"http://127.0.0.1:{walled.server.port}"
    fetch = f"import urllib.request as u; print(u.urlopen('{base}/x').read().decode())"
    commands = [
        f"curl -sS -f {base}/x",
        f'place=$(mktemp -d); GIT_SMART_HTTP=0 git clone -q {base}/r.git "$place"; cat "$place/README"',
        python(fetch),
        f"curl -sS -f {base}/big | sha256sum",
    ]
    if shutil.which("npm") and os.path.realpath(shutil.which("npm") or "").startswith("/usr/"):
        about = {"name": "small", "dist-tags": {"latest": "1.2.3"}, "versions": {"1.2.3": {"name": "small"}}}
        walled.server.files["/small"] = json.dumps(about).encode()
        commands.append(f"npm view --registry {base}/ small dist-tags.latest")
    also: dict[str, Any] = {"setup": [commands[0]], "check": [commands[0]]}
    session_id = walled.begin(walled.plan("127.0.0.1", prompt="set -e; " + "; ".join(commands), **also))
    view = walled.wait(session_id)
    assert view["successful"] == 1, (walled.directory(session_id) / "task-a.err").read_text()
    said = walled.output(session_id, "a")
    assert said.count("from the server\n") == 2
    assert "first\n" in said, (walled.directory(session_id) / "task-a.err").read_text()
    assert ("1.2.3" in said) == (len(commands) == 5)
    assert hashlib.sha256(big).hexdigest() in said, "100 MB come through as they are"
    assert walled.load("explain", session_id)["denied"] == []


@pytest.mark.slow
def test_there_is_no_other_way_out(walled: Walled) -> None:
    name = f"sessionrun-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as abstract:
        abstract.bind(f"\0{name}")
        abstract.listen()
        script = f"""
import socket, os
def attempt(kind, place):
    try:
        socket.socket(kind).connect(place)
        print("reached", place)
    except OSError as error:
        print("stopped", type(error).__name__)
attempt(socket.AF_INET, ("127.0.0.1", {walled.server.port}))
attempt(socket.AF_INET, ("93.184.215.14", 80))
attempt(socket.AF_UNIX, "\\0{name}")
try:
    print("reached", socket.getaddrinfo("example.org", 80))
except OSError as error:
    print("stopped", type(error).__name__)
print("interfaces", [name for _, name in socket.if_nameindex()])
"""
        session_id = walled.begin(walled.plan("127.0.0.1", prompt=python(script), policy="project"))
        walled.wait(session_id)
    said = walled.output(session_id, "a")
    assert said.count("stopped") == 4, said
    assert "interfaces ['lo']" in said


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["strict", "project"])
def test_the_door_of_another_task_is_not_reached(walled: Walled, policy: str) -> None:
    first = walled.plan("127.0.0.1", prompt=f"curl -sS http://127.0.0.1:{walled.server.port}/slow | wc -c")
    search = f"""
import os, stat
for at, _, names in os.walk({str(walled.cwd.parent.parent)!r}):
    print("seen", at)
    for name in names:
        if stat.S_ISSOCK(os.lstat(os.path.join(at, name)).st_mode):
            print("found", at, name)
"""
    session_id = walled.begin(first, {**walled.plan(prompt=python(search), policy=policy), "id": "b"})
    assert walled.server.half_sent.wait(60)
    assert (walled.directory(session_id) / "jobs" / "a" / "a1-r1-work" / "network-1" / DOOR / SOCKET).is_socket()
    walled.until(session_id, lambda view: view["tasks"][1]["ended_at"], timeout_s=60)
    walled.server.gate.set()
    walled.wait(session_id)
    said = walled.output(session_id, "b")
    assert "seen" in said
    assert "found" not in said


@pytest.fixture
def download(walled: Walled) -> str:
    """A session with a task in the middle of a download, which asks for more behind it."""
    base = f"http://127.0.0.1:{walled.server.port}"
    more = f"curl -sS {base}/x; curl -sS http://127.0.0.2:1/; true"
    session_id = walled.begin(walled.plan("127.0.0.1", prompt=f"curl -sS -f {base}/slow | sha256sum; {more}"))
    assert walled.server.half_sent.wait(60)
    assert len(walled.proxies(session_id)) == 1
    return session_id


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["supervisor", "keeper", "root", "all", "all for good"])
def test_a_download_goes_on_when_ours_are_killed(walled: Walled, download: str, victim: str) -> None:
    chain = dict(zip(("root", "keeper", "supervisor"), walled.chain(download), strict=True))
    (old,) = walled.proxies(download)
    if victim in chain:
        os.kill(chain[victim], signal.SIGKILL)
    else:
        walled.kill_chain(download)
    if victim in ("supervisor", "keeper"):
        eventually(lambda: walled.supervisor(download) != chain["supervisor"])
    if victim == "all":
        done = walled("resume", download)
        assert done.returncode == 0, done.stderr
    assert old.is_running() and len(walled.proxies(download)) == 1
    walled.server.gate.set()
    if victim == "all for good":
        eventually(lambda: not old.is_running())
    else:  # of all, how its job ended was seen by nobody
        assert walled.wait(download)["successful"] == (victim != "all")
        assert [found["host"] for found in walled.load("explain", download)["denied"]] == ["127.0.0.2"]
    digest = hashlib.sha256(PIECE * 2).hexdigest()
    denied = "sessionrun: 127.0.0.2 is not in the list of this task's network\n"
    eventually(lambda: walled.output(download, "a") == f"{digest}  -\nfrom the server\n{denied}")
    eventually(lambda: not walled.processes(download))


@pytest.mark.slow
@pytest.mark.parametrize(("by", "end"), [("cancel", "cancelled"), ("its proxy", "failed")])
def test_of_a_job_that_ends_in_a_download_nothing_is_left(
    walled: Walled, download: str, by: str, end: str
) -> None:
    if by == "cancel":
        assert walled("cancel", download).returncode == 0
    else:
        walled.proxies(download)[0].kill()
    (task,) = walled.wait(download)["tasks"]
    assert task["outcome"] == end and (by == "cancel" or task["signal"] == 9)
    eventually(lambda: not walled.processes(download))
