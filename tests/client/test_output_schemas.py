"""`schema NAME`: what verbs print, and files of a session; all output in other tests is held against it, too."""

from __future__ import annotations

import json
from typing import Any

import pytest
from conftest import Command
from jsonschema import Draft202012Validator
from output_schemas import check, check_output

from sessionrun.cli.argv import VERBS
from sessionrun.client.schemas import NAMES, describe
from sessionrun.session.notifying import make_message

PLAN = {
    "prompts": [{"id": "a", "prompt": "echo a"}, {"id": "b", "prompt": "exit 7", "needs": ["a"], "retries": 1}]
}
MAY_BE_ABSENT = {"proof", "audit", "landing", "attempts", "telling", "hidden_tests"}
"""`explain` has the first four only of named tasks; only what failed has `telling`."""

WITHOUT_JSON = {"completion", "demo", "help", "man", "mcp", "report", "schema", "serve", "watch"}


def test_each_verb_with_json_has_one() -> None:
    assert set(VERBS) - WITHOUT_JSON == set(NAMES) - {"plan", "status.json", "summary", "notification", "error"}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_each_is_a_schema(name: str) -> None:
    Draft202012Validator.check_schema(describe(name))


def test_the_verb_prints_it(sessionrun: Command) -> None:
    for name in ("results", "error", "status.json"):
        for words in ((name,), (name, "--json")):
            done = sessionrun("schema", *words)
            assert json.loads(done.stdout) == json.loads(json.dumps(describe(name))), done.stderr
    wrong = sessionrun("schema", "reslts")
    assert wrong.returncode == 2 and "'results'" in wrong.stderr and wrong.stderr.count("\n") == 1


def test_files_and_notifications_fit(sessionrun: Command) -> None:
    session_id = sessionrun.finished(PLAN)
    folder = sessionrun.directory(session_id)
    for name in ("status.json", "summary"):
        check(name, json.loads((folder / name).read_bytes()))
    view = sessionrun.status(session_id)
    for event in ("completed", "failed"):
        check("notification", make_message(view, event, str(folder)))


@pytest.mark.parametrize("verb", ["status", "results", "explain", "list", "wait"])
def test_a_key_that_goes_comes_or_changes_its_type_is_seen(sessionrun: Command, verb: str) -> None:
    session_id = sessionrun.finished(PLAN)
    words = [verb, *{"list": [], "explain": [session_id, "b"]}.get(verb, [session_id]), "--json"]
    record = json.loads(sessionrun(*words).stdout)
    rows: list[dict[str, Any]] = record["sessions" if verb == "list" else "tasks"]
    for key in list(rows[0]):
        kept = rows[0].pop(key)
        if key not in MAY_BE_ABSENT:
            with pytest.raises(AssertionError, match=f"schema {verb}"):
                check_output(words, json.dumps(record))
        rows[0][key] = {"x": [None]}
        if key not in ("labels", "usage_by_model", "usage_by_agent"):
            with pytest.raises(AssertionError, match=f"schema {verb}"):
                check_output(words, json.dumps(record))
        rows[0][key] = kept
    rows[0]["unheard_of"] = 1
    with pytest.raises(AssertionError, match="unheard_of"):
        check_output(words, json.dumps(record))
