"""The gates: the commands that have to pass on a candidate before it may land; setups are taken off the work.

They run in a room of the target's own (see `git.clone`): a repository that borrows the objects of the real
one, so that no gate can change a branch of that.  A script that a gate runs is work, too: what lies in the target
counts, and if the candidate changes it, its own version has to pass as well.

The work is written anew without the commits of setups, commit by commit, with the same authors, times and
messages.  The new commits depend on the old ones alone: so the target itself tells whether they have landed.
"""

from __future__ import annotations

import io
import os
import shlex
from collections.abc import Collection, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import IO, Final

from sessionrun.git.git import Git
from sessionrun.git.merging import MergeRoom, write_commit
from sessionrun.git.private import Fence
from sessionrun.git.rooms import keep_room
from sessionrun.landing.records import NOT_RUN, Gates, LandRequest, room_path
from sessionrun.model.frozen import frozen
from sessionrun.session.launch import CALLER_S_REPOSITORY
from sessionrun.store.files import open_regular
from sessionrun.walls.argv import Walls
from sessionrun.walls.build import raise_if_any
from sessionrun.walls.shell import Shell
from sessionrun.worktrees.environments.build import provide_environment
from sessionrun.worktrees.request import EnvironmentProblem, WorkspaceRequest, drop_environment
from sessionrun.worktrees.site import bring_files

WORK: Final = "work"
"""In the folder of a landing: temporary directories; a killed turn's are removed by the next."""


@frozen
class GateRoom:
    """The gates of one target.

    `files` are the blobs, by path, that the target has of what the gates run; `digest` is what, beside the tree,
    their verdict depends on.
    """

    fence: Fence
    target: str
    gates: Gates
    walls: Walls | None
    build_walls: Walls | None
    folder: Path
    files: dict[str, str]
    digest: str

    @property
    def path(self) -> Path:
        """Where the room is, between landings too."""
        return room_path(self.fence.repository, self.target)

    def run(self, commit: str) -> tuple[str | None, str]:
        """Run the gates on a commit: in one line why they are red (None: green), and the file of their output."""
        numbers = [int(path.stem[5:]) for path in self.folder.glob("gate-*.txt") if path.stem[5:].isdecimal()]
        output = self.folder / f"gate-{max(numbers, default=0) + 1}.txt"
        own = find_blobs(self.fence.main(), commit, list(self.files))
        changed = [name for name, blob in self.files.items() if own.get(name) != blob]
        given = WorkspaceRequest(self.fence.repository, "", "", "", links=self.gates.links)
        with open(output, "wb", opener=open_regular) as stream:
            for overlaid in [True, False] if changed else [False]:
                git = keep_room(self.fence, self.path, commit)
                bring_files(self.fence.main(), given, self.path, in_room=True)
                if overlaid:
                    entries = "".join(f"{self.files[name]}\t{name}\0" for name in changed)
                    names = "".join(f"{name}\0" for name in changed)
                    git("update-index", "-z", "--add", "--index-info", stdin=os.fsencode(entries))
                    git("checkout-index", "-f", "-z", "--stdin", stdin=os.fsencode(names))
                why = self._run_all(commit, stream)
                if why is not None:
                    whose = f" (with the target's {', '.join(changed)})" if overlaid else ""
                    return why + whose, str(output)
        output.unlink()
        return None, ""

    def _run_all(self, commit: str, stream: IO[bytes]) -> str | None:
        """Why the gates are red, in one line; None: they are green."""
        wish = self.gates.environment
        if wish is None:
            return self._run_commands({}, stream)
        work = self.folder / WORK
        work.mkdir(exist_ok=True)
        text = io.TextIOWrapper(stream, "utf-8", "surrogateescape", write_through=True)
        try:
            with redirect_stdout(text):
                variables = provide_environment(replace(wish, commit=commit), work, self.build_walls)
                return self._run_commands(variables, stream)
        except EnvironmentProblem as error:
            stream.write(f"environment: {error}\n".encode("utf-8", "surrogateescape"))
            return f"its environment: {error}"[:200]
        finally:
            drop_environment(self.path)  # first: on a full disk what is next fails
            text.detach()  # else its end would close the stream

    def _run_commands(self, variables: Mapping[str, str], stream: IO[bytes]) -> str | None:
        limit_s, walls = self.gates.timeout_s, self.walls
        outer = os.environ if walls is None else walls.env
        environ = {name: value for name, value in outer.items() if name not in CALLER_S_REPOSITORY}
        environ |= {**variables, "SESSIONRUN_WORKTREE": str(self.path)}
        shell = Shell(self.path, environ, walls)
        for command in self.gates.commands:
            ended = shell.run(command, stream, limit_s)
            if ended.why is not None:
                how = f"{NOT_RUN}: {ended.no_program}:" if ended.no_program else f"{ended.why} of:"
                return f"{how} {' '.join(command.split())}"[:200]
        return None


def open_gates(fence: Fence, request: LandRequest, old: str) -> GateRoom:
    """The gates of a target that is at the commit `old`, with the walls that they wish for."""
    gates = request.gates
    walls = raise_if_any(gates.walls)
    build_walls = None if gates.environment is None else raise_if_any(gates.environment.walls, builds=True)
    names = list_gate_files(gates.commands)
    files = find_blobs(fence.main(), old, names)
    parts = repr((gates.commands, gates.timeout_s, sorted(files.items()), gates.links))
    parts += "" if gates.walls is None else f" walls {gates.walls.sandbox}"
    parts += "" if gates.environment is None else f" python {gates.environment.python}"
    digest = sha256(parts.encode("utf-8", "surrogateescape")).hexdigest()[:16]
    return GateRoom(fence, request.target, gates, walls, build_walls, Path(request.folder), files, digest)


def list_gate_files(commands: Sequence[str]) -> list[str]:
    """The paths that the commands name, as far as words tell; of ``make`` the files that it reads first."""
    names: dict[str, None] = {}
    for command in commands:
        try:
            words = shlex.split(command, comments=True)
        except ValueError:
            words = command.split()
        for word in words:
            name = os.path.normpath(word)
            if name in ("make", "gmake"):
                names |= dict.fromkeys(("GNUmakefile", "makefile", "Makefile"))
            elif not name.startswith(("-", "/", "..")) and name != "." and name.isprintable():
                names[name] = None
    return list(names)


def find_blobs(git: Git, commit: str, names: Sequence[str]) -> dict[str, str]:
    """Mode and id of those of these files that a commit has, as ``update-index --index-info`` reads them."""
    if not names:
        return {}
    blobs = {}
    for line in git.names("--literal-pathspecs", "ls-tree", "-z", "--full-tree", commit, "--", *names):
        about, _, name = line.partition("\t")
        mode, _, blob = about.split(" ")
        if mode.startswith("100"):
            blobs[name] = f"{mode} {blob}"
    return blobs


def take_off(
    git: Git, room: MergeRoom, tip: str, old: str, setups: Collection[str]
) -> tuple[str | None, list[str]]:
    """The work of `tip` without what these commits of setups brought; the commits of `old`, the target, stay.

    Returns the commit that holds the work alone; None and files, if the work changes what a setup had changed.
    """
    if not setups:
        return tip, []
    listed = git.line("rev-list", "--topo-order", "--reverse", "--parents", tip, "--not", old)
    rows = [line.split(" ") for line in listed.split("\n") if line]
    if not any(row[0] in setups for row in rows):
        return tip, []
    made: dict[str, str] = {}
    below: dict[str, tuple[str, ...]] = {}
    for commit, *parents in rows:
        under = tuple(dict.fromkeys(setup for parent in parents for setup in below.get(parent, ())))
        below[commit] = under
        if commit in setups:
            below[commit] = (*under, commit)
            made[commit] = made.get(parents[0], parents[0])
        elif not under:
            made[commit] = commit
        else:
            tree, files = _revert(git, room, commit, under)
            if tree is None and commit == tip:
                return None, files
            made[commit] = _rewrite(git, commit, tree or _tree_of(git, commit), made)
    return made[tip], []


def _revert(git: Git, room: MergeRoom, commit: str, setups: Collection[str]) -> tuple[str | None, list[str]]:
    """The tree of a commit without what setups below it brought, the last one first."""
    tree = _tree_of(git, commit)
    for setup in reversed(list(setups)):
        with_setup = git.commit_tree(tree, (setup,), "with")
        without = git.commit_tree(_tree_of(git, f"{setup}~1"), (setup,), "without")
        merged = room.merge(with_setup, without)
        if merged.tree is None:
            return None, merged.files
        tree = merged.tree
    return tree, []


def _rewrite(git: Git, commit: str, tree: str, made: Mapping[str, str]) -> str:
    """The same commit with another tree, on top of what was made of its parents."""
    head, _, message = git("cat-file", "commit", commit).partition(b"\n\n")
    lines, is_signature = [], False
    for line in head.split(b"\n"):
        name, _, value = line.partition(b" ")
        is_signature = name.startswith(b"gpgsig") or (is_signature and not name)
        if name == b"tree":
            lines.append(b"tree " + tree.encode())
        elif name == b"parent":
            lines.append(b"parent " + made.get(value.decode(), value.decode()).encode())
        elif not is_signature:
            lines.append(line)
    content = b"\n".join(lines) + b"\n\n" + message
    return write_commit(git, content)


def _tree_of(git: Git, commit: str) -> str:
    return git.line("rev-parse", f"{commit}^{{tree}}")
