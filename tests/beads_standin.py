"""A stand-in for Beads' program, written from its documents: the commands, options and JSON of `bd` that we use.

It lets a blocked bead be claimed, as `bd` does.  An old version has no `update --claim` and no `list --all`.
Tests call `answer`; one puts this file on PATH by the name `bd`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

Beads = dict[str, dict[str, Any]]
STORE = ".beads/standin.json"


class Failed(Exception):
    """The program ends with an error."""


def answer(words: Sequence[str], top: Path, *, old: bool = False) -> tuple[int, str, str]:
    """What a command does to the beads of a directory: exit code, standard output and standard error."""
    store = top / STORE
    try:
        beads: Beads = json.loads(store.read_text()) if store.exists() else {}
        value = obey(beads, [word for word in words if word != "--json"], old=old)
    except (Failed, ValueError) as error:
        return 1, "", json.dumps({"error": str(error)})
    beside = store.with_name(f".{store.name}.{os.getpid()}")
    beside.write_text(json.dumps(beads))
    beside.replace(store)  # whoever reads meanwhile sees the old ones
    return 0, json.dumps(value), ""


def obey(beads: Beads, words: list[str], *, old: bool) -> Any:
    end = words.index("--") if "--" in words else len(words)
    verb, *before = words[:end]
    pairs = [word[2:].partition("=") for word in before if word.startswith("--")]
    options = {name: value for name, _, value in pairs}
    names = [word for word in before if not word.startswith("--")] + words[end + 1 :]
    if old and (verb, "claim" in options, "all" in options) in (("update", True, False), ("list", False, True)):
        fail("unknown flag: --claim" if verb == "update" else "unknown flag: --all")
    if verb == "ready":
        open_words = ("open", "in_progress") if old else ("open",)  # an old version also lists what is in progress
        found = [bead for bead in beads.values() if bead["status"] in open_words and is_ready(beads, bead)]
        return [{key: bead[key] for key in ("id", "title", "status")} for bead in found]
    return do(beads, verb, names, options)


def do(beads: Beads, verb: str, names: list[str], options: dict[str, str]) -> Any:
    match verb:
        case "create":
            return create(beads, names, options)
        case "update":
            return update(find(beads, names[0]), options)
        case "close":
            find(beads, names[0]).update(status="closed", close_reason=options.get("reason", ""))
        case "reopen":
            find(beads, names[0]).update(status="open")
        case "dep":
            change_needs(beads, *names)
        case "comments":
            find(beads, names[1])["comments"].append({"text": names[2]})
        case "delete":
            del beads[find(beads, names[0])["id"]]
        case "show":
            return [whole(beads, find(beads, name)) for name in names]
        case "list":
            return [{key: bead[key] for key in ("id", "title", "status", "issue_type")} for bead in beads.values()]
        case _:
            fail(f'unknown command "{verb}" for "bd"')
    return {}


def fail(message: str) -> NoReturn:
    raise Failed(message)


def find(beads: Beads, name: str) -> dict[str, Any]:
    return beads[name] if name in beads else fail(f"no issue found matching {name!r}")


def blockers(beads: Beads, bead: dict[str, Any]) -> list[str]:
    return [need for need in bead["blocks"] if beads[need]["status"] != "closed"]


def is_ready(beads: Beads, bead: dict[str, Any]) -> bool:
    while bead["parent"]:
        if blockers(beads, bead):
            return False
        bead = beads[bead["parent"]]
    return not blockers(beads, bead)


def brief(beads: Beads, name: str, kind: str) -> dict[str, Any]:
    return {"id": name, "title": beads[name]["title"], "status": beads[name]["status"], "dependency_type": kind}


def whole(beads: Beads, bead: dict[str, Any]) -> dict[str, Any]:
    name = bead["id"]
    up = [brief(beads, need, "blocks") for need in bead["blocks"]]
    up += [brief(beads, bead["parent"], "parent-child")] if bead["parent"] else []
    down = [brief(beads, one["id"], "parent-child") for one in beads.values() if one["parent"] == name]
    down += [brief(beads, one["id"], "blocks") for one in beads.values() if name in one["blocks"]]
    plain = {key: value for key, value in bead.items() if key != "blocks" and value != ""}
    return {**plain, "dependencies": up, "dependents": down}


def create(beads: Beads, names: list[str], options: dict[str, str]) -> Any:
    parent = options.get("parent", "")
    number = max((bead["number"] for bead in beads.values()), default=0) + 1
    name = f"{parent}.{number}" if parent else f"bd-{number}"
    needs = [need for need in options.get("deps", "").split(",") if need]
    for need in needs:
        find(beads, need)
    beads[name] = {
        "id": name,
        "number": number,
        "title": names[0],
        "description": options.get("description", ""),
        "status": "open",
        "priority": int(options.get("priority", 2)),
        "issue_type": options.get("type", "task"),
        "assignee": "",
        "created_at": f"2026-01-01T00:{number:04}",
        "parent": parent,
        "blocks": needs,
        "comments": [],
    }
    return beads[name]


def update(bead: dict[str, Any], options: dict[str, str]) -> Any:
    if "claim" in options:
        if bead["assignee"]:
            fail(f"error claiming {bead['id']}: issue already claimed by {bead['assignee']}")
        bead.update(assignee=options["actor"], status="in_progress")
    for key in ("title", "description", "status", "assignee", "parent"):
        if key in options:
            bead[key] = options[key]
    if "priority" in options:
        bead["priority"] = int(options["priority"])
    return [bead]


def change_needs(beads: Beads, verb: str, name: str, need: str) -> None:
    bead = find(beads, name)
    if verb == "remove":
        bead["blocks"].remove(need)
        return
    seen, left = set(), [need]
    while left:
        one = left.pop()
        seen.add(one)
        left += [more for more in find(beads, one)["blocks"] if more not in seen]
    if name in seen:
        fail("adding dependency would create a cycle")
    bead["blocks"].append(need)


if __name__ == "__main__":
    code, out, err = answer(sys.argv[1:], Path(os.getcwd()))
    print(out)
    print(err, file=sys.stderr)
    sys.exit(code)
