"""Finds what of this machine walls have to let in: bubblewrap, interpreters, programs, secrets, hosts.

Hosts are those of the job's agent, of the plan, and the model server that the user named.

The hosts of an agent have the usual ports.  A host that the plan names has any port.  A server that the user names
by a whole address has that port alone, and may be on this machine or in a private network.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from sessionrun.agents.programs import EVERYTHING, PROGRAMS, Program, find_state_folder, list_places
from sessionrun.model.asked import Policy, Sandbox
from sessionrun.model.errors import SessionrunError
from sessionrun.store.files import read_regular
from sessionrun.store.programs import leave_task
from sessionrun.walls.argv import Walls
from sessionrun.walls.policy import SECRET_FILES, SECRET_FOLDERS, SECRET_VARIABLES, SYSTEM_SECRETS
from sessionrun.walls.proxy.request import USUAL_PORTS, Rule, make_rule, split_authority

NOT_INSTALLED: Final = "bubblewrap (bwrap) is not installed; install it or leave the sandbox off"

_IN_SYSTEM: Final = ("/usr/", "/etc/", "/opt/", "/nix/", "/bin/", "/sbin/", "/lib")
_COVERED: Final = ("/tmp/", "/run/", "/var/tmp/", "/var/run/", "/dev/", "/proc/")
_IN_PREFIX: Final = ("lib", "pyvenv.cfg", "libexec", "tools/image")
"""Beside ``bin``: one of these is in what a program was installed into; the last one in that of volta."""

_LINKS: Final = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")


def find_bwrap() -> str | None:
    return shutil.which("bwrap", path=leave_task(os.environ)["PATH"])


def make_walls(sandbox: Sandbox, tmp: str, shown: Iterable[str] = ()) -> Walls:
    """Walls of this machine and its user, in which nothing is the task's but a folder that is /tmp.

    Args:
        shown: what can be read beside the system and our interpreter.

    Raises:
        SessionrunError: bubblewrap is not installed.
    """
    bwrap = find_bwrap()
    if bwrap is None:
        raise SessionrunError(NOT_INSTALLED)
    python, folders = find_python()
    return Walls(
        bwrap=bwrap,
        sandbox=sandbox,
        as_root=os.geteuid() == 0,
        home=find_home(),
        python=python,
        tmp=tmp,
        system_links=tuple((f"/{name}", os.readlink(f"/{name}")) for name in _LINKS if os.path.islink(f"/{name}")),
        shown=tuple(dict.fromkeys(path for path in (*folders, *shown) if is_hidden(path, sandbox.policy))),
    )


def find_home() -> str:
    """The home directory itself: inside, a link to it may not be there, and masks lie where secrets really are."""
    return os.path.realpath(os.path.expanduser("~"))


def find_python() -> tuple[str, tuple[str, ...]]:
    """An interpreter without the environment around it, and the folders that it needs."""
    program = os.path.realpath(sys.executable)
    return program, tuple(dict.fromkeys((os.path.realpath(sys.base_prefix), *_folders_of(program))))


def find_folders(program: str) -> tuple[str, ...]:
    """The folders that a program needs: its own, that of what it is a link to, those of its interpreter."""
    real = os.path.realpath(program)
    found = [*_folders_of(program), *_folders_of(real)]
    for interpreter in _find_interpreters(real):
        found += [*_folders_of(interpreter), *_folders_of(os.path.realpath(interpreter))]
    return tuple(dict.fromkeys(found))


def is_hidden(path: str, policy: Policy) -> bool:
    """Whether a path would not be seen inside if nothing showed it."""
    if policy == "strict":
        return not f"{path}/".startswith(_IN_SYSTEM)
    return f"{path}/".startswith(_COVERED)


def holds_own(path: str) -> bool:
    """Whether walls have something of their own at a path or below it, which what is outside would cover."""
    return any(place.startswith(f"{path.rstrip('/')}/") for place in _COVERED)


def find_sandbox_problem(sandbox: Sandbox) -> str | None:
    """Why this machine cannot give a sandbox, as far as its paths and the user tell; None: it can."""
    missing = [path for path in (*sandbox.read, *sandbox.devices) if not os.path.exists(path)]
    if missing:
        return f"sandbox: there is no {missing[0]}"
    wrong = [path for path in sandbox.read if holds_own(os.path.realpath(path))]
    if wrong:
        return f"sandbox.read: {wrong[0]} would cover what is new inside; name what is needed in it"
    wrong = [path for path in sandbox.devices if not is_device(path)]
    if wrong:
        return f"sandbox.devices: {wrong[0]} is no device below /dev, nor a folder of devices"
    if os.geteuid() == 0 and sandbox.processes is not None:
        return "sandbox.processes has no effect for root, whom the kernel does not count; leave it out"
    return None


def is_device(path: str) -> bool:
    """Whether a path below /dev is a device, or a folder with devices, and links, and nothing else."""
    real = os.path.realpath(path)
    if not real.startswith("/dev/"):
        return False
    if not os.path.isdir(real):
        return _is_node(real)
    names = [os.path.join(root, name) for root, _, files in os.walk(real) for name in files]
    nodes = [name for name in names if not os.path.islink(name)]
    return bool(nodes) and all(map(_is_node, nodes))


def _is_node(path: str) -> bool:
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return False
    return stat.S_ISCHR(mode) or stat.S_ISBLK(mode)


def find_masks(
    home: str, own: Program | None, *, as_root: bool, named: Iterable[str] = ()
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The folders and the files that hold secrets and are there; links count as what they lead to.

    Args:
        own: the state of the task's agent: its files are not hidden; its folders are, for a folder of the task's
            comes into their place.
        as_root: whether the user may read what is only for root.
    """
    of_others = [state for state in PROGRAMS.values() if own is None or state.folder != own.folder]
    files_of_others = {name for state in of_others for name in state.files}.difference(own.files if own else ())
    seeds = [state.seed for state in PROGRAMS.values() if state.seed]
    names = (
        *list_places(home, (*SECRET_FOLDERS, *SECRET_FILES, *seeds, *sorted(files_of_others)), os.environ),
        # where variables say that folders of agents are, and the usual places
        *(find_state_folder(state, home, os.environ) for state in PROGRAMS.values()),
        *list_places(home, (folder for state in PROGRAMS.values() for folder, _ in state.folders), os.environ),
        *(SYSTEM_SECRETS if as_root else ()),
        *named,
    )
    found = {os.path.realpath(path) for path in names if os.path.exists(path)}
    folders = {path for path in found if os.path.isdir(path)}
    files = {path for path in found - folders if not any(path.startswith(f"{folder}/") for folder in folders)}
    return tuple(sorted(folders)), tuple(sorted(files))


def find_named(environ: Mapping[str, str], passed: Iterable[str], directory: str) -> Iterator[str]:
    """Where variables say that secrets are: files, sockets and folders that are there.

    What all users may read in the system is no secret, and a folder at the top of the file system none alone.

    Args:
        environ: the variables of the session.
        passed: the names of those that come in: what they name is for the task.
        directory: where relative paths begin.
    """
    for place in SECRET_VARIABLES:
        variable, _, name = place.partition("/")
        value = environ.get(variable, "")
        for path in dict.fromkeys((value, *value.split(os.pathsep))) if variable not in passed else ():
            real = os.path.realpath(os.path.join(directory, os.path.expanduser(path), name))
            if path and _may_hold_secret(real):
                yield real


def _may_hold_secret(real: str) -> bool:
    try:
        mode = os.stat(real).st_mode
    except (OSError, ValueError):
        return False
    if real.startswith(_IN_SYSTEM) and mode & stat.S_IROTH:
        return False
    return stat.S_ISREG(mode) or stat.S_ISSOCK(mode) or (stat.S_ISDIR(mode) and os.path.dirname(real) != "/")


def find_state_folders(
    home: str, state: Program, environ: Mapping[str, str]
) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """The user's folders of an agent, in the order of `Program.folders`, and what can be read there."""
    others = ((next(list_places(home, (folder,), environ)), settings) for folder, settings in state.others)
    return ((find_state_folder(state, home, environ), state.settings), *others)


def list_settings(users: str, settings: Iterable[str]) -> Iterator[tuple[str, str]]:
    """What of a folder of the user's settings is there: the name, and where it really is."""
    if EVERYTHING in settings:
        settings = sorted(os.listdir(users)) if os.path.isdir(users) else ()
    for name in settings:
        path = os.path.realpath(os.path.join(users, name))
        if os.path.isfile(path) or os.path.isdir(path):
            yield name, path


def _folders_of(program: str) -> list[str]:
    """What to show of a program: the whole of what it was installed into, if that can be told, else its folder.

    A shim (of pyenv, asdf or mise) looks for the program in the folder around its own.  In ``~/.local`` lies much
    besides programs; what pip has installed there needs its ``lib``.
    """
    if program.startswith(_IN_SYSTEM) and not program.startswith("/usr/local/"):
        return []
    folder, home = os.path.dirname(program), os.path.expanduser("~")
    prefix = os.path.dirname(folder)
    if folder in ("/", home, "/tmp", "/var/tmp", "/run"):
        return [program]
    if "/node_modules/" in program:
        return [folder, program[: program.rindex("/node_modules/")] + "/node_modules"]
    if os.path.basename(folder) == "shims":
        return [prefix]
    if prefix == os.path.join(home, ".local"):
        return [folder, *(path for path in (os.path.join(prefix, "lib"),) if os.path.isdir(path))]
    is_prefix = os.path.basename(folder) == "bin" and any(
        os.path.exists(os.path.join(prefix, name)) for name in _IN_PREFIX
    )
    return [prefix] if is_prefix and prefix not in ("/", home) else [folder]


def _find_interpreters(program: str) -> list[str]:
    """The interpreter of a script, and what a virtual environment was made from."""
    try:
        with open(program, "rb") as stream:
            first = stream.read(256).partition(b"\n")[0]
    except OSError:
        return []
    if not first.startswith(b"#!"):
        return []
    words = os.fsdecode(first[2:]).split()
    if words and os.path.basename(words[0]) == "env":
        words = [word for word in words[1:] if not word.startswith("-")][:1]
    found = shutil.which(words[0]) if words else None
    if found is None:
        return []
    try:
        settings = (Path(found).parent.parent / "pyvenv.cfg").read_text("utf-8", "replace")
    except OSError:
        return [found]
    pairs = [line.partition("=") for line in settings.splitlines()]
    homes = [value.strip() for name, _, value in pairs if name.strip() == "home" and value.strip()]
    return [found, *(os.path.join(home, "python3") for home in homes)]


_PREFIXES: Final = tuple({prefix for program in PROGRAMS.values() for prefix in program.prefixes})
_SERVERS: Final = ("_BASE_URL", "_API_BASE", "OLLAMA_HOST")
"""How the names of variables begin and end by which agent CLIs are told of another server."""

_URL: Final = re.compile(r"(https?)://(?:[^@/\s\"']*@)?(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?")
_SETTING: Final = re.compile(
    r"(?:base_?url|api[_-]?base)[\"']?\s*[:=]\s*[\"']?(https?://[^\s\"',}]+)", re.IGNORECASE
)
_SETTINGS: Final = (".json", ".toml", ".env")
_MAX_SETTINGS: Final = 1 << 20


def list_rules(
    hosts: Iterable[str], state: Program | None, env: Mapping[str, str], words: Iterable[str]
) -> tuple[Rule, ...]:
    """The list of a job.

    Args:
        hosts: what the plan names.
        env: the variables inside.
        words: of the agent's command line, as it is configured.
    """
    rules = [make_rule(host) for host in hosts]
    if state is not None:
        rules += [make_rule(host, USUAL_PORTS) for host in state.hosts]
        rules += _find_servers(state, env, words)
    return tuple(dict.fromkeys(rules))


def _find_servers(state: Program, env: Mapping[str, str], words: Iterable[str]) -> Iterator[Rule]:
    for name, value in env.items():
        if name.startswith(_PREFIXES) and name.endswith(_SERVERS):
            yield from _parse_server(value if "://" in value else f"http://{value}")
        elif name.startswith(state.prefixes):
            yield from _find_settings(value)
    for word in words:
        yield from _find_settings(word)
    home = find_home()
    main, *others = find_state_folders(home, state, {**os.environ, **env})
    files = [path for name, path in list_settings(*main) if name.endswith(_SETTINGS)]
    files += [path for folder in others for _, path in list_settings(*folder)]
    for path in (*files, *(os.path.join(home, name) for name in state.files)):
        with suppress(OSError):
            content = read_regular(os.path.realpath(path), _MAX_SETTINGS)
            yield from _find_settings(content.decode("utf-8", "replace"))


def _find_settings(text: str) -> Iterator[Rule]:
    """The servers that settings name, whatever their format is."""
    for found in _SETTING.finditer(text):
        yield from _parse_server(found[1])


def _parse_server(address: str) -> Iterator[Rule]:
    found = _URL.match(address)
    if found is None:
        return
    usual = 443 if found[1] == "https" else 80
    place = split_authority(found[2] + (f":{found[3]}" if found[3] else ""), usual)
    if place is not None:
        yield make_rule(place[0], (place[1],), private=True)
