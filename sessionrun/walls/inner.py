"""The first program inside of the walls: starts the job's program, waits, and reports how it ended.

    python -I -S inner.py REPORT PROCESSES STDIN PROXY PROGRAM ARGUMENT...

REPORT is the descriptor of the report, or ``-``.  PROCESSES is the most processes that may live, or ``-``; it is
set here, because it then counts those inside.  STDIN is the file that the program reads; ``-``: it reads nothing;
``@FD``: there is no program, but programs are asked for at the socket FD (see `serve`).  PROXY is a Unix socket to
which connections to 127.0.0.1:3128 are carried, or ``-``.

The report has lines: ``started``; then ``ended STATUS CPU``, the raw status of wait(2) and seconds; or ``failed
ERRNO`` if the program cannot be executed.  The exit code alone could not tell `exit 137` from SIGKILL.

First it closes the kernel's keys (keyrings(7)): a namespace of users would leave the keyring of the caller's login
open.
"""

# `signal` loads `enum` and more, which takes as long as the start of the interpreter
import _signal  # type: ignore[import-not-found]
import errno
import os
import sys
import time

TYPE_CHECKING = False  # as in `typing`, which takes long to import
if TYPE_CHECKING:
    import _socket

AGAIN_S = 0.1

ASKED = "@"
"""How the word begins that names the socket at which programs are asked for."""

CALLS = {
    "x86_64": ((0xC000003E, 248), (0x40000003, 286)),
    "aarch64": ((0xC00000B7, 217), (0x40000028, 309)),
}
"""By the machine, for each kind of system call (AUDIT_ARCH, the machine's own and that of 32 bits) the number of
add_key; those of request_key and keyctl follow it."""

JOIN_SESSION_KEYRING, SESSION_TO_PARENT = 1, 18
PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 22, 2
PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 4, 36
ALLOW, NO_SUCH_CALL = 0x7FFF0000, 0x00050000 | errno.ENOSYS
X32 = 0x40000000
"""A bit of the numbers of x86_64, which means the same call with smaller pointers."""


def main(words: list[str]) -> int:
    """Run the program of the command line; its exit code, or 128 and the number of the signal that ended it."""
    close_keys()
    report, processes, stdin, proxy, *argv = words
    fd = None if report == "-" else int(report)
    if fd is not None:
        os.set_inheritable(fd, False)
        os.write(fd, b"started\n")
    if processes != "-":
        import resource

        resource.setrlimit(resource.RLIMIT_NPROC, (int(processes), int(processes)))
    for number in (_signal.SIGTERM, _signal.SIGINT, _signal.SIGHUP):
        _signal.signal(number, _signal.SIG_IGN)  # they are meant for the program
    if proxy != "-":
        carry(proxy)
    if stdin.startswith(ASKED):
        return serve(int(stdin[len(ASKED) :]))
    reads = (os.POSIX_SPAWN_OPEN, 0, os.devnull if stdin == "-" else stdin, os.O_RDONLY, 0)
    # it begins with all of them as usual
    signals = [number for number in _signal.valid_signals() if number not in (_signal.SIGKILL, _signal.SIGSTOP)]
    try:
        pid = os.posix_spawnp(argv[0], argv, os.environ, file_actions=[reads], setsigdef=signals)
    except OSError as error:
        if fd is not None:
            os.write(fd, b"failed %d\n" % (error.errno or 0))
        print(f"{argv[0]}: {error.strerror}", file=sys.stderr, flush=True)
        return 127
    _, status, usage = os.wait4(pid, 0)
    if fd is not None:
        os.write(fd, b"ended %d %.6f\n" % (status, usage.ru_utime + usage.ru_stime))
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def serve(fd: int) -> int:
    """Run the programs that are asked for, one at a time; all that one has started is dead before the answer.

    What is asked is four bytes, the length of what follows, with the descriptors of input, output and errors; then
    where it begins, the number of its words, these, and its variables, with a NUL between them.  The answer is the
    exit code in digits.
    """
    import _socket

    if os.getpid() != 2:  # all processes that we can see are ended below
        return 125
    set_process(PR_SET_CHILD_SUBREAPER, 1)
    set_process(PR_SET_DUMPABLE, 0)  # no program inside can trace us, or take our descriptors
    os.set_inheritable(fd, False)
    stream = _socket.socket(fileno=fd)
    while True:
        head, given, *_ = stream.recvmsg(4, _socket.CMSG_SPACE(12))
        if len(head) < 4 or not given:
            return 0
        text, size = b"", int.from_bytes(head, "big")
        while len(text) < size:
            text += stream.recv(size - len(text)) or sys.exit(1)
        fds = memoryview(given[0][2]).cast("i").tolist()
        if len(fds) != 3:  # a program inside has lowered our limit: what is printed would be lost
            return 1
        code = run(text.split(b"\0"), fds)
        for each in fds:
            os.close(each)
        stream.sendall(b"%d" % code)


def run(words: list[bytes], fds: list[int]) -> int:
    """Run a program and end all that it has started; its exit code, or 128 and the number of the signal."""
    cwd, count, rest = words[0], int(words[1]), words[2:]
    argv, environ = rest[:count], dict(word.split(b"=", 1) for word in rest[count:])
    actions = [(os.POSIX_SPAWN_DUP2, each, number) for number, each in enumerate(fds)]
    signals = [number for number in _signal.valid_signals() if number not in (_signal.SIGKILL, _signal.SIGSTOP)]
    try:
        os.chdir(cwd)
        pid = os.posix_spawnp(argv[0], argv, environ, file_actions=actions, setsigdef=signals)
    except OSError as error:
        os.write(fds[2], b"%s: %s\n" % (argv[0], (error.strerror or "").encode()))
        return 127
    _, status = os.waitpid(pid, 0)
    try:
        while True:  # orphans become our children
            try:
                os.kill(-1, _signal.SIGKILL)
            except ProcessLookupError:
                pass
            os.waitpid(-1, 0)
    except ChildProcessError:
        return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def set_process(option: int, value: int) -> None:
    """See prctl(2)."""
    import _ctypes

    library = _ctypes.dlopen(None, 0)  # type: ignore[arg-type]
    _ctypes.call_function(_ctypes.dlsym(library, "prctl"), (option, value, 0, 0, 0))


def close_keys() -> None:
    """Take a new session keyring, and let no program inside call add_key, request_key or keyctl.

    Where that cannot be had the programs run all the same; `doctor` says it.
    """
    kinds = CALLS.get(os.uname().machine, ())
    try:
        import _ctypes  # `ctypes` takes three times as long to import
        import struct
    except ImportError:
        return
    library = _ctypes.dlopen(None, 0)  # type: ignore[arg-type]
    if kinds:
        syscall, keyctl = _ctypes.dlsym(library, "syscall"), kinds[0][1] + 2
        _ctypes.call_function(syscall, (keyctl, JOIN_SESSION_KEYRING, None))
        # the first process inside is bubblewrap's: it has the caller's keyring, and a task could trace it
        _ctypes.call_function(syscall, (keyctl, SESSION_TO_PARENT))
    code = [(0x20, 0, 0, 4)]  # load the kind
    for kind, first in kinds:
        code += [
            (0x15, 0, 6, kind),  # another one: to the next kind
            (0x20, 0, 0, 0),  # load the number
            (0x54, 0, 0, 0xFFFFFFFF & ~X32),
            (0x35, 0, 2, first),  # less: allow
            (0x25, 1, 0, first + 2),  # more: allow
            (0x06, 0, 0, NO_SUCH_CALL),  # as a kernel without keys says; programs know that
            (0x06, 0, 0, ALLOW),
        ]
    code.append((0x06, 0, 0, ALLOW))
    words = b"".join(struct.pack("HBBI", *one) for one in code)

    class Byte(_ctypes._SimpleCData):  # type: ignore[type-arg]
        _type_ = "c"

    held = (Byte * len(words)).from_buffer_copy(words)
    program = struct.pack("HP", len(code), _ctypes.addressof(held))
    _ctypes.call_function(_ctypes.dlsym(library, "prctl"), (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, program))


def carry(proxy: str) -> None:
    """Carry connections to 127.0.0.1:3128 to the socket `proxy`, in threads that end with this process.

    `socket` and `threading` would take longer to import than the walls take to stand.
    """
    import _socket
    import _thread

    listener = _socket.socket()
    listener.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", 3128))
    listener.listen(128)

    def join(near: _socket.socket) -> None:
        far = _socket.socket(_socket.AF_UNIX)
        try:
            far.connect(proxy)
            has_come_back = _thread.allocate_lock()
            has_come_back.acquire()
            _thread.start_new_thread(come_back, (far, near, has_come_back))
            pump(near, far)
            has_come_back.acquire()
        except (OSError, RuntimeError):  # as below
            pass
        finally:
            near.close()
            far.close()

    def come_back(far: _socket.socket, near: _socket.socket, is_done: _thread.LockType) -> None:
        pump(far, near)
        is_done.release()

    def accept() -> None:
        while True:
            try:
                fd, _ = listener._accept()  # type: ignore[attr-defined]
            except OSError:  # no descriptor is left
                time.sleep(AGAIN_S)
                continue
            near = _socket.socket(fileno=fd)
            try:
                _thread.start_new_thread(join, (near,))
            except RuntimeError:  # no more processes may live, which threads are to the kernel
                near.close()

    _thread.start_new_thread(accept, ())


def pump(source: "_socket.socket", sink: "_socket.socket") -> None:
    try:
        while chunk := source.recv(1 << 16):
            sink.sendall(chunk)
    except OSError:
        pass
    try:
        sink.shutdown(1)  # it is written to no more
    except OSError:
        pass


if __name__ == "__main__":
    os._exit(main(sys.argv[1:]))  # to take the interpreter down would take longer, and nothing is left to do
