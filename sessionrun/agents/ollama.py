"""The built-in agent `ollama`: a local model that answers and edits nothing.

It needs a model.  ``ollama run`` reads the prompt from standard input where that is not a terminal, prints the
answer, and shows its progress on standard error.  ``ollama show`` fails where the server is down or the model was
not pulled, and costs nothing.  This module must not know how processes are run.
"""

from __future__ import annotations

from typing import Final

from sessionrun.model.spec import AgentSpec

AGENT: Final = AgentSpec(
    name="ollama",
    argv=("ollama", "run", "{model_args}"),
    model_args=("{model}",),
    output="text",
    edits=False,
    ready=("ollama", "show", "{model}"),
)
