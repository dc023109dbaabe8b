"""The variables that come in.  They are all that the program gets: those of the caller may hold keys."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from sessionrun.walls.argv import PROXY_URL
from sessionrun.walls.policy import PREFIXES, VARIABLES

CACHES: Final = (
    ("XDG_CACHE_HOME", "/tmp/.cache"),
    ("npm_config_cache", "/tmp/.npm"),
    ("TMPDIR", "/tmp"),
)
"""Where programs keep what they could make again: the home directory cannot be written."""

_LEADS_TO_US: Final = frozenset(
    ("SESSIONRUN_RESULTS_DIR", "SESSIONRUN_JOB", "SESSIONRUN_GIT", "SESSIONRUN_CERTS", "SESSIONRUN_NODES")
)
"""Variables of ours that lead to what lies outside, or are for programs of ours alone."""


def filter_environment(
    environ: Mapping[str, str],
    own: Mapping[str, str],
    *,
    prefixes: Iterable[str] = (),
    names: Iterable[str] = (),
    proxied: bool = False,
) -> dict[str, str]:
    """The variables of a program inside.

    Args:
        environ: those of the session.
        own: those of the job, which all come in.
        prefixes: how the names of others begin that come in.
        names: names of others that come in.
        proxied: whether the network is a proxy's.
    """
    wanted, begins = {*VARIABLES, *names}, (*PREFIXES, *prefixes)
    inside = {name: value for name, value in environ.items() if name in wanted or name.startswith(begins)}
    inside = {name: value for name, value in inside.items() if name not in _LEADS_TO_US}
    inside = {**inside, **dict(CACHES), **own}
    if proxied:
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
            inside |= {name: PROXY_URL, name.lower(): PROXY_URL}
        inside |= {"NO_PROXY": "", "no_proxy": "", "NODE_USE_ENV_PROXY": "1"}
    return inside
