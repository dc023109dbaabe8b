"""What an agent is shown beside its prompt, as a frozen record.  Pure; part of `model`, and must not know it."""

from __future__ import annotations

from typing import Final, Literal

from sessionrun.model.frozen import frozen

AnswerMode = Literal["replace", "edit", "split"]
ANSWER_MODES: Final[tuple[AnswerMode, ...]] = ("replace", "edit", "split")
"""How the answer of an agent that does not edit becomes files: whole files; changes of places that it quotes;
whole files, every one of `outputs`."""


@frozen
class Brief:
    """Files that an agent is shown, and files that its work is to be.

    Paths count from the task's directory and stay inside of it.  `context` and `targets` are shown as they are
    when the work begins, and with them so many (`room`) files that the tasks it needs wrote.  No file of `context`
    has more than `max_context_lines`, no answer more than `max_output_lines`.  The answer of an agent that does
    not edit files becomes the files `outputs`, by `mode`; none that a pattern of `protected` matches.
    `system` are the instructions for such an agent.
    """

    mode: AnswerMode = "replace"
    system: str = ""
    context: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    room: int = 0
    max_context_lines: int | None = None
    max_output_lines: int | None = None
    create_directories: bool = True
    protected: tuple[str, ...] = ()
