"""Sessions of many tasks: their two big files are made and read some tasks at a time, and nothing else changes."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import orjson
import pytest
from simulation import make_session

from sessionrun.engine.status import project, project_live
from sessionrun.model.spec import AgentSpec, SessionSpec, TaskSpec
from sessionrun.session.history import begin
from sessionrun.store import records, seal
from sessionrun.store.files import replace_file

HOSTILE = '}],"tasks":[{"id":"x"},{"id":"y"}'


def spec_of(size: int) -> SessionSpec:
    """Prompts that look like the ends of tasks, and labels of which one is `id`."""
    tasks = [TaskSpec(f"t{n}", (HOSTILE, f"echo {n}"), labels={"id": "a", "b": HOSTILE}) for n in range(size)]
    return replace(make_session(tasks), agents={"shell": AgentSpec("shell", ("/bin/sh",))})


@pytest.mark.parametrize("size", [1, 2, 199, 200, 201, 401])
def test_a_spec_is_read_as_it_was_written(size: int) -> None:
    spec = spec_of(size)
    record = {**orjson.loads(orjson.dumps(spec)), "schema_version": 1}
    for content in (
        orjson.dumps(record),
        orjson.dumps(record, option=orjson.OPT_INDENT_2),  # as a person's editor may leave it
        orjson.dumps(
            {**record, "tasks": [{**task, "later": [{"k": 1}, {"id": "z"}]} for task in record["tasks"]]}
        ),
        orjson.dumps({"tasks": record.pop("tasks"), **record}),
    ):
        assert records.parse_spec(content) == spec


def test_a_wrong_byte_in_a_later_part_is_told() -> None:
    content = orjson.dumps({**orjson.loads(orjson.dumps(spec_of(450))), "schema_version": 1})
    for number in (0, 250, 449):
        name = b'"t%d"' % number
        with pytest.raises(ValueError):
            records.parse_spec(content.replace(name, name[:-1]))
        with pytest.raises(
            ValueError,
            match=rf"tasks\[{number}\]\.id has a value that does not belong there: expected `str` matching",
        ):
            records.parse_spec(content.replace(name, b'"a/b"'))


@pytest.mark.parametrize("size", [0, 1, 200, 401])
def test_a_status_has_the_same_bytes_in_pieces(size: int, tmp_path: Path) -> None:
    state = begin(spec_of(size))
    body = orjson.dumps(project(state))[:-1]
    pieces = list(seal.seal_by_pieces(project_live(state)))
    assert b"".join(pieces)[: len(body)] == body
    assert len(pieces) == 3 + -(-size // seal.TASKS_OF_A_PIECE)
    status = seal.parse_sealed(b"".join(pieces))
    assert status is not None and status == orjson.loads(body + b"}")
    replace_file(tmp_path / "status.json", iter(pieces), durable=False)
    assert (tmp_path / "status.json").read_bytes() == b"".join(pieces)


THREADS = """
import sys, threading
from dataclasses import make_dataclass
from sessionrun.store.codec import build
sys.setswitchinterval(1e-6)
for number in range(40):
    record, value = make_dataclass("Innermost", [("n", int)]), {"n": 1}
    for depth in range(12):
        record, value = make_dataclass(f"At{depth}", [("a", record), ("b", int)]), {"a": value, "b": 1}
    begin, made = threading.Barrier(4), []
    def work():
        begin.wait()
        made.append(build(record, value))
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 4
"""


def test_threads_may_read_the_first_record_of_a_class_at_once() -> None:
    """As those of `serve` and `mcp` do: without a lock the process dies of it."""
    done = subprocess.run([sys.executable, "-c", THREADS], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
