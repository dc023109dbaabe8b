"""A process that makes an environment is killed at each of its steps: nothing half made is trusted afterwards."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import eventually
from test_environments import Shop, _dump, check_records, say, shop, site_of, texts_with

from sessionrun.store.crashpoint import VARIABLES
from sessionrun.workspaces.environments.manifest import MANIFEST, load_manifest, verify
from sessionrun.workspaces.environments.request import WISH

__all__ = ["shop"]

MAKER = """
import sys
from pathlib import Path
from sessionrun.store import crashpoint
from sessionrun.workspaces.environments.make import make_environment
from sessionrun.workspaces.environments.request import load_wish
crashpoint.arm("maker")
folder = Path(sys.argv[1])
sys.exit(make_environment(load_wish(folder), folder).problem)
"""


def begin(shop: Shop, name: str, step: int = 0) -> subprocess.Popen[bytes]:
    """Start a process that makes an environment, and is killed at that step of it."""
    folder = shop.folder(name)
    (folder / WISH).write_bytes(_dump(shop.request(name)))
    marks = shop.root / "marks"
    marks.mkdir(exist_ok=True)
    point = {VARIABLES[0]: f"maker:{step}", VARIABLES[1]: str(marks)} if step else {}
    argv = [sys.executable, "-c", MAKER, str(folder)]
    return subprocess.Popen(argv, env={**os.environ, **point}, stdout=subprocess.DEVNULL)


def check(shop: Shop, name: str) -> None:
    """Make it after the crash: it is whole, and nothing is left of what was begun."""
    env = shop.good(name)
    checkout = shop.root / f"checkout-{name}"
    assert say(env / "bin" / "demo") == f"demo at {checkout}/src/demo/__init__.py"
    assert say(env / "bin" / "pytest") == f"pytest in {env}"
    assert check_records(env) > 5
    assert texts_with(".new-", env, checkout) == []
    assert (site_of(env) / "pytest" / "__init__.py").exists()
    assert not [path.name for path in shop.cache.iterdir() if path.name.startswith((".new", ".old"))]
    assert not [path.name for path in (shop.cache / "tasks").iterdir() if path.name.startswith(".")]
    for entry in shop.cache.iterdir():
        if len(entry.name) == 40:
            manifest = load_manifest(entry, entry.name)
            assert manifest is not None
            assert verify(entry, manifest) is None


@pytest.mark.slow
def test_killed_at_each_step_of_a_build_and_of_a_copy(shop: Shop) -> None:
    for number in itertools.count(1):
        name = f"t{number}"
        with open(shop.project / "pyproject.toml", "a") as stream:
            stream.write(f"# {number}\n")  # another digest: it is built anew
        ended = begin(shop, name, number).wait(120)
        if ended == 0:
            break
        assert ended == -signal.SIGKILL
        check(shop, name)
    assert number > 12, "there are fewer steps than there were"


@pytest.mark.slow
@pytest.mark.parametrize("step", [4, 8])
def test_killed_before_an_entry_is_renamed_and_while_it_is_copied(shop: Shop, step: int) -> None:
    assert begin(shop, "one", step).wait(120) == -signal.SIGKILL
    (left,) = (path for path in shop.cache.rglob(".new-*") if path.is_dir())
    assert (left.parent.name == "tasks") == (step == 8)
    check(shop, "one")


@pytest.mark.slow
def test_killed_while_the_installer_runs(shop: Shop) -> None:
    """The installer may live on, and write into what it was given: that is no entry, and never becomes one."""
    mark, program = shop.root / "installing", shop.root / "bin" / "uv"
    real = program.rename(program.with_name("real-uv"))
    program.write_text(
        f'#!/bin/sh\nif [ "$1" = pip ]; then touch {mark}; while [ -e {mark} ]; do sleep 0.05; done; fi\n'
        f'exec {real} "$@"\n'
    )
    program.chmod(0o755)
    maker = begin(shop, "one")
    eventually(mark.exists, timeout_s=60)
    maker.kill()
    maker.wait()
    assert list(shop.cache.rglob(MANIFEST)) == []
    mark.unlink()
    program.unlink()
    real.rename(program)
    check(shop, "two")
    check(shop, "one")
    assert Path(shop.entry()).name
