"""The rules of a cluster in the engine: no more tasks run at once than its nodes have slots.  Pure."""

from __future__ import annotations

from typing import Final

from sessionrun.engine.moves import set_width
from sessionrun.engine.state import Rules, State
from sessionrun.model.asked import SlotsOffered, uses_replicas
from sessionrun.model.events import Entry
from sessionrun.model.spec import SLOT


def _begin(state: State) -> None:
    """Until its nodes are heard of there is no slot; Slurm has its own queue, and offers none."""
    if uses_replicas(state.spec.cluster):
        _limit(state, 0)


def _offer(state: State, entry: Entry, event: SlotsOffered) -> None:
    _limit(state, event.slots)


def _limit(state: State, slots: int) -> None:
    state.most_slots = slots
    set_width(state, state.spec.resources.get(SLOT, 0))


RULES: Final = Rules(begin=_begin, events={SlotsOffered: _offer})
