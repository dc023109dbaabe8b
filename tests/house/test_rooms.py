"""Who may import whom, and what names and functions may be: the rules of the layout, read off the source.

That modules and functions say what they do, and that no process gets a shell, are rules of ruff (pyproject.toml).

The tables below are the rules.  An import counts wherever it stands: at the top, in a function, for type checkers.
"""

from __future__ import annotations

import ast
import gc
import pickle
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields
from functools import cache, cached_property
from graphlib import TopologicalSorter
from importlib import import_module
from pathlib import Path

import pytest

import sessionrun as package
from sessionrun.cli.argv import find_home
from sessionrun.engine.task import TaskState
from sessionrun.house import HOUSE, Business, load

pytestmark = pytest.mark.check

ROOT = Path(package.__file__).parent
MAX_FUNCTION = 60

AT_THE_TOP = {"sessionrun", "sessionrun.__main__", "sessionrun.api", "sessionrun.house"}
"""Files that lie in no room."""

CORE = ("model", "engine", "store", "keeper", "agents", "input", "git", "session", "client")
"""The rooms that know no business: they reach one only through the rows of `house`."""

ROOMS: dict[str, tuple[str, ...]] = {
    "model": (),
    "engine": ("model",),
    "store": ("model",),
    "keeper": ("model.errors", "store"),
    "agents": ("model", "store.files", "store.programs"),
    "input": ("model", "store.files", "store.index", "agents.table", "house"),
    "git": ("model", "store"),
    "session": ("model", "engine", "store", "keeper", "agents", "house"),
    "client": ("model", "engine", "store", "agents", "input", "git", "session", "house"),
    "walls": CORE[:-1],
    "worktrees": (*CORE, "walls"),
    "checks": (*CORE, "walls", "worktrees"),
    "landing": (*CORE, "walls", "worktrees"),
    "queue": CORE,
    "cluster": (*CORE, "walls", "worktrees"),
    "api": ("client", "model", "house", "store.session", "landing.merge", "worktrees.diff"),
    "doors": (
        "api",
        "client",
        "model",
        "house",
        "store.jobfiles",
        "store.requests",
        "store.session",
        "worktrees.diff",
    ),
    "cli": (
        *("client", "doors", "model", "house", "store.files", "store.session"),
        *("input.config", "input.given", "input.kinds", "input.rows", "input.settings"),
        *("walls.steps", "worktrees.diff", "worktrees.precache", "landing.merge"),
        *(
            "queue.claims",
            "queue.dispatch",
            "queue.open",
            "queue.split",
            "cluster.address",
            "cluster.machines",
        ),
    ),
    "house": (),
    "__main__": ("cli",),
}
"""What each room may import besides itself: rooms, or single modules of one."""

SEAMS = {
    "input": "formats reading rows",
    "session": "exports history job launch main maker shared",
    "client": "findings launch planning.additions planning.plan planning.preview reading.view schemas",
}
"""The modules of the core that read the table of the house, by room."""

FLOORS = 8
DOORS = ("sessionrun", "sessionrun.cli")
"""The packages whose `__init__` holds more than what the room is for: version, error boundary."""

KEEPER = {"model.errors", "store.files", "store.locks", "store.logs", "store.processes"}
"""All of ours that the keeper may know besides its own modules: it runs on the standard library alone."""

HARMLESS = {
    "__future__",
    "collections",
    "collections.abc",
    "dataclasses",
    "difflib",  # only where a message is made
    "datetime",
    "functools",
    "graphlib",
    "heapq",
    "itertools",
    "msgspec",  # its limits, which only annotations name
    "operator",
    "re",
    "types",
    "typing",
    "typing_extensions",  # of the type checkers: it is not installed with us
    "unicodedata",
    "zlib",
}
CONTROL_VERBS = ("cancel", "retry", "hold", "release", "set")
READER_VERBS = ("status", "results", "list", "wait", "logs", "explain", "cost", "diff", "clean", "doctor")
NOT_FOR_READERS = (
    "asyncio",
    "daemon",
    "filelock",
    "psutil",
    "rich",
    "tabulate",
    "yaml",
    "sessionrun.input.kinds",
    "sessionrun.engine.scheduler",
    "sessionrun.session.executor",
    "sessionrun.session.launch",
    "sessionrun.session.main",
    "sessionrun.session.supervisor",
)
_OF_GIT = ("subprocess", "tempfile", "hashlib", "sessionrun.git.git", "sessionrun.git.private")
NOT_AT_START: dict[tuple[str, ...], tuple[str, ...]] = {
    **{("cli", find_home(verb).partition(".")[2]): NOT_FOR_READERS for verb in READER_VERBS + CONTROL_VERBS},
    ("session.main",): (*_OF_GIT, "sessionrun.worktrees.environments.build", "sessionrun.landing.target"),
    ("client.planning.plan", "client.launch"): (*_OF_GIT, "random", "sessionrun.landing.target"),
    ("worktrees.worktree",): ("sessionrun.model.spec",),
    ("worktrees.release",): ("sessionrun.model.spec",),
}
"""What the modules of a program do without at their start: other processes need it, or rare functions."""

AGENTS = ("table", "verdict", "reading", "markers", "claude", "codex", "gemini", "opencode", "aider")

HANDED = tuple(
    path.stem for path in (ROOT / "input").glob("*.py") if path.stem not in ("__init__", "config", "given")
)
"""The modules of the input that are handed text and settings, and read no files."""

THEIR_WORDS = {"sessionrun.agents.codex": {"item"}}
"""Words of a foreign format, in the module that reads it."""

NAMELESS = {"told", "said"}
"""Names that do not name the thing."""

BANNED = {"manager", "handler", "helper", "helpers", "util", "utils", "data", "info", "item"}


@dataclass
class Module:
    """One module's source and the modules it names: when it is imported, and at all."""

    name: str
    path: Path
    tree: ast.Module
    at_import: set[str] = field(default_factory=set)
    ever: set[str] = field(default_factory=set)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All nodes of its tree: many tests look at them."""
        return list(ast.walk(self.tree))


@cache
def modules() -> dict[str, Module]:
    found = {}
    gc.disable()  # half of the time went to looking for circles in these trees
    for path in sorted(ROOT.rglob("*.py")):
        parts = ("sessionrun", *path.relative_to(ROOT).with_suffix("").parts)
        name = ".".join(part for part in parts if part != "__init__")
        found[name] = Module(name, path, ast.parse(path.read_text(), str(path)))
    gc.freeze()
    gc.enable()
    ours = set(found)
    for module in found.values():
        for node, lazy, typing_only in iterate_imports(module.tree):
            names = resolve(node, ours)
            module.ever |= names
            module.at_import |= set() if lazy or typing_only else names
    return found


def iterate_imports(
    tree: ast.AST, *, lazy: bool = False, typing_only: bool = False
) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool, bool]]:
    """Every import, whether it waits for a call, and whether only type checkers follow it."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.expr):
            continue  # most of a tree; an import is a statement
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield node, lazy, typing_only
            continue
        inside = lazy or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
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


def room_of(name: str) -> str:
    """``engine`` of ``sessionrun.engine.fold``; empty for the package itself."""
    return name.partition(".")[2].partition(".")[0]


def arrows(key: Callable[[str], str]) -> set[tuple[str, str]]:
    """Who imports whom, as the key names them; not the files at the top: version, program, table, public names."""
    found = set()
    for module in modules().values():
        for name in ours_of(module.ever):
            ends = key(module.name), key(name)
            if ends[0] != ends[1] and not {module.name, name} & AT_THE_TOP:
                found.add(ends)
    return found


def folder_of(name: str) -> str:
    """The folder of a room in which a module lies; a module that lies in none is one by itself."""
    parts = name.split(".")[:3]
    return ".".join(parts) if ROOT.joinpath(*parts[1:]).is_dir() else name


@pytest.mark.parametrize("room", ROOMS)
def test_what_a_room_may_know(room: str) -> None:
    allowed = [f"sessionrun.{name}" for name in (room, *ROOMS[room])] + ["sessionrun.__version__"]
    for module in within(f"sessionrun.{room}"):
        for name in ours_of(module.ever) - {"sessionrun"}:
            assert belongs(name, *allowed), f"{module.name} imports {name}"


@pytest.mark.parametrize("room", CORE)
def test_the_core_reaches_a_business_by_the_table_alone(room: str) -> None:
    """Also not in a function, and not for type checkers; only the seams read the table."""
    for module in within(f"sessionrun.{room}"):
        others = {room_of(name) for name in ours_of(module.ever)} - {"", room, "house"}
        assert others <= {*CORE}, f"{module.name} imports {others - {*CORE}}"
        reads = "sessionrun.house" in module.ever
        assert reads == (module.name.partition(f".{room}.")[2] in SEAMS.get(room, "").split()), module.name


def test_every_module_has_a_room() -> None:
    assert {room_of(name) for name in modules()} == {"", *ROOMS}
    for module in modules().values():
        if module.path.name == "__init__.py" and module.name not in DOORS:
            assert [type(node) for node in module.tree.body] == [ast.Expr], module.name


def test_only_cli_prints() -> None:
    for module in modules().values():
        if room_of(module.name) == "client":
            nodes = [node for node in module.nodes if isinstance(node, (ast.Name, ast.Attribute))]
            named = {ast.unparse(node) for node in nodes}
            assert not named & {"print", "sys.stdout", "sys.stderr"}, module.name


@pytest.mark.parametrize("key", [room_of, folder_of, str])
def test_there_are_no_circles(key: Callable[[str], str]) -> None:
    """A circle is an error, which names it; rooms stand on few floors."""
    below: dict[str, set[str]] = {}
    for above, other in arrows(key):
        below.setdefault(above, set()).add(other)
    sorter = TopologicalSorter(below)
    sorter.prepare()
    floors = 0
    while sorter.is_active():
        sorter.done(*sorter.get_ready())
        floors += 1
    assert key is not room_of or floors == FLOORS


def test_the_drawing_of_the_rooms_is_what_they_import() -> None:
    from test_documents import code_blocks  # which imports the rooms from here

    rooms = [room for room in ROOMS if f"sessionrun.{room}" not in AT_THE_TOP]
    imports = arrows(room_of)

    def draw(room: str, other: str) -> str:
        mark = "x" if other in ROOMS[room] else "(x)"
        return (mark if (room, other) in imports else "").center(len(other))

    width = max(map(len, rooms))
    lines = [" " * width + "".join(f"  {room}" for room in rooms[:-1])]
    lines += [room.ljust(width) + "".join(f"  {draw(room, other)}" for other in rooms[:-1]) for room in rooms]
    assert code_blocks("ARCHITECTURE.md", "text") == ["".join(f"{line.rstrip()}\n" for line in lines)]


@pytest.mark.parametrize("room", ["model", "engine"])
def test_pure_rooms_know_no_files_clocks_or_processes(room: str) -> None:
    for module in within(f"sessionrun.{room}"):
        assert module.ever - ours_of(module.ever) <= HARMLESS, module.name


def rules_of(row: Business) -> set[str]:
    """The module of a business's rules in the engine, and those of its room that this one needs."""
    found, queue = set[str](), [f"sessionrun.{row.rules.partition(':')[0]}"]
    while queue:
        name = queue.pop()
        if name not in found:
            found.add(name)
            queue += (other for other in modules()[name].ever if belongs(other, f"sessionrun.{row.name}"))
    return found


@pytest.mark.parametrize("row", [row for row in HOUSE if row.rules], ids=lambda row: row.name)
def test_the_rules_of_a_business_are_as_pure_as_the_engine(row: Business) -> None:
    for name in rules_of(row):
        module = modules()[name]
        assert module.ever - ours_of(module.ever) <= HARMLESS, name
        assert all(room_of(other) in ("model", "engine", row.name) for other in ours_of(module.ever)), name
    rules = load(row.rules)
    assert pickle.loads(pickle.dumps(rules)) == rules, "a state with it can be pickled"
    functions = [*filter(callable, rules), *rules.events.values()]
    for function in functions:
        assert getattr(import_module(function.__module__), function.__name__) is function
        assert belongs(function.__module__, f"sessionrun.{row.name}", "sessionrun.engine.state")


def test_the_keeper_stands_on_the_standard_library() -> None:
    for module in within("sessionrun.keeper"):
        for name in ours_of(module.ever):
            known = belongs(name, "sessionrun.keeper") or name.partition(".")[2] in KEEPER
            assert known, f"{module.name} imports {name}"
        others = {name.partition(".")[0] for name in module.ever - ours_of(module.ever)} - {"psutil"}  # elsewhere
        assert others <= set(sys.stdlib_module_names), module.name
    for name in KEEPER:
        assert {one.partition(".")[2] for one in ours_of(modules()[f"sessionrun.{name}"].ever)} <= KEEPER


def test_what_runs_around_a_job_of_slurms_stands_on_the_standard_library() -> None:
    seen = imported_with("sessionrun.cluster.slurm_node")
    assert "sessionrun.keeper.children" in seen
    others = {name.partition(".")[0] for name in seen} - {"sessionrun"}
    assert others - set(sys.stdlib_module_names) <= {"msgspec"}, "without which `model.kinds` can do"


@pytest.mark.parametrize(
    ("family", "forbidden"),
    [
        ("input", ["subprocess", "socket", "time", "click", "logging", "threading"]),
        *((f"input.{name}", ["pathlib", "sessionrun.store", "sessionrun.agents"]) for name in HANDED),
        *((f"agents.{name}", ["subprocess", "socket", "time", "click", "logging"]) for name in AGENTS),
        ("session.executor", ["sessionrun.engine", "sessionrun.store.session"]),
        ("session.supervisor", ["sessionrun.agents"]),
        ("engine.status", ["sessionrun.engine.scheduler"]),
        ("engine.scheduler", ["sessionrun.engine.status"]),
    ],
)
def test_what_a_part_may_not_know(family: str, forbidden: list[str]) -> None:
    for module in within(f"sessionrun.{family}"):
        for name in module.ever:
            assert not belongs(name, *forbidden), f"{module.name} imports {name}"


@pytest.mark.parametrize(
    ("family", "only"),
    [
        ("click", "cli"),
        ("sessionrun.session.supervisor", "session.main"),
        ("distributed", "cluster.dask_carrier"),
        ("cryptography", "cluster.address"),
        ("daemon", "session.launch"),
        ("starlette", "doors.server"),
        ("uvicorn", "doors.server"),
        ("rich", "cli.wait cli.watch"),
        ("tabulate", "cli.render"),
        ("yaml", "input.text"),
        ("platformdirs", "store.index"),
    ],
)
def test_who_alone_names_a_module(family: str, only: str) -> None:
    inside = {module.name for module in modules().values() if belongs(module.name, family)}
    users = {module.name for module in modules().values() if any(belongs(name, family) for name in module.ever)}
    assert users - inside
    assert all(belongs(name, *(f"sessionrun.{one}" for one in only.split())) for name in users - inside)


def imported_with(*names: str) -> set[str]:
    seen: set[str] = set()
    queue = list(names)
    while queue:
        name = queue.pop()
        if name not in seen:
            seen.add(name)
            queue += modules()[name].at_import if name in modules() else ()
    return seen


@pytest.mark.parametrize("program", NOT_AT_START, ids="+".join)
def test_what_a_start_does_not_wait_for(program: tuple[str, ...]) -> None:
    names = [f"sessionrun.{name}" for name in program]
    assert {*names} <= modules().keys()
    assert not {name for name in imported_with(*names) if belongs(name, *NOT_AT_START[program])}


STATE = re.compile(r"(state|task|self\._?state|drive\.state)\.")
"""How a session's state, its tasks and what is changed in place in them are called wherever they are at hand."""

CHANGING = re.compile("add|append|clear|discard|extend|insert|pop|popitem|remove|setdefault|update")


def find_changes(nodes: Iterable[ast.AST]) -> list[str]:
    """What is changed in the state, but for the ready queue, which is only an index."""
    changed: list[ast.expr] = []
    for node in nodes:
        if isinstance(node, (ast.Attribute, ast.Subscript)) and not isinstance(node.ctx, ast.Load):
            changed.append(node)
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and CHANGING.fullmatch(node.func.attr)
        ):
            changed.append(node.func.value)
    places = [ast.unparse(node) for node in changed]
    return [place for place in places if STATE.match(place) and ".queue." not in f"{place}."]


def test_the_state_is_changed_in_one_room_and_by_no_decision() -> None:
    """By `fold` and what it calls: readers, the supervisor, the scheduler and the projections only look."""
    changed = {module.name: find_changes(module.nodes) for module in modules().values()}
    folds = {name for row in HOUSE if row.rules for name in rules_of(row)}
    others = {name for name, found in changed.items() if found and not belongs(name, "sessionrun.engine")}
    assert others <= folds
    for name in ("scheduler", "status", "task"):
        assert changed[f"sessionrun.engine.{name}"] == [], name
    assert len(changed["sessionrun.engine.fold"]) > 20  # they are seen
    seen = {".".join(text.split(".")[:2]) for name, found in changed.items() for text in found}
    assert {f"task.{field.name}" for field in fields(TaskState)} - {"task.spec", "task.num"} <= seen


@pytest.mark.parametrize(
    "source",
    [
        "task.outcome = end",
        "del state.tasks[name]",
        "task.tries *= 2",
        "task.phase, task.start = None, 1",
        "state.tasks[names[0]].held = None",
        "(task.tries, kept[0]) = 1, 2",
        "task.usage_by_agent[name] = used",
        "task.usage_by_agent.update(more)",
        "self._state.money.spent += cost",
    ],
)
def test_a_change_inside_a_record_is_a_change_of_the_state(source: str) -> None:
    assert find_changes(ast.walk(ast.parse(source))), source


# --- size and names ---


def test_names_say_something_and_functions_are_small() -> None:
    for module in modules().values():
        named = {module.name.rpartition(".")[2]}
        for node in module.nodes:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                named.add(node.name)
                lines = (node.end_lineno or node.lineno) - node.lineno
                assert isinstance(node, ast.ClassDef) or lines < MAX_FUNCTION, f"{module.name}.{node.name}"
            elif isinstance(node, ast.arg):
                named.add(node.arg)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                named.add(node.id)
        assert not NAMELESS & named, module.name
        for name in named:
            words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower().split("_")
            assert not (BANNED - THEIR_WORDS.get(module.name, set())) & set(words), f"{module.name}: {name}"
