"""What head and node leave each other on the shared file system.  Standard library alone.

Below the session's directory:

    slurm/batch-B.json              the orders of a batch, by index
    slurm/log-B.txt                 what was printed around its jobs
    JOB_FOLDER/slurm-claim.json     which Slurm job runs it, or that the head has given it up
    JOB_FOLDER/slurm-end.json       how it ended
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from sessionrun.store.files import make_directories, open_regular, read_regular, replace_file, sync_directory

CLAIM: Final = "slurm-claim.json"
END: Final = "slurm-end.json"
LEDGER: Final = "slurm-ledger"
MAX_BYTES: Final = 1 << 20


class Records:
    """The claim and the end of one job, whose folder that is."""

    def __init__(self, folder: Path) -> None:
        self.claim_path = folder / CLAIM
        self.end_path = folder / END

    def claim(self, about: Mapping[str, Any]) -> bool:
        """Take the job, once and for ever; False: it was taken before.

        A link can be made only if nothing has its name, also on NFS; there it may be made, and the answer lost.
        """
        path = self.claim_path
        make_directories(path.parent, 0o700)
        beside = path.with_name(f".{path.name}.{os.uname().nodename}.{os.getpid()}")
        fd = open_regular(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            os.write(fd, dump(about))
            os.fsync(fd)
        finally:
            os.close(fd)
        try:
            with suppress(FileExistsError):
                os.link(beside, path)
            taken = os.stat(beside).st_nlink == 2
        finally:
            os.unlink(beside)
        sync_directory(path.parent)
        return taken

    def keep_end(self, about: Mapping[str, Any]) -> None:
        """Record the end, whole or not at all, and durably."""
        replace_file(self.end_path, dump(about), durable=True)


def load(path: Path, most: int | None = None) -> dict[str, Any]:
    """The JSON object in a file of at most so many bytes, such as the orders of a batch.

    Raises:
        ValueError: it is damaged.
        OSError: it cannot be read.
    """
    found = json.loads(read_regular(path, most))
    if not isinstance(found, dict):
        raise ValueError(f"{path} holds no object")
    return found


def dump(about: Mapping[str, Any]) -> bytes:
    """An object as it is written: words may hold any byte, as surrogates."""
    return json.dumps(about).encode()
