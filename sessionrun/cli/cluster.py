"""`cluster`: machines that run the jobs of sessions together."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

import click

from sessionrun.cli.options import Answer, Duration, flag, json_option, valued, verb
from sessionrun.cli.render import table_lines
from sessionrun.model.errors import InputError


@click.group("cluster", no_args_is_help=False)
def command() -> None:
    """Run the jobs of sessions on several machines.

    `certs` once, and copies of these on each machine; `head` on one, `node` on the others; then
    `run --cluster ADDRESS`.
    Needs the extra `dask`: install sessionrun[dask].
    """


@verb("certs", json_option, parent=command)
@click.argument("directory", required=False, type=click.Path(path_type=Path))
def certs(directory: Path | None) -> Answer:
    """Make the certificates that the machines of a cluster share.

    In DIRECTORY, else where the other verbs look for them: sessionrun/cluster in the user's configuration.
    """
    from sessionrun.cluster.address import find_certs_dir, make_certs

    paths = make_certs((directory or find_certs_dir(os.environ)).absolute())
    files = [str(path) for path in paths]
    hint = "copy these to each machine of the cluster; who has them can run programs there"
    return Answer({"files": files}, files, aside=[hint])


@command.command("head")
@valued("--host", "ADDRESS", "Where to listen.  [default: 127.0.0.1]", default="127.0.0.1")
@valued("--port", "N", "[default: 8786]", click.IntRange(0, 65535), default=8786)
def head(host: str, port: int) -> int:
    """Be the cluster's scheduler until Ctrl-C; prints its address.

    Other machines need copies of its certificates, and an address of this one that they reach.
    """
    from sessionrun.cluster.machines import keep_head, open_head

    argv, address, lock_fd = open_head(host, port, os.environ)
    click.echo(address)
    if host.strip("[]") in ("0.0.0.0", "::"):
        with suppress(OSError):  # its log may be on a full disk
            click.echo(
                f"in the place of {host} give the others an address of this machine that they reach", err=True
            )
    return keep_head(argv, lock_fd, os.environ)


@command.command("node")
@click.argument("address")
@valued("--name", "NAME", "Its name.  [default: this machine's]")
@valued("--slots", "N", "Tasks at once.  [default: the number of processors]", int)
@valued(
    "--rescue",
    Duration(),
    "How often the work in progress of tasks is sent to their session; 0: never.  [default: 5m]",
)
def node(address: str, name: str | None, slots: int | None, rescue: float | None) -> int:
    """Run jobs for the cluster whose scheduler is at ADDRESS, until Ctrl-C.

    Jobs have the environment of this command.  They end when this machine has no contact with the cluster for
    longer than its lease; to start this command again soon enough loses nothing.
    """
    from sessionrun.cluster.machines import keep_node

    keep_node(name, slots, address, os.environ, rescue)
    return 0


@verb("status", json_option, parent=command)
@click.argument("address")
def status(address: str) -> Answer:
    """Show the nodes of the cluster whose scheduler is at ADDRESS, with what is left of their leases."""
    from sessionrun.cluster.address import open_cluster, show_cluster

    shown = show_cluster(open_cluster(address, os.environ))
    rows = [
        (
            each["name"],
            "up" if each["lives"] else "gone",
            f"{each['used']}/{each['slots']}",
            "-" if each["lease_s"] is None else f"{each['lease_s']:.0f} s",
            f"not {', '.join(sorted(each['walls']))}" if each["walls"] else "all",
            each["id"],
        )
        for each in shown["nodes"]
    ]
    table = table_lines(("Node", "State", "Slots", "Lease", "Sandboxes", "Id"), rows)
    return Answer(shown, [*table, f"{len(rows)} nodes, {len(shown['sessions'])} sessions"])


@verb("stop", json_option, parent=command)
@click.argument("address")
@flag("--force", "Also if jobs run: they are killed, and their tasks are lost.")
@flag("--yes", "Do not ask; needed off a terminal.")
def stop(address: str, force: bool, yes: bool) -> Answer:
    """End the programs of all nodes and of the head of the cluster at ADDRESS.

    It is refused while jobs run.  Exit code 1: a program is still there.
    """
    from sessionrun.cluster.address import open_cluster
    from sessionrun.cluster.machines import stop_cluster

    cluster = open_cluster(address, os.environ)
    if not yes:
        if not sys.stdin.isatty():
            raise InputError("cluster stop: there is no terminal to ask on: say --yes")
        click.confirm(f"End all nodes and the head of the cluster at {address}?", abort=True, err=True)
    stopped = stop_cluster(cluster, force=force)
    rows = [(one["name"], one["state"], one["id"]) for one in stopped["nodes"]]
    lines = [*table_lines(("Node", "State", "Id"), rows), _HEADS[stopped["head"]]]
    is_gone = any(one["state"] == "gone" for one in stopped["nodes"])
    aside = ["a node that is gone was not told: end `cluster node` on its machine"] if is_gone else []
    waits = "goes on, and waits for a cluster at this address; to end it: sessionrun cancel"
    aside += [f"session {session_id} {waits} {session_id}" for session_id in stopped["sessions"]]
    return Answer(stopped, lines, int(stopped["head"] == "up"), aside)


_HEADS = {
    "left": "The head has ended.",
    "up": "The head is up: not all of its nodes, or not the head itself, have ended in time; try again.",
    "foreign": "The scheduler is up: `sessionrun cluster head` did not start it, so it is yours to end.",
}
