"""Where a session's jobs run if not on this machine: a cluster's scheduler, and how to speak with it."""

from __future__ import annotations

from sessionrun.model.frozen import frozen


@frozen
class Cluster:
    """The address of a scheduler, ``tcp://HOST:PORT`` or ``tls://HOST:PORT``; for TLS the paths of three files."""

    address: str
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None


@frozen
class SlotsOffered:
    """The nodes of the session's cluster that live have so many slots in all: an event of the journal."""

    slots: int
    nodes: int
