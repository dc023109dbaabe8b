"""The logs and the session directory: what is written is found again, and nothing half done is believed."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from zlib import crc32

import orjson
import platformdirs
import pytest
from conftest import slow
from hypothesis import given
from hypothesis import strategies as st
from simulation import make_session

from sessionrun.client.lookup import find_session
from sessionrun.engine.status import project_live, project_summary
from sessionrun.model.errors import InputError, SessionNotFound, StoreError
from sessionrun.model.events import Entry, RequestReceived, TaskAdded, to_record
from sessionrun.model.keys import JobKey
from sessionrun.model.spec import AgentSpec, SessionSpec, TaskSpec
from sessionrun.session.history import begin, load_spec_now
from sessionrun.store import files, index, locks, logs
from sessionrun.store.creation import create_session, discard_session
from sessionrun.store.files import NotRegular, name_beside, read_regular, remove_left, replace_file
from sessionrun.store.logs import (
    BEGAN,
    CLAIMED,
    EXITED,
    FAILED,
    GONE,
    SPAWNED,
    TRIED,
    AppendLog,
    fold_ledger,
    make_record,
    parse_log,
    read_log,
)
from sessionrun.store.requests import (
    MAX_FAULTS,
    MAX_SPOKEN_BYTES,
    Spoken,
    drop_request,
    find_recorded,
    has_request,
    load_requests,
    send_request,
    spell_request,
)
from sessionrun.store.session import SessionDir, iterate_sessions
from sessionrun.worktrees.diff import read_changes

KEY = JobKey("a", 1, 1, "work", 1)
DEAD_PID = 2**22 - 7
PAYLOAD = st.binary(max_size=30).map(lambda content: content.replace(b"\n", b""))


def frame(payload: bytes) -> bytes:
    return b"%08x %b\n" % (crc32(payload), payload)


@contextmanager
def no_room_beyond(size: int) -> Iterator[None]:
    """Files cannot grow beyond this, as on a disk that is full: a write does what still fits."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, old)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[AppendLog]:
    one = AppendLog(tmp_path / "log")
    yield one
    one.close()


def make_directory(results: Path, session_id: str = "0b0e0f3c-0000-4000-8000-000000000001") -> SessionDir:
    """A session directory that nobody runs."""
    session = SessionDir(results / f"session-{session_id}")
    os.close(create_session(session, make_spec()))
    return session


def make_spec() -> SessionSpec:
    tasks = [TaskSpec("a", ("true",)), TaskSpec("b", ("caf\xe9 \u2028 \x1b",), needs=("a",))]
    return replace(make_session(tasks), agents={"shell": AgentSpec("shell", ("/bin/sh",))})


# --- logs ---


@given(st.lists(PAYLOAD, max_size=8))
def test_what_was_appended_is_read(payloads: list[bytes]) -> None:
    content = b"".join(map(frame, payloads))
    contents = parse_log(content)
    assert contents.payloads == payloads
    assert (contents.end, contents.damage_at) == (len(content), None)


@given(st.lists(PAYLOAD, min_size=1, max_size=5), st.integers(0, 200))
def test_a_torn_tail_is_no_record_and_no_damage(payloads: list[bytes], cut: int) -> None:
    content = b"".join(map(frame, payloads))[:cut]
    contents = parse_log(content)
    assert contents.payloads == payloads[: len(contents.payloads)]
    assert contents.end <= len(content)
    assert contents.damage_at is None
    assert content[: contents.end] == b"".join(map(frame, contents.payloads))


@given(st.lists(PAYLOAD, min_size=3, max_size=6), st.data())
def test_a_flipped_bit_is_found(payloads: list[bytes], draw: st.DataObject) -> None:
    lines = list(map(frame, payloads))
    content = bytearray(b"".join(lines))
    place = draw.draw(st.integers(0, len(content) - 1))
    content[place] ^= 1 << draw.draw(st.integers(0, 7))
    contents = parse_log(bytes(content))
    assert contents.payloads == payloads[: len(contents.payloads)]
    assert len(contents.payloads) < len(payloads)
    if place < len(content) - len(lines[-1]) - 1:
        assert contents.damage_at is not None
        assert contents.damage_at <= place


@given(st.binary(max_size=200))
def test_any_bytes_can_be_read(content: bytes) -> None:
    assert parse_log(content).end <= len(content)
    fold_ledger(content.split(b"\n"))


def test_appending_in_batches(log: AppendLog) -> None:
    assert log.append([]) == 0
    end = log.append([b"one", b"two"])
    assert log.append([b""]) == log.end > end
    log.sync()
    assert read_log(log.path).payloads == [b"one", b"two", b""]
    assert log.path.stat().st_size == log.end
    assert log.path.stat().st_mode & 0o777 == 0o600
    assert read_log(log.path.with_name("none")).payloads == []
    with pytest.raises(StoreError):
        read_log(log.path.parent)


def test_going_on_behind_a_torn_tail(log: AppendLog) -> None:
    log.append([b"one", b"two"])
    with log.path.open("ab") as stream:
        stream.write(frame(b"three")[:-4])
    again = AppendLog(log.path)
    contents = read_log(log.path)
    again.cut(contents.end)
    again.append([b"four"])
    again.close()
    assert read_log(log.path).payloads == [b"one", b"two", b"four"]
    assert read_log(log.path).damage_at is None


@pytest.mark.parametrize("room", [0, 1, 11, 15, 25])
def test_a_short_write_is_taken_back(log: AppendLog, room: int) -> None:
    log.append([b"before"])
    end = log.end
    with no_room_beyond(end + room), pytest.raises(StoreError, match="cannot write"):
        log.append([b"first", b"second", b"third"])
    assert (log.end, log.path.stat().st_size) == (end, end)
    log.append([b"after"])
    assert read_log(log.path).payloads == [b"before", b"after"]


def test_what_is_appended_after_a_sync_that_failed_is_in_the_log(
    log: AppendLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one writes all to a new file, and fails as well, once that is in the log's place."""

    def refuse(what: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    log.append([b"first"])
    with monkeypatch.context() as patch:
        for module, name in ((logs, "_fdatasync"), (files, "sync_directory"), (logs, "sync_directory")):
            patch.setattr(module, name, refuse, raising=False)
        for _ in range(2):
            with pytest.raises(StoreError, match="cannot sync"):
                log.sync()
    log.append([b"second"])
    assert read_log(log.path).payloads == [b"first", b"second"]
    log.sync()
    assert read_log(log.path).payloads == [b"first", b"second"]
    assert [name for name in os.listdir(log.path.parent) if "log" in name] == ["log"]


# --- the ledger's records ---


def test_the_ledger_adds_up() -> None:
    other = KEY._replace(task="b")
    later = [b"? something new", b"S a/1/1/work/1", b"X a/1/1/work/1 many"]  # of another version
    ledger = fold_ledger(
        [
            *later,
            make_record(BEGAN, 1, 2, "boot", "ns"),
            make_record(CLAIMED, KEY.text()),
            make_record(CLAIMED, other.text()),
            make_record(TRIED, KEY.text(), 10.0),
            make_record(SPAWNED, KEY.text(), 77, 1234),
            make_record(EXITED, KEY.text(), 256),
            make_record(TRIED, other.text(), 3.0),
            make_record(FAILED, other.text(), 2),
        ]
    )
    one, two = ledger.jobs[KEY.text()], ledger.jobs[other.text()]
    assert (ledger.boot_id, ledger.pid_ns) == ("boot", "ns")
    assert (one.tried, one.pid, one.started, one.wait_status, one.errno) == (True, 77, 1234, 256, None)
    assert (two.tried, two.pid, two.wait_status, two.errno) == (True, None, None, 2)
    assert (one.grace_s, one.is_open, two.is_open) == (10.0, True, False)  # a process of it may still be left
    records = make_record(CLAIMED, "a"), make_record(TRIED, "a", 1.0), make_record(EXITED, "a", 0)
    ledger = fold_ledger([*records, make_record(GONE, "a")])
    assert not ledger.jobs["a"].is_open


# --- files ---


@pytest.mark.parametrize("turns", [500, *slow(20_000)])
def test_a_reader_sees_the_old_or_the_new(own_place: Path, turns: int) -> None:
    """Two contents of different length, replaced while another thread reads all the time."""
    path = own_place / "status.json"
    contents = (b"a" * 10_000, b"b" * 50)
    replace_file(path, contents[0], durable=False)
    seen: set[bytes] = set()
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            seen.add(read_regular(path))

    reader = threading.Thread(target=read)
    reader.start()
    for turn in range(turns):
        replace_file(path, contents[turn % 2], durable=False)
    done.set()
    reader.join()
    assert seen
    assert seen <= set(contents)
    assert os.listdir(own_place) == ["status.json"]


def test_who_reads_a_status_while_it_is_replaced_has_the_old_one_whole(tmp_path: Path) -> None:
    session, state = make_directory(tmp_path), begin(make_spec())

    def show() -> list[bytes]:
        status = project_live(state)
        session.replace_status(status, project_summary(status), durable=False)
        return [session.status_path.read_bytes(), session.summary_path.read_bytes()]

    before = show()
    with open(session.status_path, "rb") as status, open(session.summary_path, "rb") as summary:
        state.seq += 1
        assert show()[0] != before[0]
        assert [status.read(), summary.read()] == before


@pytest.mark.parametrize("fault", [OSError, RuntimeError])
def test_a_replacement_that_fails_leaves_the_old(own_place: Path, fault: type[Exception]) -> None:
    """On a full disk, or because a piece of it cannot be made."""

    def broken() -> Iterator[bytes]:
        yield b"x" * 100
        raise RuntimeError("no more")

    path = own_place / "file"
    replace_file(path, b"old", durable=True)
    with no_room_beyond(10 if fault is OSError else 1000), pytest.raises(fault):
        replace_file(path, broken(), durable=True)
    assert path.read_bytes() == b"old"
    assert os.listdir(own_place) == ["file"]


def test_what_a_killed_writer_left_is_swept_by_the_next_and_nothing_else(own_place: Path) -> None:
    living = subprocess.Popen(["sleep", "600"])
    try:
        stays = [
            f".file.{living.pid}.tmp",  # its process lives
            f".file.{DEAD_PID}.tmp.bak",
            f".other.{DEAD_PID}.tmp",  # beside another file
            f"file.{DEAD_PID}.tmp",
            ".file.tmp",
            ".file.x1.tmp",
            f".file.{DEAD_PID + 2}.tmp",  # held: its writer is on another machine
            f".file.{DEAD_PID + 3}.tmp",  # it has another name
        ]
        for name in (*stays, f".file.{DEAD_PID}.tmp"):
            (own_place / name).touch()
        os.link(own_place / stays[-1], own_place / "kept")
        (own_place / f".file.{DEAD_PID + 1}.tmp").symlink_to("nowhere")  # as `link_below` makes them
        with open(own_place / stays[-2], "rb") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            replace_file(own_place / "file", b"new", durable=True)
        assert sorted(os.listdir(own_place)) == sorted([*stays, "kept", "file"])
    finally:
        living.kill()
        living.wait()


def test_a_writer_holds_what_it_writes_until_it_has_its_name(own_place: Path) -> None:
    """A writer whose pid cannot be seen from here, as in another container, loses nothing to a sweep."""
    path = own_place / "file"

    def pieces() -> Iterator[bytes]:
        yield b"be"
        with pytest.raises(BlockingIOError):
            remove_left(name_beside(path))
        yield b"gun"

    replace_file(path, pieces(), durable=False)
    assert path.read_bytes() == b"begun"
    assert os.listdir(own_place) == ["file"]


def make_socket(place: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place))


PLANTED: dict[str, Callable[[Path], object]] = {
    "a link": lambda place: place.symlink_to("victim"),
    "a FIFO": os.mkfifo,
    "a directory": os.mkdir,
    "a socket": make_socket,
}
USES: tuple[Callable[[Path], object], ...] = (read_regular, AppendLog, locks.hold)


@pytest.mark.parametrize("kind", PLANTED)
def test_what_is_no_regular_file_is_neither_followed_nor_waited_for(tmp_path: Path, kind: str) -> None:
    """In the place of a file that is read, of a log or of a lock."""
    place, victim = tmp_path / "place", tmp_path / "victim"
    victim.write_text("precious")
    PLANTED[kind](place)
    for use in USES:
        with pytest.raises(NotRegular):
            use(place)
    with pytest.raises(StoreError, match="not a regular file"):
        read_log(place)
    with victim.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert not locks.is_held(place)
    assert victim.read_text() == "precious"


def test_a_file_is_read_up_to_a_limit(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    assert read_regular(tmp_path / "file", 1) == b"x"
    with pytest.raises(NotRegular):
        read_regular("/dev/zero")
    with pytest.raises(FileNotFoundError):
        read_regular(tmp_path / "none")
    with pytest.raises(OSError, match="larger than 0 bytes"):
        read_regular(tmp_path / "file", 0)


# --- the directory ---


def test_a_new_session(tmp_path: Path) -> None:
    results = tmp_path / "deep" / "results"
    session = make_directory(results)
    assert session.load_spec() == make_spec()
    assert (results / ".gitignore").read_text() == "*\n"
    assert sorted(os.listdir(session.path)) == ["prompts", "requests", "root.lock", "spec.json", "wake"]
    for path in [session.path, *session.path.iterdir()]:
        assert path.stat().st_mode & 0o077 == 0
    assert (session.load_status(), session.load_summary(), session.load_journal()[0]) == (None, None, [])
    with pytest.raises(StoreError, match="cannot create"):
        create_session(session, make_spec())
    assert session.load_spec() == make_spec()


def test_the_folders_of_a_job_that_was_done_again_come_last_first(tmp_path: Path) -> None:
    session, key = make_directory(tmp_path), JobKey("a", 2, 1, "check", 1)
    assert list(session.find_starts(key)) == []
    (session.path / "jobs").mkdir()
    (session.path / "jobs" / "a").symlink_to("a")
    assert list(session.find_starts(key)) == [], "what a task made of its folder keeps no reader from the others"
    (session.path / "jobs" / "a").unlink()
    for start in (1, 2, 10):  # more starts than tries: a hold does not use one up
        session.make_job_path(key._replace(start=start))
    session.make_job_path(key._replace(round=2))
    (session.path / "jobs" / "a" / "a2-r1-check-sx").mkdir()
    found = [folder.name for folder in session.find_starts(key._replace(start=2))]
    assert found == ["a2-r1-check-s10", "a2-r1-check-s2", "a2-r1-check"]


def test_a_long_journal_is_not_read_whole_for_each_look_whether_a_request_is_in_it(tmp_path: Path) -> None:
    session = make_directory(tmp_path)
    with session.journal_path.open("ab") as stream:
        stream.truncate(1 << 42)
        stream.write(frame(orjson.dumps({"seq": 7, "request_id": "r"})))
    assert find_recorded(session, "r", 1 << 42) == 7
    assert find_recorded(session, "other", 1 << 42) is None


def test_tasks_that_were_added_later_are_tasks(tmp_path: Path) -> None:
    session = make_directory(tmp_path)
    late = TaskSpec("late", ("x",))
    journal = AppendLog(session.journal_path)
    journal.append([orjson.dumps(to_record(Entry(1, 1.0, 1.0, TaskAdded(late))))])
    assert load_spec_now(session).tasks == (*make_spec().tasks, late)


def test_a_branch_without_a_repository_is_damage(tmp_path: Path) -> None:
    nothing = dict.fromkeys(("worktree", "rescue_branch"))
    task = {"id": "a", "attempt": 1, "branch": "b", "base_commit": "0" * 40, **nothing}
    (change,) = read_changes(make_directory(tmp_path), [task])
    with pytest.raises(StoreError, match=r"status\.json is damaged"):
        list(change.pieces)


@pytest.mark.parametrize("name", [".gitignore", "main.c"])
def test_a_directory_in_other_use_is_not_hidden_from_git(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine\n")
    make_directory(tmp_path)
    assert (tmp_path / name).read_text() == "mine\n"
    assert name == ".gitignore" or not (tmp_path / ".gitignore").exists()


def test_a_place_where_everybody_may_write_is_refused(tmp_path: Path) -> None:
    results = tmp_path / "results"
    results.mkdir()
    results.chmod(0o777)
    with pytest.raises(InputError, match="every user may write"):
        make_directory(results)
    assert os.listdir(results) == []
    results.chmod(0o1777)
    make_directory(results)


def test_the_lock_tells_who_is_alive(tmp_path: Path) -> None:
    session = SessionDir(tmp_path / "session-x")
    session.path.mkdir()
    assert not session.is_alive()
    assert os.listdir(session.path) == []  # to probe makes nothing
    session.path.rmdir()
    fd = create_session(session, make_spec())
    assert session.is_alive()
    with pytest.raises(StoreError, match="another process"):
        session.hold_lock("root.lock", timeout_s=0.05)
    os.close(fd)
    assert not session.is_alive()
    fd = session.hold_lock("keeper.lock")
    assert session.is_alive()
    os.close(fd)
    assert not session.is_alive()


def test_probing_does_not_disturb_a_start(tmp_path: Path) -> None:
    """A reader holds the lock for an instant; a starter tries again."""
    session = make_directory(tmp_path)
    os.close(session.hold_lock("lock"))
    probe = os.open(session.path / "lock", os.O_RDONLY)
    fcntl.flock(probe, fcntl.LOCK_SH)
    release = threading.Timer(0.2, os.close, [probe])
    release.start()
    os.close(session.hold_lock("lock"))
    release.join()


def test_a_lock_that_is_removed_is_not_held_twice(tmp_path: Path) -> None:
    """The file goes while it is waited for: who waited gets the lock of the next file."""
    path = tmp_path / "lock"
    held = locks.hold(path)
    assert held is not None
    locks.remove_free(path)
    assert path.exists(), "a process holds it"
    waits = threading.Thread(target=lambda: taken.append(locks.hold(path, timeout_s=60)))
    taken: list[int | None] = []
    waits.start()
    path.unlink()  # as `remove_free` does while it holds it
    os.close(held)
    waits.join()
    assert taken[0] is not None and locks.is_held(path)
    os.close(taken[0])
    locks.remove_free(path)
    assert not path.exists()


# --- requests ---


def test_requests_and_the_bell(tmp_path: Path) -> None:
    session = make_directory(tmp_path)
    first, heard = send_request(session, {"kind": "cancel"})
    assert not heard
    bell = os.open(session.wake_path, os.O_RDONLY | os.O_NONBLOCK)
    second, heard = send_request(session, {"kind": "cancel", "tasks": ["a"]})
    assert heard
    assert os.read(bell, 10) == b"."
    assert {path.stem for path, _ in load_requests(session)} == {first, second}
    assert has_request(session, first)
    drop_request(session, first)
    drop_request(session, first)
    assert not has_request(session, first)
    assert [request for _, request in load_requests(session)] == [RequestReceived(second, "cancel", ("a",))]
    os.close(bell)
    ids = [second, *(send_request(session, {"kind": "cancel"})[0] for _ in range(4))]
    for age, request_id in enumerate(reversed(ids)):
        os.utime(session.path / "requests" / f"{request_id}.json", (1000 + age, 1000 + age))
    assert [path.stem for path, _ in load_requests(session)] == ids[::-1], "the oldest comes first"


def test_a_bell_that_is_full_still_rings_and_one_that_is_planted_is_not_followed(tmp_path: Path) -> None:
    session, victim = make_directory(tmp_path), tmp_path / "victim"
    bell = os.open(session.wake_path, os.O_RDWR | os.O_NONBLOCK)
    for size in (4096, 1):
        with pytest.raises(BlockingIOError):
            while True:
                os.write(bell, b"." * size)
    assert send_request(session, {"kind": "cancel"})[1]
    os.close(bell)
    victim.touch()
    session.wake_path.unlink()
    session.wake_path.symlink_to(victim)
    assert not send_request(session, {"kind": "cancel"})[1]
    assert victim.read_text() == ""


def test_requests_are_found_among_rubbish() -> None:
    request_id, line = spell_request({"kind": "cancel", "tasks": ["a"], "now": True})
    spoken = Spoken()
    assert spoken.hear(b"..\xff{\x00" + b"x" * (2 * MAX_SPOKEN_BYTES)) == ([], [])
    assert spoken.hear(b'["kind"' + line[:9]) == ([], [])
    requests, _ = spoken.hear(line[9:] + b"...")
    assert requests == [RequestReceived(request_id, "cancel", ("a",), True)]
    assert spoken.hear(b"..." + line)[0] == requests
    bad = [b'{"request_id": "../../x", "kind": "cancel"}', b"{", b'{"request_id": 1}', b"{" + b"[" * 3000]
    found, faults = spoken.hear(b"\n" + b"\n".join(bad * 10) + b"\n")
    assert (found, len(faults)) == ([], MAX_FAULTS)


# --- finding ---


def test_finding_sessions(tmp_path: Path) -> None:
    results = tmp_path / "results"
    ids = ["aaaa1111-0", "aaaa2222-0", "bbbb", "bb"]
    sessions = [make_directory(results, one) for one in ids]
    for age, session in enumerate(sessions):
        os.utime(session.spec_path, (1000 + age, 1000 + age))
    (results / "session-empty").mkdir()
    (results / "session-link").symlink_to(sessions[0].path)
    (results / "other").mkdir()
    assert {session.session_id for session in iterate_sessions(results)} == {*ids, "empty"}
    assert find_session(results, "aaaa1").session_id == ids[0]
    assert find_session(results, "session-bbb").session_id == ids[2]
    assert find_session(results, "bb").session_id == find_session(results, "last").session_id == ids[3]
    for wanted in ("aaaa", "zzz", "", "session-", "empty", "link", "../results/session-bbbb", "*"):
        with pytest.raises(SessionNotFound):
            find_session(results, wanted)


def test_the_index_is_asked_second(tmp_path: Path) -> None:
    here, away = tmp_path / "here", tmp_path / "away"
    with pytest.raises(SessionNotFound):
        find_session(here, "last")
    old = make_directory(away, "abc-old")
    index.remember(old.path)
    assert find_session(here, "abc").path == old.path
    with pytest.raises(SessionNotFound, match=f"the newest in your index is abc-old in {away}"):
        find_session(here, "last")
    new = make_directory(here, "abc-new")
    index.remember(new.path)
    assert find_session(here, "abc").path == new.path
    assert [session.path for session in index.sessions()] == [old.path, new.path]
    discard_session(old)
    assert [session.path for session in index.sessions()] == [new.path]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere platformdirs itself is asked")
@pytest.mark.parametrize("value", ["", " ", "state", "~/state", "/etc/xdg"])
def test_directories_of_the_user_are_where_platformdirs_says(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """So a relative value is ignored."""
    for name in ("CONFIG", "STATE", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", value)
    assert index.user_directory("config") == platformdirs.user_config_path("sessionrun")
    assert index.user_directory("state") == platformdirs.user_state_path("sessionrun")
    assert index.user_directory("cache") == platformdirs.user_cache_path("sessionrun")


def test_an_index_of_any_shape_is_read(tmp_path: Path) -> None:
    path = index.index_path()
    path.parent.mkdir(parents=True)
    long = b"/" + b"x" * 5000
    path.write_bytes(b"relative/session-x\n\n\xff\xfe\n/no/such/session-y\n%b\n/a\0b\n/session-\xff\n/half" % long)
    assert index.sessions() == []
    path.unlink()
    path.mkdir()
    assert index.sessions() == []
    with pytest.raises(IsADirectoryError):
        index.remember(tmp_path)
