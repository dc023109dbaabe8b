"""The verbs as a caller uses them: what they print, which errors they give, how they end.

Outputs of tasks reach their reader whole, byte for byte, harmless on a terminal, at any size.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import pytest
from conftest import Command, slow
from shown import check_golden, mask
from terminal import Terminal

from sessionrun.client.reading.outputs import find_tail, iterate_chunks, iterate_tail

MIXED = {"prompts": [{"id": "good", "prompt": "echo fine"}, {"id": "bad", "prompt": "exit 7"}]}


def shell(*prompts: str, **fields: Any) -> str:
    """A plan as JSON, with short ids."""
    tasks = [{"id": f"t{num}", "prompt": prompt} for num, prompt in enumerate(prompts, 1)]
    return json.dumps({"prompts": tasks, **fields})


def test_what_a_start_prints(sessionrun: Command) -> None:
    plan = shell("true", "true", name="from the file")
    words = ["--agent", "shell", "--label", "team=a b", "--label", "n=1", "--max-parallel", "2", "--json"]
    done = sessionrun(*words, stdin=plan)
    started = json.loads(done.stdout)
    assert started["agent"] == "shell"
    assert started["dialect"] == "prompts"
    assert started["name"] == "from the file"
    assert started["labels"] == {"team": "a b", "n": "1"}
    assert started["total"] == started["max_parallel"] == 2
    assert started["results_dir"] == str(sessionrun.directory(started["session_id"]))
    assert done.stderr == "agent: shell (asked for)\n"
    for words in ([], ["--sync"]):
        done = sessionrun("-q", *words, "--agent", "shell", stdin=shell("echo never shown"))
        assert (len(done.stdout), done.stderr) == (37, "")
    done = sessionrun("--verbose", "--agent", "shell", stdin=shell("true"))
    assert f"/sh PROMPT-FILE (in {sessionrun.cwd})" in done.stderr and done.stdout.startswith("\U0001f680")


def test_status_says_what_is_on_disk_and_of_named_tasks_in_their_order(sessionrun: Command) -> None:
    session_id = sessionrun.finished(MIXED, "--name", "mine")
    view = sessionrun.load("status", session_id)
    assert (view.pop("schema_version"), view["outcome"], view["name"]) == (2, "failed", "mine")
    assert view["started_at"] <= view["tasks"][0]["started_at"] <= view["tasks"][0]["ended_at"] <= view["ended_at"]
    on_disk = json.loads((sessionrun.directory(session_id) / "status.json").read_bytes())
    assert list(on_disk)[-1] == "checksum"
    del on_disk["checksum"], on_disk["schema_version"]
    seen = {"results_dir": view["results_dir"], "stopped": [], "disk_full": None, "no_contact": []}
    assert {**on_disk, **seen} == view
    assert [task["id"] for task in sessionrun.load("status", session_id, "2", "good")["tasks"]] == ["bad", "good"]


def test_dry_run_creates_nothing(sessionrun: Command) -> None:
    plan = {"prompts": [{"id": "b", "prompt": "true", "needs": ["a"]}, {"id": "a", "prompt": "false"}]}
    record = json.loads(sessionrun("--dry-run", "--json", "--agent", "shell", stdin=json.dumps(plan)).stdout)
    assert [task["id"] for task in record["tasks"]] == ["a", "b"]
    assert record["tasks"][0]["argv"][1:] == ["PROMPT-FILE"]
    assert record["tasks"][0]["cwd"] == str(sessionrun.cwd)
    assert record["dialect_reason"]
    assert [task["prompts"] for task in record["tasks"]] == [["false"], ["true"]]
    for words, count in (((), 3), (("--verbose",), 9)):
        prompt = "".join(f"line {number}\n" for number in range(9))
        shown = sessionrun("--dry-run", "--agent", "shell", *words, stdin=json.dumps([prompt])).stdout
        assert shown.count("      line ") == count
        assert ("... 6 lines more (--verbose shows all)" in shown) == (not words)
    assert list(sessionrun.cwd.iterdir()) == []


@pytest.mark.parametrize(("suffix", "reason_class"), [("raw", "bad_output"), ("txt", "infra")])
def test_a_fifo_in_an_outputs_place_stops_nobody(sessionrun: Command, suffix: str, reason_class: str) -> None:
    (sessionrun.cwd / "sessionrun.toml").write_text(
        "[agents.odd]\noutput = 'claude'\n"
        "argv = ['sh', '-c', 'echo text; f=results/session-$SESSIONRUN_SESSION/task-a.$0; rm -f $f; mkfifo $f', "
        f"'{suffix}']\n"
    )
    session_id = sessionrun.start([{"id": "a", "agent": "odd", "prompt": "x"}])
    assert sessionrun.wait(session_id)["tasks"][0]["reason_class"] == reason_class


def test_words_say_why_an_agent_failed_and_not_why_a_script_did(sessionrun: Command) -> None:
    script = "echo HTTP 429: too many requests >&2; exit 1"
    (sessionrun.cwd / "sessionrun.toml").write_text(f"[agents.plain]\nargv = ['sh', '-c', '{script}']\n")
    plan = [{"id": "plain", "agent": "plain", "prompt": "x"}, {"id": "script", "prompt": script}]
    session_id = sessionrun.start({"prompts": plan})
    view = sessionrun.until(session_id, lambda view: view["state"] == "held" and view["completed"] == 1)
    plain, other = (task["reason"].split(": ") for task in view["tasks"])
    assert (plain[:2], other[0]) == (["held", "rate_limited"], "exit_code")


def test_alone_on_a_terminal_it_says_what_to_do(sessionrun: Command) -> None:
    for words in ([], ["--json"]):
        with Terminal([*sessionrun.argv, *words], sessionrun.cwd) as terminal:
            assert terminal.finish() == 2
        assert b"give a FILE" in terminal.output
        assert b"--help" in terminal.output


def test_a_bug_gives_a_traceback_and_3(sessionrun: Command) -> None:
    """A broken installation is as good a bug as any."""
    (sessionrun.cwd / "yaml.py").write_text("raise RuntimeError('broken')")
    done = sessionrun("--dry-run", "--json", stdin="- a: b", env={"PYTHONPATH": str(sessionrun.cwd)})
    assert done.returncode == 3
    assert "bug" in json.loads(done.stdout)["error"]["message"]
    assert "Traceback" in done.stderr


def test_odd_working_directories(sessionrun: Command) -> None:
    odd = os.path.join(os.fsencode(sessionrun.cwd), b"\xff")
    os.mkdir(odd)
    done = subprocess.run([*sessionrun.argv, "-"], cwd=odd, input=b'["true"]', capture_output=True)
    assert (done.returncode, done.stderr.count(b"\n")) == (2, 1)
    program = f"mkdir gone && cd gone && rmdir ../gone && exec {' '.join(sessionrun.argv)} list"
    done = subprocess.run(["sh", "-c", program], cwd=sessionrun.cwd, capture_output=True)
    says = b"sessionrun: error: the current directory was deleted; cd to another one\n"
    assert (done.returncode, done.stderr) == (2, says)


MISTAKES: Final = (
    *("status last bb", "results last TASKx", "diff last", "merge last", "set last --max-parallel 3"),
    *("'Write tests'", "--agent shell --results-dir tasks.json/x tasks.json", "-- --json"),
    *("--agent shell --results-dir tasks.json tasks.json", "report last -o gone/x.html"),
)


def test_mistakes_about_a_session_or_a_place(sessionrun: Command) -> None:
    (sessionrun.cwd / "tasks.json").write_text('["true"]')
    session_id = sessionrun.finished(["true", {"id": "b", "prompt": "true"}])
    folder, other = sessionrun.directory(session_id), f"{session_id[:-4]}0000"
    unbegun = f"{'0' * 8}-0000-4000-8000-{'0' * 12}"  # its launcher was killed
    task = sessionrun.status(session_id)["tasks"][0]["id"]
    text = "".join(tell(sessionrun, *shlex.split(words.replace("TASK", task))) for words in MISTAKES)
    shutil.copytree(folder, folder.with_name(f"session-{other}"), ignore=shutil.ignore_patterns("wake"))
    folder.with_name(f"session-{unbegun}").mkdir()
    text += "".join(tell(sessionrun, "status", word) for word in (session_id[:8], unbegun, unbegun[:8]))
    shutil.rmtree(folder)
    text += tell(sessionrun, "status", session_id)
    for known, name in ((other, "OTHER"), (task, "TASK"), (str(sessionrun.cwd), "/place")):
        text = text.replace(known, name)
    check_golden("mistakes", re.sub(r"session-[0-9a-f-]{36}", "session-NEW", mask(text, session_id)))


def tell(sessionrun: Command, *words: str) -> str:
    """A command, its exit code, and its error."""
    done = sessionrun(*words)
    assert done.stdout == ""
    return f"{' '.join(words)}\n  {done.returncode}: {done.stderr.splitlines()[-1]}\n"


def test_list_passes_over_what_it_cannot_read(sessionrun: Command) -> None:
    session_id = sessionrun.finished(MIXED)
    broken = sessionrun.results / "session-broken"
    broken.mkdir()
    (broken / "spec.json").write_text("{")
    (sessionrun.results / "session-empty").mkdir()
    done = sessionrun("list", "--json")
    assert [view["session_id"] for view in json.loads(done.stdout)["sessions"]] == [session_id]
    assert done.stderr.startswith("sessionrun: warning: ")
    assert done.stderr.count("\n") == 1


# --- outputs ---

HOSTILE = (
    b"red \x1b[31m clear \x1b[2J title \x1b]0;x\x07 clip \x1b]52;c;QUFB\x07 c1 \xc2\x9b31m bell \x07 back \x08\x08"
    b" over\rwritten del \x7f bidi \xe2\x80\xae\xe2\x81\xa6 line \xe2\x80\xa8 nul \x00 bad \xff\xfe\xc3\n"
)
BIG_BYTES = 100_000_000


def run_outputs(sessionrun: Command, **outputs: bytes) -> str:
    """A finished session whose tasks put out exactly these bytes."""
    prompts = []
    for name, content in outputs.items():
        (sessionrun.cwd / f"{name}.bin").write_bytes(content)
        prompts.append({"id": name, "prompt": f"cat {name}.bin  # {sha256(content).hexdigest()}"})
    return sessionrun.finished({"prompts": prompts})


def raw(sessionrun: Command, *words: str) -> bytes:
    """Standard output of the command, as bytes."""
    done = sessionrun(*words)
    assert done.returncode == 0, done.stderr
    return done.stdout.encode("utf-8", "surrogateescape")


# --- tails ---


@pytest.mark.parametrize(
    ("content", "lines", "tail"),
    [
        (b"", 3, b""),
        (b"a\nb\nc\n", 0, b""),
        (b"a\nb\nc\n", 1, b"c\n"),
        (b"a\nb\nc\n", 99, b"a\nb\nc\n"),
        (b"a\nb\nc", 2, b"b\nc"),
        (b"a\r\nb\r\nc\r\n", 2, b"b\r\nc\r\n"),
        (b"\n\n\n", 2, b"\n\n"),
        (b"one line without an end", 1, b"one line without an end"),
        (b"x" * 600_000 + b"\n", 1, b"x" * 600_000 + b"\n"),
        (b"head\n" + b"x" * 600_000, 1, b"x" * 600_000),
        (b"y" * 262_143 + b"\n" + b"x" * 262_144, 1, b"x" * 262_144),
        (b"y" * 10 + b"\n" + b"x" * 262_143 + b"\n", 1, b"x" * 262_143 + b"\n"),
    ],
    ids=range(12),
)
def test_the_last_lines_of_a_file(tmp_path: Path, content: bytes, lines: int, tail: bytes) -> None:
    path = tmp_path / "out"
    path.write_bytes(content)
    assert b"".join(iterate_tail(path, lines)) == tail


def test_what_is_no_file_has_no_output(tmp_path: Path) -> None:
    """A task may replace its own output; a reader neither follows it anywhere nor hangs."""
    secret = tmp_path / "secret"
    secret.write_text("secret")
    (tmp_path / "link").symlink_to(secret)
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    for name in ("link", "fifo", "folder", "missing"):
        assert list(iterate_chunks(tmp_path / name)) == list(iterate_tail(tmp_path / name, None)) == []
        assert find_tail(tmp_path / name, 5) == 0


def test_results_tail(sessionrun: Command) -> None:
    session_id = run_outputs(
        sessionrun, lf=b"1\n2\n3\n", none=b"1\n2\n3", crlf=b"1\r\n2\r\n", giant=b"z" * 300_000
    )
    done = raw(sessionrun, "results", session_id, "--tail", "2").decode()
    for name, tail in (("lf", "2\n3\n"), ("none", "2\n3\n"), ("crlf", "1\r\n2\r\n")):
        assert re.search(rf"\n\S+ {name} succeeded: cat {name}.bin .*\n{tail}\n", done)
    assert done.endswith("\n" + "z" * 300_000 + "\n")
    record = sessionrun.load("results", session_id, "lf", "--tail", "1")
    assert [task["text"] for task in record["tasks"]] == ["3\n"]


def test_results_raw(sessionrun: Command) -> None:
    config = '[agents.replay]\nargv = ["sh", "{prompt_file}"]\nprompt_kind = "script"\noutput = "codex"\n'
    (sessionrun.cwd / "sessionrun.toml").write_text(config)
    stream = b'{"type":"thread.started","thread_id":"t-1"}\n\xff noise\x1b[2J\n'
    stream += b'{"type":"item.completed","item":{"type":"agent_message","text":"hi"}}\n{"type":"turn.completed"}'
    (sessionrun.cwd / "stream").write_bytes(stream)
    plan = [{"id": "a", "prompt": "cat stream", "agent": "replay"}, {"id": "b", "prompt": "printf plain"}]
    session_id = sessionrun.start({"prompts": plan})
    sessionrun.wait(session_id)
    assert raw(sessionrun, "results", session_id, "a", "--raw") == stream
    assert raw(sessionrun, "results", session_id, "--raw") == stream + b"plain"
    assert raw(sessionrun, "results", session_id, "a", "--raw", "--tail", "1") == b'{"type":"turn.completed"}'
    assert [task["text"] for task in sessionrun.load("results", session_id)["tasks"]] == ["hi", "plain"]
    refused = sessionrun("results", session_id, "--raw", "--json")
    assert refused.returncode == 2
    assert "--raw" in json.loads(refused.stdout or refused.stderr)["error"]["message"]
    with Terminal([*sessionrun.argv, "results", session_id, "--raw"], sessionrun.cwd) as terminal:
        assert terminal.finish() == 0
    assert b"\\xff noise\\x1b[2J" in terminal.output


# --- byte for byte, and harmless ---


def test_bytes_are_not_touched_off_a_terminal(sessionrun: Command) -> None:
    session_id = run_outputs(sessionrun, a=HOSTILE, b=b"no line end", c=b"")
    block = raw(sessionrun, "results", session_id)
    assert re.search(
        rb" a succeeded: .*\n" + re.escape(HOSTILE) + rb"\n\S+ b succeeded: .*\nno line end\n\n", block
    )
    block = raw(sessionrun, "--results", session_id)
    assert b"-" * 30 + b"\n" + HOSTILE + b"\nTask 2 (ID: b):\n" in block
    assert b"no line end\n\nTask 3 (ID: c):\n" + b"-" * 30 + b"\n" in block
    assert raw(sessionrun, "logs", session_id, "a") == HOSTILE
    assert raw(sessionrun, "logs", session_id, "b") == b"no line end"
    assert raw(sessionrun, "logs", session_id) == b"[a] " + HOSTILE + b"[b] no line end\n"


def test_json_shows_bytes_that_are_no_text_as_escapes(sessionrun: Command) -> None:
    cut = b"x" * (256 * 1024 - 1) + "\u20ac".encode() * 3  # in the middle of a character, where a piece ends
    session_id = run_outputs(sessionrun, a=HOSTILE, half=b"\xe2\x82", cut=cut)
    text = HOSTILE.decode("utf-8", "backslashreplace")
    a, half, whole = sessionrun.load("results", session_id)["tasks"]
    assert (a["text"], half["text"], whole["text"]) == (text, "\\xe2\\x82", cut.decode())
    assert (a["output"], a["stderr"], a["stderr_text"]) == ("task-a.txt", "task-a.err", "")
    lines = [json.loads(line) for line in raw(sessionrun, "logs", session_id, "a", "--json").splitlines()]
    assert lines == [{"schema_version": 2, "id": "a", "stream": "stdout", "text": text}]


@pytest.mark.parametrize("verb", ["results", "logs"])
def test_a_terminal_gets_nothing_that_steers_it(sessionrun: Command, verb: str) -> None:
    session_id = run_outputs(sessionrun, a=HOSTILE + b"crlf\r\nlast\n")
    with Terminal([*sessionrun.argv, verb, session_id], sessionrun.cwd) as terminal:
        assert terminal.finish() == 0
    shown = terminal.output.decode()  # all of it is UTF-8
    allowed = set("\r\n")
    assert not {char for char in shown if ord(char) < 32 or 127 <= ord(char) < 160} - allowed
    assert not set("\u202e\u2066\u2028") & set(shown)
    assert "clip \\x1b]52;c;QUFB\\x07 c1 \\x9b31m" in shown
    assert "bad \\xff\\xfe\\xc3" in shown
    assert "crlf\r\nlast" in shown.replace("\r\r", "\r")


def test_lines_that_end_in_cr_lf_stay_whole_behind_the_names_of_tasks(sessionrun: Command) -> None:
    session_id = run_outputs(sessionrun, a=b"dos\r\n", b=b"dos\r\n")
    with Terminal([*sessionrun.argv, "logs", session_id], sessionrun.cwd) as terminal:
        assert terminal.finish() == 0
    assert terminal.output.count(b"dos\r") == 2 and b"x0d" not in terminal.output


# --- logs ---


def test_logs_n_and_streams(sessionrun: Command) -> None:
    plan = {"prompts": [{"id": "a", "prompt": "seq 5; echo oops >&2"}, {"id": "b", "prompt": "echo b"}]}
    session_id = sessionrun.finished(plan)
    assert raw(sessionrun, "logs", session_id, "a", "-n", "2") == b"4\n5\noops\n"
    assert raw(sessionrun, "logs", session_id, "-n", "1") == b"[a] 5\n[a] oops\n[b] b\n"
    assert raw(sessionrun, "logs", session_id, "a", "-n", "0") == b""
    streams = [
        json.loads(line)["stream"] for line in raw(sessionrun, "logs", session_id, "a", "--json").split(b"\n")[:-1]
    ]
    assert streams == ["stdout"] * 5 + ["stderr"]
    assert sessionrun.load("results", session_id, "a")["tasks"][0]["stderr_text"] == "oops\n"


def test_logs_follow_to_the_end(sessionrun: Command) -> None:
    prompt = "echo first; while ! [ -e go ]; do sleep 0.02; done; echo second; printf third"
    session_id = sessionrun.start({"prompts": [{"id": "a", "prompt": prompt}, {"id": "b", "prompt": "echo b"}]})
    tag = b"[a] "
    with sessionrun.popen("logs", "-f", session_id, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        seen = b""
        while tag + b"first\n" not in seen:
            seen += os.read(process.stdout.fileno(), 1000)
        assert process.poll() is None
        (sessionrun.cwd / "go").touch()
        seen += process.stdout.read()
        assert process.wait(60) == 0
    assert tag + b"second\n" + tag + b"third" in seen.replace(b"[b] b\n", b"")  # which may come in between


def test_logs_begin_anew_with_another_attempt(sessionrun: Command) -> None:
    prompt = "if [ $SESSIONRUN_ATTEMPT = 1 ]; then seq 100; exit 1; fi; echo anew"
    session_id = sessionrun.start({"prompts": [{"id": "a", "prompt": prompt, "retries": 1}]})
    with sessionrun.popen("logs", "-f", session_id, stdout=subprocess.PIPE) as process:
        output, _ = process.communicate(timeout=60)
    assert output.endswith(b"anew\n")


# --- readers that leave, and disks that are full ---


def write_to_full(sessionrun: Command, *words: str, stream: str = "stdout") -> tuple[int, str]:
    """Run it with a stream on a full disk: the exit code, and what came on the other one."""
    other = "stderr" if stream == "stdout" else "stdout"
    with open("/dev/full", "wb") as full:
        streams: dict[str, Any] = {stream: full, other: subprocess.PIPE, "stdin": subprocess.DEVNULL}
        process = sessionrun.popen(*words, **streams)
        out, errors = process.communicate(timeout=60)
    return process.returncode, (out or errors).decode()


@pytest.mark.parametrize(
    "words", ["results", "logs", "list", *slow("results --json", "status", "status --json", "wait")]
)
def test_a_reader_that_leaves_and_a_closed_stream_are_no_errors_and_a_full_disk_is_one(
    sessionrun: Command, words: str
) -> None:
    run_outputs(sessionrun, a=b"line\n" * 200_000)
    code, errors = write_to_full(sessionrun, *words.split())
    assert (code, errors.count("\n")) == (3, 1) and "No space left on device" in errors
    read_fd, write_fd = os.pipe()
    os.close(read_fd)  # the pipe has no reader from the start, so every write fails
    process = sessionrun.popen(*words.split(), stdout=write_fd, stderr=subprocess.PIPE)
    os.close(write_fd)
    _, told = process.communicate(timeout=60)
    assert (process.returncode, told) == (0, b"")
    command = " ".join([*sessionrun.argv, words, ">&-"])
    done = subprocess.run(["sh", "-c", command], cwd=sessionrun.cwd, stderr=subprocess.PIPE, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("words", [[], ["-q"], ["--json"]])
def test_a_session_whose_id_cannot_be_told_is_named_on_standard_error(
    sessionrun: Command, words: list[str]
) -> None:
    (sessionrun.cwd / "plan.json").write_text('["true"]')
    code, errors = write_to_full(sessionrun, "--agent", "shell", *words, "plan.json")
    assert code == 0, "a caller that took it for a failed start would start the work again"
    session_id = sessionrun.status("last")["session_id"]
    assert errors.splitlines()[-1] == (
        "sessionrun: warning: cannot write standard output: No space left on device; "
        f"session {session_id} was started and runs"
    )
    assert sessionrun.wait(session_id)["outcome"] == "succeeded"


def test_a_full_standard_error_is_no_failed_start_and_sync_has_its_own_code(sessionrun: Command) -> None:
    (sessionrun.cwd / "plan.json").write_text('["exit 3"]')
    for stream in ("stderr", "stdout"):
        code, text = write_to_full(sessionrun, "--sync", "--agent", "shell", "plan.json", stream=stream)
        assert (code, sessionrun.status("last")["session_id"][:8] in text) == (1, True)


# --- big ---


def measure(sessionrun: Command, *words: str) -> tuple[int, int, int]:
    """Run it with its output thrown away: the exit code, the peak of memory (bytes), what it read (bytes).

    Only Linux tells how much a process read; elsewhere that is 0.

    A small process in between does the counting: what the tests' own process starts by vfork counts with the
    memory of that.
    """
    done = subprocess.run(
        [sys.executable, "-c", _MEASURE, *sessionrun.argv, *words],
        cwd=sessionrun.cwd,
        capture_output=True,
        check=True,
    )
    code, peak, read = json.loads(done.stdout)
    return code, peak * 1024, read


_MEASURE = """
import json, os, resource, subprocess, sys
done = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
mine = "/proc/self/io"  # proc(5): what a process read counts for its parent once that has waited for it
lines = dict(line.split(": ") for line in open(mine).read().splitlines()) if os.path.exists(mine) else {}
print(json.dumps([done.returncode, used.ru_maxrss, int(lines.get("rchar", 0))]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("prompt", ["yes 'a line of some length that repeats'", "tr '\\0' x </dev/zero"])
def test_big_outputs_take_little_memory(sessionrun: Command, prompt: str) -> None:
    """Of many lines, and of one."""
    big = sessionrun.start({"prompts": [{"id": "a", "prompt": f"{prompt} | head -c {BIG_BYTES}"}]})
    sessionrun.wait(big)
    assert (sessionrun.directory(big) / "task-a.txt").stat().st_size == BIG_BYTES
    for words in ("results", "logs", "logs -f", "results --tail 3", "logs -n 3"):
        verb, *options = words.split()
        code, memory, read = measure(sessionrun, verb, big, *options)
        assert (code, memory < 64 * 1024 * 1024) == (0, True), words
        if "3" not in options:
            assert read > BIG_BYTES or not sys.platform.startswith("linux")
        elif "repeats" in prompt:
            assert read < BIG_BYTES / 2, words


def test_following_can_be_interrupted(sessionrun: Command) -> None:
    session_id = sessionrun.start({"prompts": ["echo begun; sleep 600"]})
    with Terminal([*sessionrun.argv, "logs", "-f", session_id], sessionrun.cwd) as terminal:
        terminal.read_until(b"begun")
        terminal.type(b"\x03")
        assert terminal.finish() == 130
    assert b"Traceback" not in terminal.output
    assert sessionrun.status(session_id)["status"] == "running"


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="macOS takes no limit of the address space")
def test_too_little_memory_is_one_line(sessionrun: Command) -> None:
    """A file that does not fit: no traceback."""
    (sessionrun.cwd / "large.json").write_bytes(b'["' + b"x" * (60 << 20) + b'"]')
    code = (
        "import resource, sys; from sessionrun.cli import main, run; from sessionrun.client import planning;"
        "used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize() + (80 << 20);"
        "resource.setrlimit(resource.RLIMIT_AS, (used, used)); sys.exit(main(sys.argv[1:]))"
    )
    argv = [sys.executable, "-c", code, "--dry-run", "--agent", "shell", "large.json"]
    done = subprocess.run(argv, cwd=sessionrun.cwd, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("sessionrun: error: out of memory")
    assert done.stderr.count("\n") == 1
