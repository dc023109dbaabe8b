"""Installs the real agent CLIs into a cache folder, each in the version that is pinned here.

    python -m tests.agents.install        install what is missing; print what there is

The folder is AGENTS_CACHE, else `sessionrun-agents` in the user's cache directory.  What is there in its
version is left alone.  What cannot be installed is named with the reason and makes no failure: its tests are
skipped.  Only npm's and pip's registries are asked.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

NODE: Final = "22.23.3"
NODE_AT_LEAST: Final = (22, 0)
"""With an older Node npm takes older versions of some of them, and says nothing."""

NPM_VERSIONS: Final = {
    "claude": ("@anthropic-ai/claude-code", "2.1.329"),
    "codex": ("@openai/codex", "0.169.0"),
    "qwen": ("@qwen-code/qwen-code", "0.24.4"),
    "gemini": ("@google/gemini-cli", "0.61.0"),
    "opencode": ("opencode-ai", "1.18.33"),
}
AIDER: Final = "0.86.2"
AIDER_PYTHONS: Final = ((3, 12), (3, 11), (3, 10))

INSTALL_S: Final = 900
ASK_S: Final = 60


class CannotInstall(Exception):
    """Why something could not be installed, in one line."""


_CACHES: Final = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
FOLDER: Final = Path(os.environ.get("AGENTS_CACHE") or Path(_CACHES, "sessionrun-agents")).absolute()
"""Chosen at import: the tests have a home of their own."""

_PLACES: Final = ("node/node_modules/.bin", "npm/node_modules/.bin", "bin")
PATH: Final = os.pathsep.join(str(FOLDER / place) for place in _PLACES)
"""What comes in front of the user's to find the agents, each with the Node that it needs."""

AGENTS: Final = (*NPM_VERSIONS, "aider")


def make_environ() -> dict[str, str]:
    """The environment in which the agents are found."""
    return {**os.environ, "PATH": os.pathsep.join((PATH, os.environ.get("PATH", os.defpath)))}


def find_version(agent: str) -> str | None:
    """The version of an agent in the folder, as it says itself; None when it does not run."""
    program = shutil.which(agent, path=PATH)
    if program is None:
        return None
    argv = [program, "--version"]
    try:
        done = subprocess.run(
            argv, env=make_environ(), stdin=subprocess.DEVNULL, capture_output=True, timeout=ASK_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(rb"\d+\.\d+\.\d+\S*", done.stdout)
    return found.group().decode() if found and done.returncode == 0 else None


def install(agent: str) -> str:
    """Make sure that an agent is there in its version; the version.

    Raises:
        CannotInstall: it cannot be.
    """
    wanted = AIDER if agent == "aider" else NPM_VERSIONS[agent][1]
    FOLDER.mkdir(parents=True, exist_ok=True)
    if find_version(agent) != wanted:
        _install_aider() if agent == "aider" else _install_npm(*NPM_VERSIONS[agent])
    found = find_version(agent)
    if found != wanted:
        raise CannotInstall(f"it was installed, but says version {found}, not {wanted}")
    return wanted


def _install_npm(package: str, version: str) -> None:
    if _node_version(make_environ()) < NODE_AT_LEAST:
        _install_node()
    _npm("npm", f"{package}@{version}")


def _install_node() -> None:
    """A Node that is new enough, from npm: the user's is too old for the agents, not for npm."""
    system = "darwin" if sys.platform == "darwin" else "linux"
    machine = "arm64" if os.uname().machine in ("arm64", "aarch64") else "x64"
    package = f"node-{system}-{machine}"
    _npm("node", f"{package}@{NODE}")
    program = FOLDER / "node/node_modules/.bin/node"
    program.parent.mkdir(exist_ok=True)
    if not program.exists():  # the package names no program of its own
        program.symlink_to(f"../{package}/bin/node")


def _npm(place: str, package: str) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise CannotInstall("npm is not on PATH")
    folder = FOLDER / place
    folder.mkdir(parents=True, exist_ok=True)
    options = ("--no-audit", "--no-fund", "--save-exact", "--prefix", str(folder))
    _run([npm, "install", *options, package], make_environ())


def _install_aider() -> None:
    """Aider in a virtual environment of its own: it wants exact versions of a hundred packages."""
    venv, link = FOLDER / "aider", FOLDER / "bin" / "aider"
    _run([_find_python(), "-m", "venv", "--clear", str(venv)], dict(os.environ))
    _run([str(venv / "bin/pip"), "install", "-q", f"aider-chat=={AIDER}"], dict(os.environ))
    # Only aider itself goes on PATH: the environment has a python of its own beside it.
    link.parent.mkdir(exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to("../aider/bin/aider")


def _node_version(env: dict[str, str]) -> tuple[int, ...]:
    try:
        said = subprocess.run(["node", "--version"], env=env, capture_output=True, timeout=ASK_S).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return tuple(int(number) for number in re.findall(rb"\d+", said))


def _find_python() -> str:
    """A Python that aider's packages have wheels for."""
    names = [sys.executable, *(f"python{major}.{minor}" for major, minor in AIDER_PYTHONS), "python3"]
    code = "import sys, venv; print(sys.version_info[0], sys.version_info[1])"
    for name in names:
        try:
            said = subprocess.run([name, "-c", code], capture_output=True, timeout=ASK_S).stdout.split()
        except (OSError, subprocess.TimeoutExpired):
            continue
        if tuple(map(int, said)) in AIDER_PYTHONS:
            return name
    raise CannotInstall("it needs Python 3.10 to 3.12, and none is on PATH")


def _run(argv: list[str], env: dict[str, str]) -> None:
    try:
        done = subprocess.run(argv, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=INSTALL_S)
    except OSError as error:
        raise CannotInstall(f"{argv[0]}: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise CannotInstall(f"{os.path.basename(argv[0])} did not end within {INSTALL_S} s") from error
    if done.returncode != 0:
        lines = [line.strip() for line in done.stderr.decode("utf-8", "replace").splitlines() if line.strip()]
        said = next((line for line in lines if "ERR" in line or "rror" in line), lines[-1] if lines else "?")
        raise CannotInstall(f"{os.path.basename(argv[0])} failed: {said[:200]}")


def main() -> None:
    """Install all and print one line for each."""
    print(f"agents in {FOLDER}", flush=True)
    for agent in AGENTS:
        try:
            print(f"  {agent:9} {install(agent)}", flush=True)
        except CannotInstall as error:
            print(f"  {agent:9} not installed: {error}", flush=True)


if __name__ == "__main__":
    main()
