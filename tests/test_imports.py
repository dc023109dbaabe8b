"""Who may import whom, and how big things may grow: the rules of the package's layout, read off the source."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest
from conftest import Command

import sessionrun as package

ROOT = Path(package.__file__).parent
MAX_MODULE = 400
MAX_FUNCTION = 80
LONG_FUNCTION = 60
LONG_FUNCTIONS: set[str] = set()
"""Functions of more than `LONG_FUNCTION` lines that were looked at and found to be best as they are."""

PURE = (
    "errors",
    "shapes",
    "reasons",
    "durations",
    "keys",
    "brief",
    "places",
    "usage",
    "ends",
    "model",
    "turns",
    "validation",
    "events",
    "orders",
    "transitions",
    "ready",
    "budget",
    "state",
    "handed",
    "steps",
    "providers",
    "holds",
    "control",
    "spending",
    "fold",
    "scheduler",
    "status",
)
HARMLESS = {
    "__future__",
    "collections",
    "collections.abc",
    "dataclasses",
    "datetime",
    "functools",
    "heapq",
    "itertools",
    "operator",
    "re",
    "typing",
    "zlib",
}
CONTROL_VERBS = ("cancel", "retry", "hold", "release")
READER_VERBS = (
    "status",
    "results",
    "list",
    "overview",
    "wait",
    "logs",
    "explain",
    "cost",
    "diff",
    "clean",
    "doctor",
    "agents",
)
NOT_FOR_READERS = (
    "asyncio",
    "daemon",
    "filelock",
    "psutil",
    "rich",
    "tabulate",
    "yaml",
    "sessionrun.detach",
    "sessionrun.detached",
    "sessionrun.dialects",
    "sessionrun.executors",
    "sessionrun.scheduler",
    "sessionrun.supervisor",
)
THEIR_WORDS = {"sessionrun.agents.codex": {"item"}}
"""Words of a foreign format, in the module that reads it."""

BANNED = {"manager", "handler", "helper", "helpers", "util", "utils", "data", "info", "item"}


@dataclass
class Module:
    """One module's source and the modules it names: when it is imported, and at all."""

    name: str
    path: Path
    tree: ast.Module
    at_import: set[str] = field(default_factory=set)
    ever: set[str] = field(default_factory=set)


@cache
def modules() -> dict[str, Module]:
    """All modules of the package, by name."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = ("sessionrun", *path.relative_to(ROOT).with_suffix("").parts)
        name = ".".join(part for part in parts if part != "__init__")
        found[name] = Module(name, path, ast.parse(path.read_text(), str(path)))
    for module in found.values():
        for node, lazy, typing_only in iterate_imports(module.tree):
            names = resolve(node, set(found))
            if not typing_only:
                module.ever |= names
                module.at_import |= set() if lazy else names
    return found


def iterate_imports(
    tree: ast.AST, *, lazy: bool = False, typing_only: bool = False
) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool, bool]]:
    """Every import, whether it waits for a call, and whether only type checkers follow it."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield node, lazy, typing_only
            continue
        inside = lazy or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        checking = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        yield from iterate_imports(node, lazy=inside, typing_only=typing_only or checking)


def resolve(node: ast.Import | ast.ImportFrom, ours: set[str]) -> set[str]:
    """The modules that an import statement names; `from package import module` names the module."""
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names}
    assert node.level == 0, "imports are absolute"
    assert node.module is not None
    names = {f"{node.module}.{alias.name}" for alias in node.names}
    return (names & ours) or {node.module}


def belongs(name: str, *families: str) -> bool:
    """Whether a module is one of these or lies within one."""
    return any(name == family or name.startswith(f"{family}.") for family in families)


def ours_of(names: set[str]) -> set[str]:
    return {name for name in names if belongs(name, "sessionrun")}


def within(family: str) -> list[Module]:
    found = [module for module in modules().values() if belongs(module.name, family)]
    assert found, family
    return found


@pytest.mark.parametrize("name", PURE)
def test_pure_modules_know_no_files_clocks_or_processes(name: str) -> None:
    module = modules()[f"sessionrun.{name}"]
    assert ours_of(module.ever) <= {f"sessionrun.{one}" for one in PURE}
    assert module.ever - ours_of(module.ever) <= HARMLESS


def test_the_order_of_the_pure_modules() -> None:
    """Each imports only what stands before it; `status` and `scheduler` know nothing of each other."""
    for place, name in enumerate(PURE):
        before = {f"sessionrun.{one}" for one in PURE[:place]} | {"sessionrun.status"} - {f"sessionrun.{name}"}
        assert ours_of(modules()[f"sessionrun.{name}"].ever) <= before, name
    assert "sessionrun.scheduler" not in modules()["sessionrun.status"].ever
    for name in PURE[:-1]:
        assert "sessionrun.status" not in modules()[f"sessionrun.{name}"].ever


@pytest.mark.parametrize(
    ("family", "allowed"),
    [
        ("sessionrun.crashpoint", []),
        (
            "sessionrun.journal",
            ["sessionrun.crashpoint", "sessionrun.errors", "sessionrun.regular", "sessionrun.reserve"],
        ),
        ("sessionrun.regular", []),
        ("sessionrun.outside", ["sessionrun.crashpoint", "sessionrun.errors", "sessionrun.regular"]),
        ("sessionrun.reserve", ["sessionrun.regular"]),
        ("sessionrun.jobfiles", ["sessionrun.errors", "sessionrun.regular"]),
        ("sessionrun.ledger", []),
        ("sessionrun.locks", ["sessionrun.regular"]),
        ("sessionrun.processes", []),
        (
            "sessionrun.recovery",
            [
                "sessionrun.events",
                "sessionrun.executors",
                "sessionrun.ledger",
                "sessionrun.model",
                "sessionrun.state",
            ],
        ),
        (
            "sessionrun.keeper",
            [
                "sessionrun.keeper",
                "sessionrun.crashpoint",
                "sessionrun.errors",
                "sessionrun.journal",
                "sessionrun.ledger",
                "sessionrun.locks",
                "sessionrun.processes",
                "sessionrun.regular",
                "sessionrun.reserve",
            ],
        ),
        ("sessionrun.inbox", ["sessionrun.errors", "sessionrun.regular", "sessionrun.store"]),
        ("sessionrun.index", ["sessionrun.regular", "sessionrun.store"]),
        (
            "sessionrun.accounts",
            [
                "sessionrun.agents.known",
                "sessionrun.index",
                "sessionrun.locks",
                "sessionrun.model",
                "sessionrun.providers",
                "sessionrun.reasons",
                "sessionrun.regular",
                "sessionrun.store",
            ],
        ),
        (
            "sessionrun.creation",
            [
                "sessionrun.errors",
                "sessionrun.locks",
                "sessionrun.model",
                "sessionrun.regular",
                "sessionrun.store",
            ],
        ),
        (
            "sessionrun.lookup",
            ["sessionrun.errors", "sessionrun.index", "sessionrun.store"],
        ),
        ("sessionrun.caches", ["sessionrun.shapes"]),
        ("sessionrun.damage", ["sessionrun.errors"]),
        (
            "sessionrun.records",
            [
                "sessionrun.caches",
                "sessionrun.events",
                "sessionrun.model",
                "sessionrun.shapes",
                "sessionrun.validation",
            ],
        ),
        (
            "sessionrun.hearsay",
            [
                "sessionrun.accounts",
                "sessionrun.events",
                "sessionrun.providers",
                "sessionrun.reasons",
                "sessionrun.state",
            ],
        ),
        (
            "sessionrun.sharing",
            [
                "sessionrun.accounts",
                "sessionrun.events",
                "sessionrun.hearsay",
                "sessionrun.inbox",
                "sessionrun.model",
                "sessionrun.providers",
                "sessionrun.state",
                "sessionrun.store",
            ],
        ),
        (
            "sessionrun.replay",
            [
                "sessionrun.damage",
                "sessionrun.events",
                "sessionrun.fold",
                "sessionrun.journal",
                "sessionrun.state",
                "sessionrun.status",
                "sessionrun.store",
            ],
        ),
        ("sessionrun.comparing", []),
        ("sessionrun.runfile", ["sessionrun.errors", "sessionrun.model"]),
        ("sessionrun.briefing", ["sessionrun.brief", "sessionrun.regular"]),
        (
            "sessionrun.answers",
            [
                "sessionrun.crashpoint",
                "sessionrun.answers",
                "sessionrun.agents",
                "sessionrun.brief",
                "sessionrun.briefing",
                "sessionrun.errors",
                "sessionrun.jobfiles",
                "sessionrun.model",
                "sessionrun.regular",
                "sessionrun.store",
            ],
        ),
        (
            "sessionrun.jobstatus",
            [
                "sessionrun.errors",
                "sessionrun.model",
                "sessionrun.outside",
                "sessionrun.regular",
                "sessionrun.store",
            ],
        ),
        (
            "sessionrun.views",
            [
                "sessionrun.creation",
                "sessionrun.errors",
                "sessionrun.jobstatus",
                "sessionrun.model",
                "sessionrun.outside",
                "sessionrun.regular",
                "sessionrun.runfile",
                "sessionrun.status",
                "sessionrun.store",
            ],
        ),
        ("sessionrun.git", ["sessionrun.errors"]),
        ("sessionrun.stopped", ["sessionrun.processes"]),
        ("sessionrun.living", ["sessionrun.processes", "sessionrun.ledger"]),
        (
            "sessionrun.explanation",
            [
                "sessionrun.budget",
                "sessionrun.events",
                "sessionrun.ledger",
                "sessionrun.model",
                "sessionrun.state",
                "sessionrun.status",
            ],
        ),
        (
            "sessionrun.workspaces",
            [
                "sessionrun.workspaces",
                "sessionrun.git",
                "sessionrun.model",
                "sessionrun.errors",
                "sessionrun.jobfiles",
                "sessionrun.regular",
                "sessionrun.store",
            ],
        ),
        (
            "sessionrun.dialects",
            [
                "sessionrun.dialects",
                "sessionrun.durations",
                "sessionrun.model",
                "sessionrun.validation",
                "sessionrun.errors",
                "sessionrun.reasons",
            ],
        ),
        (
            "sessionrun.agents",
            [
                "sessionrun.agents",
                "sessionrun.model",
                "sessionrun.events",
                "sessionrun.errors",
                "sessionrun.regular",
            ],
        ),
        (
            "sessionrun.outcome",
            ["sessionrun.agents", "sessionrun.model", "sessionrun.events", "sessionrun.reasons"],
        ),
        (
            "sessionrun.store",
            [
                "sessionrun.caches",
                "sessionrun.crashpoint",
                "sessionrun.damage",
                "sessionrun.errors",
                "sessionrun.model",
                "sessionrun.events",
                "sessionrun.journal",
                "sessionrun.locks",
                "sessionrun.creation",
                "sessionrun.inbox",
                "sessionrun.index",
                "sessionrun.records",
                "sessionrun.regular",
            ],
        ),
    ],
)
def test_what_a_part_may_know(family: str, allowed: list[str]) -> None:
    for module in within(family):
        for name in ours_of(module.ever):
            assert belongs(name, *allowed), f"{module.name} imports {name}"


@pytest.mark.parametrize(
    ("family", "forbidden"),
    [
        ("sessionrun.dialects", ["subprocess", "socket", "time", "click", "logging", "pathlib", "threading"]),
        ("sessionrun.agents", ["subprocess", "socket", "time", "click", "logging"]),
        (
            "sessionrun.executors",
            ["sessionrun.scheduler", "sessionrun.store", "sessionrun.fold", "sessionrun.cli"],
        ),
        (
            "sessionrun.supervisor",
            [
                "sessionrun.executors.local",
                "sessionrun.agents",
                "sessionrun.dialects",
                "sessionrun.detach",
                "click",
            ],
        ),
        ("sessionrun.config", ["sessionrun.store", "sessionrun.cli", "click"]),
    ],
)
def test_what_a_part_may_not_know(family: str, forbidden: list[str]) -> None:
    for module in within(family):
        for name in module.ever:
            assert not belongs(name, *forbidden), f"{module.name} imports {name}"


@pytest.mark.parametrize(
    ("family", "only"),
    [
        ("sessionrun.detach", {"sessionrun.cli.run", "sessionrun.cli.control", "sessionrun.cli.resume"}),
        ("sessionrun.supervisor", {"sessionrun.detached"}),
        ("sessionrun.sharing", {"sessionrun.detached"}),
        ("sessionrun.executors.local", {"sessionrun.detached"}),
        ("daemon", {"sessionrun.detach"}),
        ("rich", {"sessionrun.cli.progress"}),
        ("tabulate", {"sessionrun.cli.render"}),
        ("yaml", {"sessionrun.dialects.strict_yaml"}),
        ("platformdirs", {"sessionrun.config", "sessionrun.index", "sessionrun.workspaces.repository"}),
    ],
)
def test_who_alone_names_a_module(family: str, only: set[str]) -> None:
    inside = {module.name for module in modules().values() if belongs(module.name, family)}
    users = {module.name for module in modules().values() if any(belongs(name, family) for name in module.ever)}
    assert users - inside == only


def test_the_command_line_is_used_by_nobody() -> None:
    for module in modules().values():
        if not belongs(module.name, "sessionrun.cli", "sessionrun.__main__"):
            assert not any(belongs(name, "sessionrun.cli", "click") for name in module.ever), module.name


@pytest.mark.parametrize("verb", READER_VERBS + CONTROL_VERBS)
def test_what_a_reader_imports_at_start(verb: str) -> None:
    seen: set[str] = set()
    queue = ["sessionrun.cli", f"sessionrun.cli.{verb}"]
    while queue:
        name = queue.pop()
        if name not in seen:
            seen.add(name)
            queue += modules()[name].at_import if name in modules() else ()
    assert f"sessionrun.cli.{verb}" in seen
    assert not {name for name in seen if belongs(name, *NOT_FOR_READERS)}


@pytest.mark.parametrize("words", ["status --json", "list --json", "overview --json", "results", "logs"])
def test_what_a_poll_really_imports(sessionrun: Command, words: str) -> None:
    session_id = sessionrun.start({"prompts": ["true"]})
    sessionrun.wait(session_id)
    argv = [sys.executable, "-X", "importtime", *sessionrun.argv[1:], *words.split()]
    done = subprocess.run(argv, cwd=sessionrun.cwd, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "sessionrun.store" in imported
    assert not {name for name in imported if belongs(name, *NOT_FOR_READERS)}
    for name in (
        "logging",
        "socket",
        "tomllib",
        "sessionrun.fold",
        "sessionrun.events",
    ):
        assert name not in imported


# --- size and names ---


def iterate_functions() -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for module in modules().values():
        for node in ast.walk(module.tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield f"{module.name}.{node.name}", node


def test_modules_are_small_and_say_what_they_are() -> None:
    for module in modules().values():
        text = module.path.read_text()
        assert text.count("\n") <= MAX_MODULE, module.name
        assert ast.get_docstring(module.tree), module.name


def test_functions_are_small() -> None:
    for name, node in iterate_functions():
        assert node.end_lineno is not None
        length = node.end_lineno - node.lineno + 1
        assert length <= MAX_FUNCTION, name
        assert length <= LONG_FUNCTION or name in LONG_FUNCTIONS, name


def test_public_functions_say_what_they_do() -> None:
    for module in modules().values():
        classes = [
            node for node in module.tree.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
        ]
        for node in [*module.tree.body, *(member for one in classes for member in one.body)]:
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                is_obvious = ast.unparse(node.body[-1]) == "..."  # the name of a protocol's constant
                assert ast.get_docstring(node) or is_obvious, f"{module.name}.{node.name}"


def test_names_say_something() -> None:
    for module in modules().values():
        named = [module.name.rpartition(".")[2]]
        for node in ast.walk(module.tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                named.append(node.name)
            elif isinstance(node, ast.arg):
                named.append(node.arg)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                named.append(node.id)
        for name in named:
            words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower().split("_")
            assert not (BANNED - THEIR_WORDS.get(module.name, set())) & set(words), f"{module.name}: {name}"


def test_no_process_gets_a_shell_or_a_preexec_function() -> None:
    for module in modules().values():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Call):
                keywords = {keyword.arg for keyword in node.keywords}
                assert not keywords & {"shell", "preexec_fn"}, module.name
                assert ast.unparse(node.func) not in ("os.system", "os.popen"), module.name


def test_what_is_written_twice_for_speed_is_the_same() -> None:
    """A launch and a poll do without the modules that define these."""
    from sessionrun import caches, detach, model, status
    from sessionrun.events import SessionStarted, from_record, to_record

    assert caches.STATUS_VERSION == model.SCHEMA_VERSION
    assert caches.OUTCOMES == model.OUTCOMES
    assert {"queued", *status.PHASE_WORDS.values()} == set(caches.PHASES)
    record = detach._first_record()
    entry = from_record(record)
    assert isinstance(entry.event, SessionStarted)
    assert to_record(entry) == record
