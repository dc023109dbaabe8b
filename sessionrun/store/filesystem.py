"""Which file system a path is on."""

from __future__ import annotations

import os
from pathlib import Path


def find_file_system(path: Path) -> str | None:
    """Return the name of its type, such as ``ext4``; None where that cannot be known."""
    import psutil

    real = os.path.realpath(path)
    best: tuple[str, str | None] = ("", None)
    try:
        mounts = psutil.disk_partitions(all=True)
    except (psutil.Error, OSError):
        return None
    for mount in mounts:
        inside = real == mount.mountpoint or real.startswith(mount.mountpoint.rstrip("/") + "/")
        if inside and len(mount.mountpoint) >= len(best[0]):
            best = (mount.mountpoint, mount.fstype)
    return best[1]
