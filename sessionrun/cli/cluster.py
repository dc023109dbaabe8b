"""`cluster`: machines that run the jobs of sessions together."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import click

from sessionrun.cli.options import json_option
from sessionrun.cli.render import print_json, print_table


@click.group("cluster")
def command() -> None:
    """Run the jobs of sessions on several machines.

    `certs` once, and its files on each machine; `head` on one; `node` on the others; then `run --cluster ADDRESS`.
    Needs the extra `dask`: pip install 'sessionrun[dask]'.
    """


@command.command("certs")
@click.argument("directory", required=False, type=click.Path(path_type=Path))
@json_option
def certs(directory: Path | None, as_json: bool) -> None:
    """Make the certificates that the machines of a cluster share.

    In DIRECTORY, else where the other verbs look for them: sessionrun/cluster in the user's configuration.
    """
    from sessionrun.client.cluster import find_certs_dir
    from sessionrun.client.cluster_certs import make_certs

    paths = make_certs((directory or find_certs_dir(os.environ)).absolute())
    if as_json:
        print_json({"files": [str(path) for path in paths]})
        return
    for path in paths:
        click.echo(path)
    click.echo("copy these to each machine of the cluster; who has them can run programs there", err=True)


@command.command("head")
@click.option("--host", default="127.0.0.1", metavar="ADDRESS", help="Where to listen.  [default: 127.0.0.1]")
@click.option("--port", type=click.IntRange(0, 65535), default=8786, metavar="N", help="[default: 8786]")
def head(host: str, port: int) -> int:
    """Be the cluster's scheduler until Ctrl-C; prints its address.

    Other machines need certificates, and an address of this one that they reach.
    """
    from sessionrun.client.cluster_machines import head_command, head_environment, keep_running

    argv, address = head_command(host, port, os.environ)
    click.echo(address)
    return keep_running(argv, head_environment(os.environ), _say)


@command.command("node")
@click.argument("address")
@click.option("--name", metavar="NAME", help="Its name.  [default: this machine's]")
@click.option("--slots", type=int, metavar="N", help="Tasks at once.  [default: the number of processors]")
@click.option("--systemd", is_flag=True, help="Print a unit for systemd that runs this command, and end.")
def node(address: str, name: str | None, slots: int | None, systemd: bool) -> int:
    """Run jobs for the cluster whose scheduler is at ADDRESS, until Ctrl-C.

    Jobs have the environment of this command.  They end when this machine has no contact with the cluster for
    longer than its lease; to start this command again soon enough loses nothing.
    """
    from sessionrun.client.cluster_machines import (
        keep_running,
        make_unit,
        node_command,
        node_environment,
        open_checked,
        open_site,
    )

    cluster = open_checked(address, os.environ)
    site = open_site(name, slots, os.environ)
    if systemd:
        program = shutil.which(sys.argv[0]) or sys.argv[0]
        click.echo(
            make_unit([program, "cluster", "node", address, "--name", site.name, "--slots", str(site.slots)])
        )
        return 0
    click.echo(f"node {site.node_id}: {site.slots} slots, {site.path}", err=True)
    return keep_running(node_command(cluster, site), node_environment(site, os.environ), _say)


@command.command("status")
@click.argument("address")
@json_option
def status(address: str, as_json: bool) -> None:
    """Show the nodes of the cluster whose scheduler is at ADDRESS, with what is left of their leases."""
    from sessionrun.client.cluster import open_cluster, show_cluster

    shown = show_cluster(open_cluster(address, os.environ))
    if as_json:
        print_json(shown)
        return
    rows = [
        (
            each["name"],
            "up" if each["lives"] else "gone",
            f"{each['used']}/{each['slots']}",
            "-" if each["lease_s"] is None else f"{each['lease_s']:.0f} s",
            each["id"],
        )
        for each in shown["nodes"]
    ]
    print_table(("Node", "State", "Slots", "Lease", "Id"), rows)
    click.echo(f"{len(rows)} nodes, {len(shown['sessions'])} sessions")


def _say(line: str) -> None:
    click.echo(line, err=True)
