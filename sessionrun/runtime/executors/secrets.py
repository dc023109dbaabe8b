"""Values of environment variables that a plan gives by name: ``{env:NAME}`` is NAME where the job runs.

So a secret is in no plan, spec or order.  It is looked up by the last of our processes before the job's own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

_BY_NAME: Final = re.compile(r"\{env:([A-Za-z_][A-Za-z0-9_]*)\}")


class NotSet(Exception):
    """A variable that a job needs is not set on its machine."""


def look_up(env: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of a job, with the values of those that are given by name.

    Raises:
        NotSet: one has none.
    """
    return {name: _find(name, value, environ) for name, value in env.items()}


def _find(name: str, value: str, environ: Mapping[str, str]) -> str:
    found = _BY_NAME.fullmatch(value)
    if found is None:
        return value
    if found[1] not in environ:
        raise NotSet(f"the variable {found[1]}, which {name} is to be, is not set")
    return environ[found[1]]
