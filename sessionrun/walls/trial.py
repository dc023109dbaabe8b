"""Tries whether this machine can build walls: by running `true` inside of such as a job has."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from typing import Any, Final

from sessionrun.model.asked import CLOSED, LIMITS, POLICIES, Policy, Sandbox
from sessionrun.model.errors import InputError
from sessionrun.model.spec import SessionSpec
from sessionrun.store.programs import ask
from sessionrun.walls import groups, inner
from sessionrun.walls.programs import NOT_INSTALLED, find_bwrap, find_python, make_walls

TRIAL_LIMIT_S: Final = 30.0
NOT_LINUX: Final = "walls need Linux (bubblewrap); leave the sandbox off"
AS_ROOT: Final = (
    "walls are thinner for root: its tasks are uid 0 of the machine, and a file that they give a setuid bit runs "
    "as root outside; run sessionrun as an ordinary user"
)


def check_spec(spec: SessionSpec) -> str | None:
    """Try all kinds of walls that a session wants on this machine; returns a warning for root, else None.

    Raises:
        InputError: one cannot be built here.
    """
    parts = (spec.landing,) if spec.cluster is not None else (*spec.tasks, spec.template, spec.landing)
    sandboxes = {part.sandbox for part in parts if part is not None}
    wanted = {sandbox for sandbox in sandboxes if sandbox is not None and sandbox.policy != "none"}
    for policy, network in sorted({(wish.policy, wish.network == "allow") for wish in wanted}):
        problem = find_problem(policy, network=network)
        if problem is not None:
            raise InputError(f"sandbox {policy}: {problem}")
    for limit in LIMITS:
        wish = next((wish for wish in wanted if getattr(wish, limit) is not None), None)
        problem = None if wish is None else groups.find_problem(wish)
        if problem is not None:
            raise InputError(f"sandbox.{limit}: {problem}; leave it out")
    return AS_ROOT if wanted and os.geteuid() == 0 else None


def list_problems() -> dict[str, str]:
    """What of walls this machine cannot give, and why, by the names of `Sandbox.needs`."""
    found: dict[str, str | None] = {}
    for policy in POLICIES[1:]:
        found[policy] = find_problem(policy)
        found[f"{policy}{CLOSED}"] = find_problem(policy, network=False)
    found["memory"] = groups.find_problem(Sandbox("project", memory=1 << 30))
    found["cpus"] = groups.find_problem(Sandbox("project", cpus=1.0))
    return {name: problem for name, problem in found.items() if problem is not None}


def find_problem(policy: Policy, *, network: bool = True) -> str | None:
    """Why walls of this policy cannot be built here, in one line; None: they can."""
    if sys.platform != "linux":
        return NOT_LINUX
    if find_bwrap() is None:
        return NOT_INSTALLED
    return _try(build_trial(policy, network=network))


def find_open_keys() -> str | None:
    """Why programs inside can reach the caller's keys (keyrings(7)), in one line; None: they cannot."""
    kinds = inner.CALLS.get(os.uname().machine)
    if sys.platform != "linux" or find_bwrap() is None:
        return None
    open_keys = "the kernel's keys of the caller are open inside"
    if kinds is None:
        return f"{open_keys}: not known how to close them on {os.uname().machine}"
    asks = f"import ctypes; raise SystemExit(ctypes.CDLL(None).syscall({kinds[0][1] + 2}, 0, -3, 0) > 0)"
    is_open = _try(build_trial("project", program=(find_python()[0], "-I", "-S", "-c", asks)))
    return f"{open_keys}: its system calls cannot be filtered" if is_open else None


def build_trial(policy: Policy, *, network: bool = True, program: tuple[str, ...] = ("true",)) -> tuple[str, ...]:
    """The words of a trial; nothing of it is on disk."""
    return make_walls(Sandbox(policy, "allow" if network else "none"), "").wrap("/", *program)


def _try(argv: tuple[str, ...]) -> str | None:
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=TRIAL_LIMIT_S)
    except OSError as error:
        return f"bwrap cannot be run: {error.strerror}"
    except subprocess.TimeoutExpired:
        return f"bwrap cannot build walls here: not done after {TRIAL_LIMIT_S:g} s"
    if done.returncode == 0:
        return None
    lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
    why = lines[0].removeprefix("bwrap: ") if lines else f"exit code {done.returncode}"
    return f"bwrap cannot build walls here: {why}"


def examine_walls() -> tuple[dict[str, Any], str]:
    """Try each policy, which takes a fraction of a second; for programs, and in one line.

    Programs get bubblewrap's version, by policy why it cannot build walls (None: it can), and in `keys` why the
    kernel's keys stay open inside (None: they do not).
    """
    bwrap, version = find_bwrap(), None
    with suppress(OSError, subprocess.SubprocessError):
        version = ask([bwrap, "--version"], os.environ, None).removeprefix("bubblewrap ") if bwrap else None
    project, strict = find_problem("project"), find_problem("strict", network=False)
    keys = None if project else find_open_keys()
    line = project
    if line is None:
        line = f"bubblewrap {version} can build them (run --sandbox project)"
        line += "" if strict is None else f"; not strict: {strict}"
        line += "" if keys is None else f"; {keys}"
    return {"version": version or None, "project": project, "strict": strict, "keys": keys}, line
