"""What the queue puts beside the supervisor: the feeder of a session that takes its tasks from there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sessionrun.runtime.keeper.command import say

if TYPE_CHECKING:
    from sessionrun.engine.state import State
    from sessionrun.runtime.partners import Partners
    from sessionrun.store.session import SessionDir


def open_partners(partners: Partners, session: SessionDir, state: State) -> Partners:
    """The partners, with a feeder if the session is fed."""
    if state.spec.feed is None:
        return partners
    from sessionrun.runtime.feeding.feeder import QueueFeeder

    return partners._replace(feeder=QueueFeeder(session, state.spec, say))
