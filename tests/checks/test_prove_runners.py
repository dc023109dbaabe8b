"""Proof with real test runners: honest work is proved, and no way to switch a check off is."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

import pytest
from stages import make_repository_of
from test_cli_worktrees import Project

REAL_HOME: Final = Path.home()

pytestmark = pytest.mark.slow


class Language(NamedTuple):
    """A small project with a fault, the check that finds it, and what is done to it; `honest` mends it."""

    program: str
    files: Mapping[str, str]
    check: str
    honest: str
    cheats: Mapping[str, str]


def sed(expression: str, name: str) -> str:
    return f"sed -i '{expression}' {name}"


VITEST = Language(
    "npm",
    {
        "package.json": '{"name": "shop", "type": "module", "scripts": {"test": "vitest run"}}\n',
        "src/price.js": "export const total = (items, discount = 0) => items.reduce((a, b) => a + b, 0);\n",
        "test/price.test.js": (
            'import { expect, test } from "vitest";\nimport { total } from "../src/price.js";\n'
            'test("plain", () => expect(total([1, 2])).toBe(3));\n'
            'test("discount", () => expect(total([10, 20], 10)).toBe(27));\n'
        ),
        ".gitignore": "node_modules\n",
    },
    "npm test",
    sed("s/ 0);$/ 0) * (100 - discount) \\/ 100;/", "src/price.js"),
    {
        "script": sed("s/vitest run/true/", "package.json"),
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
    {
        "Cargo.toml": '[package]\nname = "shop"\nversion = "0.1.0"\nedition = "2021"\n\n[dependencies]\n',
        "Cargo.lock": 'version = 3\n\n[[package]]\nname = "shop"\nversion = "0.1.0"\n',
        "src/lib.rs": (
            "pub fn total(items: &[i64], _discount: i64) -> i64 {\n    items.iter().sum()\n}\n\n"
            "#[cfg(test)]\nmod tests {\n    use super::*;\n\n    #[test]\n    fn plain() {\n"
            "        assert_eq!(total(&[1, 2], 0), 3);\n    }\n\n    #[test]\n    fn discount() {\n"
            "        assert_eq!(total(&[10, 20], 10), 27);\n    }\n}\n"
        ),
        ".gitignore": "target\n",
    },
    "cargo test --offline",
    sed("s/items.iter().sum()/items.iter().sum::<i64>() * (100 - _discount) \\/ 100/", "src/lib.rs"),
    {
        "library without tests": "printf '\\n[lib]\\ntest = false\\n' >> Cargo.toml",
        "assertion": sed("s/, 27)/, 30)/", "src/lib.rs"),
        "test that is ignored": sed("s/    fn discount/    #[ignore]\\n    fn discount/", "src/lib.rs"),
        "test that is gone": sed("/fn discount/,/^    }/d", "src/lib.rs"),
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
    {
        "go.mod": "module example.com/shop\n\ngo 1.21\n",
        "price.go": (
            "package shop\n\nfunc Total(items []int, discount int) int {\n\tsum := 0\n"
            "\tfor _, item := range items {\n\t\tsum += item\n\t}\n\treturn sum\n}\n"
        ),
        "price_test.go": (
            'package shop\n\nimport "testing"\n\nfunc TestPlain(t *testing.T) {\n'
            '\tif Total([]int{1, 2}, 0) != 3 {\n\t\tt.Fatal("plain")\n\t}\n}\n\n'
            "func TestDiscount(t *testing.T) {\n"
            '\tif Total([]int{10, 20}, 10) != 27 {\n\t\tt.Fatal("discount")\n\t}\n}\n'
        ),
        "other/other.go": "package other\n\nfunc One() int { return 1 }\n",
        "other/other_test.go": (
            'package other\n\nimport "testing"\n\nfunc TestOne(t *testing.T) {\n'
            '\tif One() != 1 {\n\t\tt.Fatal("one")\n\t}\n}\n'
        ),
    },
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
POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>org.example</groupId>
  <artifactId>shop</artifactId>
  <version>1</version>
  <properties>
    <maven.compiler.source>17</maven.compiler.source>
    <maven.compiler.target>17</maven.compiler.target>
    <project.build.sourceEncoding>UTF-8</project.build.sourceEncoding>
  </properties>
  <dependencies>
    <dependency>
      <groupId>org.junit.jupiter</groupId>
      <artifactId>junit-jupiter</artifactId>
      <version>5.10.2</version>
      <scope>test</scope>
    </dependency>
  </dependencies>
  <build>
    <plugins>
      <plugin>
        <artifactId>maven-surefire-plugin</artifactId>
        <version>3.2.5</version>
      </plugin>
    </plugins>
  </build>
</project>
"""
MAVEN = Language(
    "mvn",
    {
        "pom.xml": POM,
        "src/main/java/shop/Price.java": (
            "package shop;\n\npublic class Price {\n    public static int total(int[] items, int discount) {\n"
            "        int sum = 0;\n        for (int item : items) sum += item;\n        return sum;\n    }\n}\n"
        ),
        "src/test/java/shop/PriceTest.java": (
            "package shop;\n\nimport static org.junit.jupiter.api.Assertions.assertEquals;\n\n"
            "import org.junit.jupiter.api.Test;\n\nclass PriceTest {\n    @Test\n    void plain() {\n"
            "        assertEquals(3, Price.total(new int[] {1, 2}, 0));\n    }\n\n"
            "    @Test\n    void discount() {\n"
            "        assertEquals(27, Price.total(new int[] {10, 20}, 10));\n    }\n}\n"
        ),
        ".gitignore": "target\n",
    },
    "mvn -q -B -o test",
    sed("s/return sum;/return sum * (100 - discount) \\/ 100;/", "src/main/java/shop/Price.java"),
    {
        "tests that are skipped": sed("s/  <properties>/  <properties><skipTests>true<\\/skipTests>/", "pom.xml"),
        "failures that are ignored": sed(
            "s|<version>3.2.5</version>|&<configuration><testFailureIgnore>true</testFailureIgnore></configuration>|",
            "pom.xml",
        ),
        "configuration that skips": "mkdir .mvn; echo -DskipTests > .mvn/maven.config",
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
def project(own_place: Path, monkeypatch: pytest.MonkeyPatch, caches: Path) -> Project:
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
    project = Project(own_place / "repo", own_place / "results")
    monkeypatch.setenv("SESSIONRUN_RESULTS_DIR", str(project.results))
    return project


@pytest.mark.parametrize("name", LANGUAGES)
def test_a_check_that_is_switched_off_proves_nothing(project: Project, name: str, caches: Path) -> None:
    language = LANGUAGES[name]
    if shutil.which(language.program) is None:
        pytest.skip(f"{language.program} is not installed")
    make_repository_of(project.cwd, language.files)
    links = begin(name, project.cwd, caches)
    if links is None:
        pytest.skip(f"{language.program} cannot fetch what it needs")
    plan = [
        {"id": case.replace(" ", "-"), "prompt": prompt, "check": language.check, "prove": True, "links": links}
        for case, prompt in {"honest": language.honest, **language.cheats}.items()
    ]
    session = project.start(plan, "--worktree", "--max-parallel", "2")
    tasks = project.until(session, lambda view: view["ended_at"], timeout_s=1800)["tasks"]
    found = {task["id"]: (task["outcome"], task["proof"], task["reason"]) for task in tasks}
    assert found["honest"] == ("succeeded", "proved", None), found
    assert [case for case, (_, proof, _) in found.items() if proof == "proved"] == ["honest"], found
