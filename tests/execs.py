"""Lets a process of ours become another of our programs without a new interpreter, for the tests' warm process.

A session executes an interpreter for its root, one for its supervisor, and one for each job of our own code.  The
start of these and their imports cost far more than what they then do.  `install` replaces `os.execve` and
`os.posix_spawn` in this process and its descendants: where an interpreter would begin one of the programs in
`_find_program`, the calling process, or its forked child, begins that program itself.

Root, keeper and supervisor stay processes of their own, with real parents, locks, sockets, signals and deaths.  A
program gets what a new interpreter would give it; `tests/test_execs.py` compares both by /proc:

- descriptors that are close-on-exec are closed; errors of `file_actions` are raised in the parent;
- handlers of signals are the default ones, ignored signals stay ignored, then Python's start sets its own;
- the argument list and the environment are new: in Python, for libc, and in /proc/PID/cmdline and environ;
- streams, `sys.argv` and `sys.path` are new; caches and containers in modules of ours that grow are empty again,
  but for what `warm.py` put there: that follows from our classes alone;
- the process ends with the code of the program; nothing of what was there before is cleaned up.

A restart after a kill begins its program in the same way, since the process that restarts it has these functions.
The programs' imports and costs, and an upgrade below a session, need an interpreter.  Tests of these, and of
leaving the caller, start the real command (`real=True`), and below it all is real.  All is real too if the
environment has other variables that an interpreter reads, and if the system does not let a process set what /proc
shows of it.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import io
import os
import signal
import struct
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO, Final, NoReturn, cast

PREFIXES: Final = ("PYTHON", "LC_", "LANG", "LD_", "MALLOC_")
"""Variables that work when an interpreter starts."""

_found = find_spec("sessionrun")
CODE: Final = str(Path((_found and _found.origin) or __file__).parents[1])
"""Where the package is that is tested: PYTHONPATH may name another one than that of these tests."""

_PR_SET_MM: Final = 35
_PR_SET_MM_MAP: Final = 14
_FAILED: Final = struct.Struct("!i")

_real_execve = os.execve
_real_spawn = os.posix_spawn
_kept: list[Any] = []
"""What must not be let go: what /proc shows of this process, and what it had before."""


def choose(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables by which an interpreter would be another one."""
    chosen = {name: value for name, value in environ.items() if name.startswith(PREFIXES)}
    if chosen.get("PYTHONPATH") == CODE:
        del chosen["PYTHONPATH"]
    if "/calls-" in chosen.get("LD_PRELOAD", ""):  # the warm process has it, whoever is watched: see `calls.py`
        del chosen["LD_PRELOAD"]
    return chosen


def install() -> None:
    """From now on programs of ours begin without an interpreter, here and in all descendants by fork."""
    if not sys.platform.startswith("linux"):
        return
    words = Path("/proc/self/cmdline").read_bytes().split(b"\0")[:-1]
    if not show_as(words, os.environb):
        return
    _Origin.keep()
    module: Any = os
    module.execve, module.posix_spawn = _execve, _posix_spawn


class _Origin:
    """How an interpreter of ours is when it starts."""

    environ: Mapping[str, str] = {}
    path: Sequence[str] = ()
    recursion_limit = sys.getrecursionlimit()
    growing: Sequence[Any] = ()
    caches: Sequence[Any] = ()

    @classmethod
    def keep(cls) -> None:
        """What this process has now.  Containers of modules that are empty will grow; the others are tables."""
        modules = [one for name, one in sys.modules.items() if name.partition(".")[0] == "sessionrun"]
        every = [value for module in modules for value in vars(module).values()]
        cls.environ, cls.path = choose(os.environ), list(sys.path)
        cls.growing = [value for value in every if type(value) in (list, dict, set) and not value]
        caches = [value for value in every if isinstance(value, functools._lru_cache_wrapper)]
        cls.caches = [cache for cache in caches if not cache.cache_info().currsize]

    @classmethod
    def restore(cls) -> None:
        """Put it back."""
        sys.path[:] = cls.path
        for container in cls.growing:
            _kept.append(container.copy())  # a file that is let go would close a descriptor of another
            container.clear()
        for cache in cls.caches:
            cache.cache_clear()


# --- in the place of the system's functions ---


def _execve(path: Any, argv: Any, environ: Mapping[Any, Any]) -> NoReturn:
    words, environ = encode(argv, environ)
    program = _find_program(words, environ)
    if program is None or not show_as(words, environ):
        _real_execve(path, argv, environ)
    begin(program, words, environ)


def _posix_spawn(path: Any, argv: Any, environ: Mapping[Any, Any] | None, **how: Any) -> int:
    words, environ = encode(argv, environ)
    program = _find_program(words, environ)
    if program is None or not set(how) <= {"file_actions", "setsid", "setsigdef", "setsigmask"}:
        return _real_spawn(path, argv, environ, **how)
    read_fd, write_fd = os.pipe()
    # As the system does it: the child blocks all signals while it still looks as its parent does.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    pid = -1
    try:
        pid = os.fork()
    finally:  # also where it is refused
        if pid == 0:
            _be_spawned(program, words, environ, write_fd, how.pop("setsigmask", mask), **how)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.close(write_fd)
    with open(read_fd, "rb") as stream:
        failed = stream.read()
    if failed:
        os.waitpid(pid, 0)
        number = _FAILED.unpack(failed)[0]
        raise OSError(number, os.strerror(number), path)
    return pid


def _be_spawned(
    program: Callable[[], object],
    words: Sequence[bytes],
    environ: Mapping[bytes, bytes],
    failed_fd: int,
    mask: Iterable[int],
    *,
    file_actions: Sequence[tuple[int, int, Any, int, int]] = (),
    setsid: bool = False,
    setsigdef: Iterable[int] = (),
) -> NoReturn:
    """In the child; `failed_fd` is open as long as it could still fail."""
    try:
        signal.set_wakeup_fd(-1)
        if setsid:
            os.setsid()
        for number in setsigdef:
            signal.signal(number, signal.SIG_DFL)
        for action, fd, path, flags, mode in file_actions:
            assert action == os.POSIX_SPAWN_OPEN
            opened = os.open(path, flags, mode)
            os.dup2(opened, fd)
            if opened != fd:
                os.close(opened)
            os.set_inheritable(fd, True)
        if not show_as(words, environ):
            raise OSError(1, "")
    except OSError as error:
        os.write(failed_fd, _FAILED.pack(error.errno or 1))
        os._exit(127)
    except BaseException:
        os.write(2, traceback.format_exc().encode())
        os._exit(127)
    _reset_signals()
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    begin(program, words, environ)


def encode(argv: Sequence[Any], environ: Mapping[Any, Any] | None) -> tuple[list[bytes], dict[bytes, bytes]]:
    """As the system has them; since Python 3.13 no environment is that of this process."""
    variables = os.environb if environ is None else environ
    return [os.fsencode(word) for word in argv], {
        os.fsencode(name): os.fsencode(value) for name, value in variables.items()
    }


def _close_on_exec() -> None:
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the directory that was read
            if not os.get_inheritable(int(name)):
                os.close(int(name))


def _reset_signals() -> None:
    """As exec leaves them, and then as Python's start sets them."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if signal.getsignal(number) not in (signal.SIG_DFL, signal.SIG_IGN):
            with suppress(OSError):
                signal.signal(number, signal.SIG_DFL)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_IGN)
    if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def begin(program: Callable[[], object], words: Sequence[bytes], environ: Mapping[bytes, bytes]) -> NoReturn:
    """Be a program, as behind exec, and leave with its code.

    Nothing is let go that was there before: it is in frames never left, which count for no recursion.
    """
    _close_on_exec()
    gc.freeze()
    sys.setrecursionlimit(_Origin.recursion_limit + len(list(traceback.walk_stack(None))))
    _reset_signals()
    _Origin.restore()
    os.environb.clear()
    os.environb.update(environ)
    time.tzset()
    with suppress(AttributeError):  # another program has another role, and its own rules
        ctypes.CDLL(None).calls_begin()
    arguments = [os.fsdecode(word) for word in words]
    while arguments[1] in ("-I", "-S"):
        del arguments[1]
    sys.argv = arguments[2:] if arguments[1] in ("-c", "-m") else arguments[1:]
    if arguments[1] == "-c":
        sys.argv[0] = "-c"
    _run(program)


# --- the programs ---


def _find_program(words: Sequence[bytes], environ: Mapping[bytes, bytes]) -> Callable[[], object] | None:
    """What an interpreter would begin; None for a program that is none of ours, or another interpreter's."""
    if not words or os.fsdecode(words[0]) != sys.executable:
        return None
    if choose({os.fsdecode(name): os.fsdecode(value) for name, value in environ.items()}) != _Origin.environ:
        return None
    from sessionrun.keeper.wire import root_command

    rest = [word for word in words[1:5] if word not in (b"-I", b"-S")]
    if rest[:2] == [os.fsencode(word) for word in root_command("", 0)[-4:-2]]:
        return _be_supervisor
    return _SCRIPTS.get(os.path.relpath(os.fsdecode(rest[0]), CODE)) if rest else None


def _be_supervisor() -> None:
    from sessionrun.session.main import main

    sys.path[0] = sys.argv.pop(1)
    main()


_SCRIPTS: Final[Mapping[str, Callable[[], object]]] = {
    "sessionrun/keeper/__main__.py": lambda: import_module("sessionrun.keeper.root").main(),
    "sessionrun/session/job.py": lambda: import_module("sessionrun.session.job").run(*sys.argv[1:]),
}


# --- what an interpreter does at its start and its end ---


def _run(program: Callable[[], object]) -> NoReturn:
    """Run a program on new streams and leave with its code, as an interpreter would."""
    code: object = 1
    try:
        _open_streams()
        code = program()
    except SystemExit as error:
        code = error.code
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        traceback.print_exc()
    finally:
        if code is not None and not isinstance(code, int):
            print(code, file=sys.stderr)
            code = 1
        os._exit(int(code or 0) & 0xFF if _flush() else 120)


def _flush() -> bool:
    """Write what the streams hold; as with an interpreter, a failure is told and has a code of its own."""
    try:
        if sys.stdout is not None and not sys.stdout.closed:
            sys.stdout.flush()
    except (OSError, ValueError):
        traceback.print_exc()
        return False
    with suppress(OSError, ValueError, AttributeError):
        sys.stderr.flush()
    return True


def _open_streams() -> None:
    _kept.append((sys.stdin, sys.stdout, sys.stderr))  # what they hold must not be written
    sys.stdin = _open(0, "rb", "surrogateescape")
    sys.stdout = _open(1, "wb", "surrogateescape")
    sys.stderr = _open(2, "wb", "backslashreplace", line_buffering=True)


def _open(fd: int, mode: str, errors: str, *, line_buffering: bool = False) -> Any:
    try:
        stream = cast("BinaryIO", open(fd, mode, closefd=False))
    except OSError:  # it is closed
        return None
    return io.TextIOWrapper(stream, "utf-8", errors, line_buffering=line_buffering)


# --- what /proc shows ---


def show_as(words: Sequence[bytes], environ: Mapping[bytes, bytes]) -> bool:
    """Let /proc show this argument list and environment of this process; whether the system lets us."""
    arguments = b"".join(word + b"\0" for word in words)
    variables = b"".join(name + b"=" + value + b"\0" for name, value in environ.items())
    content = ctypes.create_string_buffer(arguments + variables)
    begin = ctypes.addressof(content)
    middle, end = begin + len(arguments), begin + len(arguments) + len(variables)
    stat = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    code, data, heap, stack = _get(stat, 26, 27), _get(stat, 45, 46), _get(stat, 47), _get(stat, 28)
    libc = ctypes.CDLL(None)
    libc.sbrk.restype = ctypes.c_void_p
    heap.append(libc.sbrk(ctypes.c_long(0)))
    layout = struct.pack("11QQII", *code, *data, *heap, *stack, begin, middle, middle, end, 0, 0, 0xFFFFFFFF)
    size = ctypes.c_ulong(len(layout))
    if libc.prctl(_PR_SET_MM, ctypes.c_ulong(_PR_SET_MM_MAP), layout, size, ctypes.c_ulong(0)) != 0:
        return False
    _kept.append(content)
    return True


def _get(stat: Sequence[bytes], *fields: int) -> list[int]:
    """Fields of /proc/PID/stat, numbered as in proc(5); the first one here is the third."""
    return [int(stat[field - 3]) for field in fields]
