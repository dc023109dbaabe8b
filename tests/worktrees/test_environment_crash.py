"""A process that makes an environment is killed at each of its steps: nothing half made is trusted afterwards."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from calls import each_call, needs_calls, run_program
from conftest import eventually
from test_environments import MAKER, Shop, _dump, say, shop, site_of, texts_with

from sessionrun.worktrees.env_copying import load_manifest
from sessionrun.worktrees.env_request import MANIFEST, WISH

__all__ = ["shop"]


def begin(shop: Shop, name: str, environ: Mapping[str, str]) -> int:
    """Make an environment in a process of its own; its exit code."""
    folder = shop.folder(name)
    (folder / WISH).write_bytes(_dump(shop.request(name)))
    return run_program(MAKER, str(folder), environ=environ).returncode


def check(shop: Shop, name: str) -> None:
    """Make it after the crash: it is whole, and nothing is left of what was begun."""
    env = shop.good(name)
    checkout = shop.root / f"checkout-{name}"
    assert say(env / "bin" / "demo") == f"demo at {checkout}/src/demo/__init__.py"
    assert say(env / "bin" / "pytest") == f"pytest in {env}"
    assert texts_with(".new-", env, checkout) == []
    assert (site_of(env) / "pytest" / "__init__.py").exists()
    assert not [path.name for path in shop.cache.iterdir() if path.name.startswith((".new", ".old"))]
    assert not [path.name for path in (shop.cache / "tasks").iterdir() if path.name.startswith(".")]
    for entry in shop.cache.iterdir():
        if len(entry.name) == 40:
            assert load_manifest(entry) is not None


@needs_calls
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["rename", "sync", "unlink"])
def test_killed_at_each_step_of_a_build_and_of_a_copy(shop: Shop, kind: str) -> None:
    def build(environ: Mapping[str, str]) -> str:
        name = f"t{shop.project.joinpath('pyproject.toml').stat().st_size}"
        with open(shop.project / "pyproject.toml", "a") as stream:
            stream.write(f"# {environ['CALLS_AT']}\n")  # another digest: it is built anew
        begin(shop, name, environ)
        return name

    for _, name in each_call(build, shop.log.with_name("calls"), "maker", kind=kind):
        check(shop, name)


@pytest.mark.slow
def test_killed_while_the_installer_runs(shop: Shop) -> None:
    """The installer may live on, and write into what it was given: that is no entry, and never becomes one."""
    mark, program = shop.log.with_name("installing"), shop.log.with_name("uv")
    real = program.rename(program.with_name("real-uv"))
    program.write_text(
        f'#!/bin/sh\nif [ "$1" = pip ]; then touch {mark}; while [ -e {mark} ]; do sleep 0.05; done; fi\n'
        f'exec {real} "$@"\n'
    )
    program.chmod(0o755)
    folder = shop.folder("one")
    (folder / WISH).write_bytes(_dump(shop.request("one")))
    with subprocess.Popen([sys.executable, "-c", MAKER, str(folder)], stdout=subprocess.DEVNULL) as maker:
        eventually(mark.exists, timeout_s=60)
        maker.kill()
    assert list(shop.cache.rglob(MANIFEST)) == []
    mark.unlink()
    program.unlink()
    real.rename(program)
    check(shop, "two")
    check(shop, "one")
    assert Path(shop.entry()).name
