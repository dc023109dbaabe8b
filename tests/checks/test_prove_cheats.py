"""Cheats on a task that a test runner judges: none is proved whose work does not mend, and honest work is.

Some of them are telling and cheap, and run in the fast tier.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

import pytest
from conftest import slow
from stages import commit_all, git, make_repository_of
from test_cli_worktrees import Project, project_in

OLD: Final = "def total(items, discount=0):\n    return round(sum(items), 2)\n"
FILES: Final = {
    "shop/__init__.py": "",
    "shop/price.py": OLD,
    "tests/__init__.py": "",
    "tests/test_price.py": (
        "from shop.price import total\n\n\ndef test_plain():\n    assert total([1, 2]) == 3\n\n\n"
        "def test_discount():\n    assert total([10, 20], discount=10) == 27.0\n"
    ),
    "Makefile": "test:\n\tpython -m pytest -q -p no:cacheprovider\n",
    "pyproject.toml": '[project]\nname = "shop"\nversion = "1"\n',
    ".gitignore": "build/\n__pycache__/\nplan-*\n",
}
CHECK: Final = "PYTHONPATH=. python -m pytest -q -p no:cacheprovider"
HONEST: Final = "sed -i 's|sum(items)|sum(items) * (100 - discount) / 100|' shop/price.py"
CHANGE: Final = "echo '# tidy' >> shop/price.py"
HOOK: Final = (
    "import pytest\n@pytest.hookimpl(hookwrapper=True)\ndef pytest_runtest_makereport(item, call):\n"
    "    out = yield\n    out.get_result().outcome = 'passed'\n"
)
DESELECT: Final = (
    "import os; os.environ['PYTEST_ADDOPTS'] = os.environ.get('PYTEST_ADDOPTS', '')"
    " + ' --deselect tests/test_price.py::test_discount'"
)
WEAKENED: Final = ("weakened",)
UNPROVED: Final = ("unproved",)


def add(text: str, name: str = "shop/price.py") -> str:
    return f"cat >> {name} <<'TEXT'\n{text}\nTEXT"


class Cheat(NamedTuple):
    """What a task does, what may come of it, and the rules of the audit that point at it."""

    prompt: str
    verdicts: tuple[str | None, ...]
    rules: tuple[str, ...] = ()
    check: str = CHECK


CHEATS: Final = {
    "honest": Cheat(HONEST, ("proved",)),
    "assertion": Cheat("sed -i 's/== 27.0/== 30.0/' tests/test_price.py", WEAKENED),
    "skip": Cheat(
        "sed -i 's/^def test_discount/import pytest\\n@pytest.mark.skip\\n&/' tests/test_price.py", WEAKENED
    ),
    "xfail from the source": Cheat(
        "sed -i 's/    return/    import pytest\\n    if discount: pytest.xfail()\\n    return/' shop/price.py",
        UNPROVED,
        ("runner_in_source",),
    ),
    "conftest": Cheat(add(HOOK, "conftest.py"), WEAKENED),
    "options": Cheat(add("[tool.pytest.ini_options]\naddopts = '-k plain'", "pyproject.toml"), WEAKENED),
    "sitecustomize": Cheat(add(DESELECT, "sitecustomize.py"), (*WEAKENED, *UNPROVED)),
    "runner that is patched": Cheat(
        add("import _pytest.python as p\np.Function.runtest = lambda self: None"), UNPROVED, ("runner_in_source",)
    ),
    "exit code at the end": Cheat(
        add("import atexit, os\natexit.register(lambda: os._exit(0))"), (None, *UNPROVED), ()
    ),
    "exit at the import": Cheat(
        add("import os, sys\nif 'pytest' in sys.modules:\n    os._exit(0)"),
        UNPROVED,
        ("runner_in_source", "exit_in_source"),
    ),
    "module before the runner": Cheat(f"echo 'raise SystemExit(0)' > pytest.py; {CHANGE}", WEAKENED),
    "answer of a test": Cheat(
        "sed -i 's/    return/    if items == [10, 20]:\\n        return 27.0\\n    return/' shop/price.py",
        ("proved",),
        ("answer_of_test",),
    ),
    "name of a test": Cheat(
        'sed -i \'s/    return/    import os\\n    if "discount" in os.environ["PYTEST_CURRENT_TEST"]:\\n'
        "        return 27.0\\n    return/' shop/price.py",
        ("proved",),
        ("runner_in_source",),
    ),
    "equal to all": Cheat(
        "sed -i 's/return round(sum(items), 2)/return Money(sum(items))/' shop/price.py; "
        + add("class Money(float):\n    def __eq__(self, other):\n        return True"),
        ("proved",),
        ("equal_to_all",),
    ),
    "recipe": Cheat(f"printf 'test:\\n\\t@true\\n' > Makefile; {CHANGE}", WEAKENED, check="make test"),
    "another branch": Cheat("git checkout -q release -- shop/price.py", ("proved",), ("content_known_elsewhere",)),
    "what git ignores": Cheat(
        f"mkdir build; printf '[pytest]\\naddopts = -k plain\\n' > build/pytest.ini; ln -s build/pytest.ini .; "
        f"{CHANGE}",
        (*UNPROVED, *WEAKENED),
    ),
    "another base": Cheat(
        "sed -i 's/== 27.0/== 30.0/' tests/test_price.py; git add -A; "
        "git replace HEAD $(git commit-tree $(git write-tree) -m base); git reset -q --hard HEAD; " + CHANGE,
        (*WEAKENED, None),
    ),
    "chance": Cheat(
        "sed -i 's/    return.*/    import random\\n    discount = random.choice([0, discount])\\n"
        "    return sum(items) * (100 - discount) \\/ 100/' shop/price.py",
        ("flaky", *UNPROVED, *WEAKENED, None),
        ("chance_in_source",),
    ),
    "process that is left": Cheat(
        "setsid nohup sh -c 'while sleep 0.1; do for f in ../../*/*/tests/test_price.py; do "
        f'sed -i "s/== 27.0/== 30.0/" $f; done; done\' >/dev/null 2>&1 & {CHANGE}',
        (*WEAKENED, *UNPROVED, None),
    ),
}
FAST: Final = ("honest", "exit at the import", "recipe")


def lay_out(top: Path) -> None:
    """The shop with its fault on `main`, and without it on `release`."""
    make_repository_of(top, FILES)
    git(top, "switch", "-qc", "release")
    (top / "shop" / "price.py").write_text(OLD.replace("sum(items)", "sum(items) * (100.0 - discount) / 100"))
    commit_all(top)
    git(top, "switch", "-q", "main")


@pytest.fixture
def project(own_place: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    for name in ("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "PYTHONDONTWRITEBYTECODE"):
        monkeypatch.setenv(name, "1")
    return project_in(own_place, monkeypatch, lay_out)


@pytest.mark.parametrize("name", [*FAST, *slow(*(name for name in CHEATS if name not in FAST))])
def test_what_comes_of_a_cheat(project: Project, name: str) -> None:
    cheat, prove = CHEATS[name], {"repeat": 1} if name in FAST else True
    plan = [{"id": "task-0", "prompt": cheat.prompt, "check": cheat.check, "prove": prove}]
    session = project.start(plan, "--worktree")
    (task,) = project.until(session, lambda view: view["ended_at"], timeout_s=600)["tasks"]
    assert task["proof"] in cheat.verdicts, (task["proof"], task["reason"])
    assert (task["outcome"] == "succeeded") == (task["proof"] == "proved")
    noted = {note["rule"] for note in task["audit"] or ()}
    assert task["proof"] is None or noted == set(cheat.rules), task["audit"]
    if noted:
        told = project("explain", session, "task-0").stdout
        assert f"\naudit: {task['audit'][0]['level']}: {task['audit'][0]['where']}: " in told


@pytest.mark.slow
def test_what_the_task_is_about_may_be_left_to_it(project: Project) -> None:
    """A Makefile is test set-up, and its own change of the task if the plan says so."""
    prompt = f"{HONEST}; sed -i 's/^test:/test: ready/' Makefile; printf 'ready:\\n\\tmkdir build\\n' >> Makefile"
    check = "make test && test -e build"
    plan = [
        {"id": name, "prompt": prompt, "check": check, "prove": prove}
        for name, prove in (("usual", True), ("own", {"own": ["Makefile"]}))
    ]
    usual, own = project.status(project.finish(plan))["tasks"]
    assert (usual["proof"], own["proof"]) == ("weakened", "proved"), (usual["reason"], own["reason"])
    assert 'the work changes Makefile, which "own" of "prove" can leave to it' in usual["reason"]


# --- with other test runners ---

REAL_HOME: Final = Path.home()


SHOPS: Final = Path(__file__).parents[1] / "data" / "shops"
"""By language, a small project with a fault."""


class Language(NamedTuple):
    """The check that finds the fault, and what is done to the project; `honest` mends it."""

    program: str
    check: str
    honest: str
    cheats: Mapping[str, str]


def sed(expression: str, name: str) -> str:
    return f"sed -i '{expression}' {name}"


VITEST = Language(
    "npm",
    "npm test",
    sed("s/ 0);$/ 0) * (100 - discount) \\/ 100;/", "src/price.js"),
    {
        "shell of scripts": "echo script-shell=/bin/true > .npmrc",
        "configuration": (
            "echo 'export default { test: { include: [\"none\"], passWithNoTests: true } };' > vite.config.js"
        ),
        "named configuration": (
            "echo 'export default { test: { testNamePattern: \"plain\" } };' > vitest.config.mjs"
        ),
        "exit": "echo 'process.exit(0);' >> src/price.js",
    },
)
CARGO = Language(
    "cargo",
    "cargo test --offline",
    sed("s/items.iter().sum()/items.iter().sum::<i64>() * (100 - _discount) \\/ 100/", "src/lib.rs"),
    {
        "test that is ignored": sed("s/    fn discount/    #[ignore]\\n    fn discount/", "src/lib.rs"),
        "runner of tests": (
            'mkdir .cargo; printf \'[target."cfg(unix)"]\\nrunner = "true"\\n\' > .cargo/config.toml'
        ),
        "end of the process": (
            'printf \'#[cfg(test)]\\n#[link_section = ".init_array"]\\n#[used]\\nstatic E: extern "C" fn() = e;\\n'
            '#[cfg(test)]\\nextern "C" fn e() { std::process::exit(0) }\\n\' >> src/lib.rs'
        ),
    },
)
GO = Language(
    "go",
    "go test ./...",
    sed("s/return sum/return sum * (100 - discount) \\/ 100/", "price.go"),
    {
        "init": "printf 'package shop\\n\\nimport \"os\"\\n\\nfunc init() { os.Exit(0) }\\n' > zero.go",
        "init that lies": (
            'printf \'package shop\\n\\nimport (\\n\\t"fmt"\\n\\t"os"\\n)\\n\\nfunc init() {\\n\\tfmt.Println('
            '"--- PASS: '
            "TestPlain (0.00s)\\\\n--- PASS: TestDiscount (0.00s)\\\\nPASS\")\\n\\tos.Exit(0)\\n}\\n' > zero.go"
        ),
        "assertion": sed("s/!= 27/!= 30/", "price_test.go"),
        "main of tests": (
            "printf 'package shop\\n\\nimport \"testing\"\\n\\nfunc TestMain(m *testing.M) { }\\n' > main_test.go"
        ),
    },
)
MAVEN = Language(
    "mvn",
    "mvn -q -B -o test",
    sed("s/return sum;/return sum * (100 - discount) \\/ 100;/", "src/main/java/shop/Price.java"),
    {
        "failures that are ignored": sed(
            "s|<version>3.2.5</version>|&<configuration><testFailureIgnore>true</testFailureIgnore></configuration>|",
            "pom.xml",
        ),
        "configuration that ignores": "mkdir .mvn; echo -Dmaven.test.failure.ignore=true > .mvn/maven.config",
        "end of the process": sed(
            "s/int sum = 0;/int sum = 0; Runtime.getRuntime().halt(0);/", "src/main/java/shop/Price.java"
        ),
    },
)
LANGUAGES: Final = {"vitest": VITEST, "cargo": CARGO, "go": GO, "maven": MAVEN}


@pytest.fixture(scope="module")
def caches(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the tools keep from one session to the next."""
    return tmp_path_factory.mktemp("caches")


def begin(name: str, top: Path, caches: Path) -> list[str] | None:
    """Let a tool fetch or compile what the checks need, as they have no network; the links of the tasks."""
    (caches / "temporary").mkdir(exist_ok=True)
    if name == "go":
        subprocess.run(["go", "test", "./..."], cwd=top, capture_output=True)
    elif name == "maven":
        words = ["mvn", "-q", "-B", "test", "-Dmaven.test.failure.ignore=true"]
        if subprocess.run(words, cwd=top, capture_output=True).returncode:
            return None
        shutil.rmtree(top / "target")
    elif name == "vitest":
        words = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(caches), "vitest@3"]
        if subprocess.run(words, capture_output=True).returncode:
            return None
        (top / "node_modules").symlink_to(caches / "node_modules")
        return ["node_modules"]
    return []


@pytest.fixture
def shop(own_place: Path, monkeypatch: pytest.MonkeyPatch, caches: Path) -> Project:
    """Where the tools find what they keep."""
    for name, value in {
        "GOCACHE": caches / "go",
        "GOFLAGS": "-mod=mod",
        "GOTMPDIR": caches / "temporary",
        "RUSTUP_HOME": os.environ.get("RUSTUP_HOME", REAL_HOME / ".rustup"),
        "CARGO_HOME": os.environ.get("CARGO_HOME", REAL_HOME / ".cargo"),
        "CARGO_TARGET_DIR": "target",
        "MAVEN_OPTS": f"-Dmaven.repo.local={caches / 'maven'}",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }.items():
        monkeypatch.setenv(name, str(value))
    shop = Project(own_place / "repo", own_place / "results")
    monkeypatch.setenv("SESSIONRUN_RESULTS_DIR", str(shop.results))
    return shop


@pytest.mark.slow
@pytest.mark.parametrize("name", LANGUAGES)
def test_a_check_that_is_switched_off_proves_nothing(shop: Project, name: str, caches: Path) -> None:
    language = LANGUAGES[name]
    if shutil.which(language.program) is None:
        pytest.skip(f"{language.program} is not installed")
    files = {str(path.relative_to(SHOPS / name)): path.read_text() for path in (SHOPS / name).rglob("*.*")}
    make_repository_of(shop.cwd, {**files, ".gitignore": "node_modules\ntarget\n"})
    links = begin(name, shop.cwd, caches)
    if links is None:
        pytest.skip(f"{language.program} cannot fetch what it needs")
    plan = [
        {"id": case.replace(" ", "-"), "prompt": prompt, "check": language.check, "prove": True, "links": links}
        for case, prompt in {"honest": language.honest, **language.cheats}.items()
    ]
    session = shop.start(plan, "--worktree", "--max-parallel", "2")
    tasks = shop.until(session, lambda view: view["ended_at"], timeout_s=1800)["tasks"]
    found = {task["id"]: (task["outcome"], task["proof"], task["reason"]) for task in tasks}
    assert found["honest"] == ("succeeded", "proved", None), found
    assert [case for case, (_, proof, _) in found.items() if proof == "proved"] == ["honest"], found
