"""What has to be there before a dispatch starts: a line for each thing, and the problems that stop it."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from http.client import HTTPException
from typing import Final, NamedTuple

from sessionrun.model.spec import AgentSpec

TIMEOUT_S: Final = 5.0
OLLAMA_URL: Final = "http://localhost:11434"
PARALLEL: Final = "OLLAMA_NUM_PARALLEL"

_PREFIXES: Final = ("ollama/", "ollama_chat/")
_MAX_ANSWER: Final = 4 * 1024 * 1024


class Preflight(NamedTuple):
    """One thing that was looked at.

    Attributes:
        what: the thing, in a word.
        text: what was found, and what to do if that is bad.
        level: ``ok``, ``warning``, or ``error``: nothing can be done without it.
    """

    what: str
    text: str
    level: str = "ok"


def look(agent: AgentSpec, model: str | None, workers: int, environ: Mapping[str, str]) -> Iterator[Preflight]:
    """Yield what is found of an agent and its model."""
    yield Preflight("agent", f"{agent.name} ({agent.argv[0]})")
    name = next((model[len(prefix) :] for prefix in _PREFIXES if model and model.startswith(prefix)), None)
    if name is None and agent.name == "ollama":
        name = model
    if name is None:
        return
    url = find_url(environ)
    try:
        known = _load_models(url)
    except (OSError, ValueError, HTTPException) as error:
        why = getattr(error, "reason", None) or error or type(error).__name__
        yield Preflight("ollama", f"no server answers at {url} ({why}): start it with `ollama serve`", "error")
        return
    yield Preflight("ollama", f"{url} answers")
    if {name.casefold(), f"{name}:latest".casefold()} & known:
        yield Preflight("model", f"{name} is there")
    else:
        yield Preflight("model", f"{name} is not there: fetch it with `ollama pull {name}`", "error")
    yield _look_at_width(workers, environ.get(PARALLEL, ""))


def find_url(environ: Mapping[str, str]) -> str:
    """Where the server of Ollama is, by the variables that aider and Ollama read."""
    url = environ.get("OLLAMA_API_BASE") or environ.get("OLLAMA_HOST") or OLLAMA_URL
    url = url if "://" in url else f"http://{url}"
    scheme, _, rest = url.partition("://")
    rest, _, _ = rest.partition("/")
    host, _, port = rest.rpartition(":") if not rest.endswith("]") else (rest, "", "")
    host, port = (host, port) if port.isdigit() else (rest, "11434")
    host = "localhost" if host in ("", "0.0.0.0", "[::]") else host
    return f"{scheme}://{host}:{port}"


def _load_models(url: str) -> set[str]:
    """The models that a server has; raises OSError, ValueError or HTTPException."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{url}/api/tags", timeout=TIMEOUT_S) as answer:
            record = json.loads(answer.read(_MAX_ANSWER))
    except urllib.error.HTTPError as error:
        raise ValueError(f"it answers with status {error.code}") from None
    if not isinstance(record, dict) or not isinstance(record.get("models"), list):
        raise ValueError("its answer is not a list of models")
    return {str(one.get("name")).casefold() for one in record["models"] if isinstance(one, dict)}


def _look_at_width(workers: int, text: str) -> Preflight:
    if not text.isdigit() or not int(text):
        hint = f"if the server answers fewer than {workers} at once, workers wait (export {PARALLEL}={workers})"
        return Preflight("parallel", f"{PARALLEL} is not set here; {hint}", "warning")
    if int(text) < workers:
        hint = f"set it before `ollama serve`, or give -j {text}"
        return Preflight("parallel", f"{PARALLEL} is {text}, for {workers} workers: {hint}", "warning")
    return Preflight("parallel", f"{PARALLEL} is {text}, for {workers} workers")
