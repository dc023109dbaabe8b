"""An input on its way to a spec: what each step is given, and gives to the next."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from sessionrun.model.frozen import frozen

if TYPE_CHECKING:
    from sessionrun.client.config import Config
    from sessionrun.input.parse import Source
    from sessionrun.input.plan import Plan
    from sessionrun.input.settings import Options
    from sessionrun.model.spec import SessionSpec


class Choice(NamedTuple):
    """The session's default agent, and why it was chosen, as text for the user."""

    name: str
    why: str


@frozen
class Draft:
    """Each step returns it with one more thing settled in `spec`; a step knows no other one.

    Attributes:
        source: the input.
        plan: what it asks for.
        options: what is said beside it.
        config: the configuration; in a session to which tasks are added, that session's own comes before.
        spec: as far as it is settled.
        choice: the default agent.
        into: the session, as it is now, to which the tasks will be added.
        place: lies in the repository of the worktrees.
        preview: nothing will be started, so agents need not be installed, and nothing is fetched.
        remarks: lines for people.
        skipped: how many tasks of the input were left out, for an earlier session finished them.
    """

    source: Source
    plan: Plan
    options: Options
    config: Config
    spec: SessionSpec
    choice: Choice
    into: SessionSpec | None
    place: Path
    preview: bool
    remarks: tuple[str, ...] = ()
    skipped: int = 0

    def settle(self, **settled: Any) -> Draft:
        """The same, with these fields of `spec`."""
        return replace(self, spec=replace(self.spec, **settled))

    def remark(self, *lines: str) -> Draft:
        """The same, with more lines for people."""
        return replace(self, remarks=(*self.remarks, *lines))
