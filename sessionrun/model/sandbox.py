"""What a task asks of walls: which policy, which network, and what is let in beside it.

A part of `model`.  This module must not know bubblewrap, files or processes.
"""

from __future__ import annotations

from typing import Final, Literal, get_args

from sessionrun.model.frozen import frozen

Policy = Literal["none", "project", "strict"]
POLICIES: Final[tuple[Policy, ...]] = get_args(Policy)

Network = Literal["allow", "proxy", "none"]
NETWORKS: Final[tuple[Network, ...]] = get_args(Network)


LIMITS: Final = ("memory", "cpus")
"""Limits by control groups, which not every machine has."""

CLOSED: Final = " without the network"
"""The end of the name of a policy whose jobs do not have the machine's network."""


@frozen
class Sandbox:
    """The sandbox of a task: its jobs see and change only what the policy names.

    Attributes:
        policy: ``project`` shows the system and the home directory without known secrets, ``strict`` only what is
            named.  ``none`` is there until a plan is settled: a task that wants no walls whatever others have.
        network: all of it, the hosts of a list by way of a proxy, or none.
        hosts: host names that a proxy lets through, beside those of the agent.
        env: names of variables that come in beside those of the policy.
        read: absolute paths that can be read beside those of the policy.
        devices: absolute paths of devices that can be used.
        processes: the most processes that may live inside at a time; None: no limit.
        memory: the most memory that a job may use with all of its processes (bytes); None: no limit.
        disk: the most disk space that all which the task can write may take (bytes); None: no limit.
        cpus: how many processors' time a job may use with all of its processes; None: no limit.
    """

    policy: Policy
    network: Network = "allow"
    hosts: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    read: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    processes: int | None = None
    memory: int | None = None
    cpus: float | None = None
    disk: int | None = None

    @property
    def needs(self) -> tuple[str, ...]:
        """What a machine has to be able to give, by names; see `walls.trial.list_problems`."""
        closed = "" if self.network == "allow" else CLOSED
        return (f"{self.policy}{closed}", *(limit for limit in LIMITS if getattr(self, limit) is not None))


def describe_network(sandbox: Sandbox) -> str:
    """The network of a sandbox, and the hosts that its plan names."""
    return ", ".join((sandbox.network, *sandbox.hosts))
