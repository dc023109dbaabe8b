"""What `doctor agents` finds of walls: whether this machine can build them."""

from __future__ import annotations

from typing import Any, Final

from sessionrun.client.findings import Findings


def examine_walls() -> tuple[dict[str, Any], str]:
    """Try each policy, which takes a fraction of a second; for programs, and in one line.

    Programs get bubblewrap's version, by policy why it cannot build walls (None: it can), and in `keys` why the
    kernel's keys stay open inside (None: they do not).
    """
    from sessionrun.walls.trial import find_open_keys, find_problem, read_version

    version, project, strict = read_version(), find_problem("project"), find_problem("strict", network=False)
    keys = None if project else find_open_keys()
    line = project
    if line is None:
        line = f"bubblewrap {version} can build them (run --sandbox project)"
        line += "" if strict is None else f"; not strict: {strict}"
        line += "" if keys is None else f"; {keys}"
    return {"version": version, "project": project, "strict": strict, "keys": keys}, line


FINDINGS: Final = Findings(machine={"walls": examine_walls})
