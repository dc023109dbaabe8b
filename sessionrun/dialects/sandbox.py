"""What a task, or a configuration, says of its sandbox: a policy, or an object with more."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final

from sessionrun.dialects.convert import Misfit, as_choice, as_line, as_links, as_record, as_whole, describe
from sessionrun.dialects.pace import as_size
from sessionrun.model.sandbox import NETWORKS, POLICIES, Network, Sandbox

DEFAULT_NETWORK: Final[dict[str, Network]] = {"none": "allow", "project": "allow", "strict": "proxy"}
"""What a policy means for the network if a task says nothing else."""


def as_sandbox(value: Any) -> Sandbox:
    """A policy, or an object with `policy` and more."""
    if isinstance(value, str):
        return make_sandbox(as_choice(POLICIES)(value))
    if not isinstance(value, dict):
        raise Misfit(f'must be {", ".join(POLICIES)}, or an object with "policy", not {describe(value)}')
    record = as_record(value)
    if record.get("policy") is None:
        raise Misfit('needs "policy": ' + " or ".join(POLICIES))
    values: dict[str, Any] = {}
    for key, convert in SANDBOX_FIELDS.items():
        if record.get(key) is not None:
            try:
                found = convert(record[key])
                values[key] = None if found == 0 else found
            except Misfit as misfit:
                raise misfit.within(key) from None
    more = next((key for key, value in values.items() if key != "policy" and value is not None), None)
    if values["policy"] == "none" and more is not None:
        raise Misfit('means nothing without walls; leave it out, or say "project" or "strict"', more)
    hosts: tuple[str, ...] = ()
    if isinstance(values.get("network"), tuple):
        hosts, values["network"] = values["network"], "proxy"
    made = Sandbox(**{"network": DEFAULT_NETWORK[values["policy"]], **values}, hosts=hosts)
    if made.policy == "strict" and made.network == "allow":
        raise Misfit('"strict" has no open network; say "proxy", "none" or a list of hosts', "network")
    return made


def make_sandbox(policy: Any) -> Sandbox:
    """A sandbox of which only the policy is said."""
    return Sandbox(policy, network=DEFAULT_NETWORK[policy])


def as_network(value: Any) -> Network | tuple[str, ...]:
    """One of the words for networks, or the names of hosts."""
    if isinstance(value, str) and value in NETWORKS:
        return next(network for network in NETWORKS if network == value)
    if isinstance(value, list):
        return tuple(_as_host(host) for host in as_links(value))
    raise Misfit(f"must be {', '.join(NETWORKS)}, or a list of hosts, not {describe(value)}")


def _as_host(value: str) -> str:
    name = value.removeprefix("*.")
    if not name or not all(part.replace("-", "").isalnum() for part in name.split(".")):
        raise Misfit(
            f"{value!r:.80} is not the name of a host (write example.org or *.example.org, without a port)"
        )
    return value.lower()


def as_paths(value: Any) -> tuple[str, ...]:
    """One absolute path or a list of them; ``~/`` is the home directory."""
    paths = tuple(os.path.expanduser(path) for path in as_links(value))
    for path in paths:
        if not os.path.isabs(path):
            raise Misfit(f"{path!r:.80} is not an absolute path")
    return tuple(os.path.normpath(path) for path in paths)


def as_names(value: Any) -> tuple[str, ...]:
    """The name of a variable, or a list of them."""
    names = tuple(as_line(name) for name in as_links(value))
    for name in names:
        if "=" in name:
            raise Misfit(f"{name!r:.80} is not the name of a variable; a value goes into the env of the task")
    return names


def as_cpus(value: Any) -> float:
    """A number of processors, which need not be whole; 0 means that there is no limit."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not (value == 0 or 0.01 <= value <= 1e6):
        raise Misfit(f"must be a number of processors from 0.01, such as 1.5, not {describe(value)}")
    return float(value)


SANDBOX_FIELDS: Final[dict[str, Callable[[Any], Any]]] = {
    "policy": as_choice(POLICIES),
    "network": as_network,
    "env": as_names,
    "read": as_paths,
    "devices": as_paths,
    "processes": as_whole(1),
    "memory": as_size,
    "cpus": as_cpus,
    "disk": as_size,
}
"""The keys of the object."""
