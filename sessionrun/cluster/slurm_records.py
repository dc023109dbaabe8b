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

from sessionrun.store.files import make_directories, read_regular, replace_file, sync_directory

CLAIM: Final = "slurm-claim.json"
END: Final = "slurm-end.json"
LEDGER: Final = "slurm-ledger"
MAX_BYTES: Final = 1 << 20


def claim(folder: Path, about: Mapping[str, Any]) -> bool:
    """Take the job whose folder that is, once and for ever; False: it was taken before.

    A link can be made only if nothing has its name, also on NFS; there it may be made, and the answer lost.
    """
    make_directories(folder, 0o700)
    beside = folder / f".{CLAIM}.{os.uname().nodename}.{os.getpid()}"
    replace_file(beside, dump(about), durable=True)
    try:
        with suppress(FileExistsError):
            os.link(beside, folder / CLAIM)
        taken = os.stat(beside).st_nlink == 2
    finally:
        os.unlink(beside)
    sync_directory(folder)
    return taken


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
