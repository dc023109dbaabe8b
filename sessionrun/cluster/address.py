"""A cluster as its users meet it: its address, its certificates, whether it serves a session, what it shows.

Which cluster runs the jobs of a session is settled here; of Slurm also its options, and whether it takes the jobs.
Its machines share one certificate: each takes a peer that has it, whatever its name.

So a person who has the key belongs to the cluster.
"""

from __future__ import annotations

import datetime
import os
import re
import shutil
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sessionrun import __version__
from sessionrun.client.installation import lack
from sessionrun.client.notices import notify
from sessionrun.model.asked import SLURM, Cluster, uses_replicas
from sessionrun.model.errors import InputError, SessionrunError
from sessionrun.store.files import make_directories, replace_file
from sessionrun.store.index import choose_directory, user_directory

if TYPE_CHECKING:  # a node and a worker of dask's plan nothing
    from sessionrun.client.planning.assemble import Draft

CERTS_VARIABLE: Final = "SESSIONRUN_CERTS"
"""Names the directory of the three files for TLS, which machines and sessions of a cluster share."""

NAMES: Final = ("ca.pem", "cert.pem", "key.pem")
SHOW_TIMEOUT_S: Final = 10.0

_ADDRESS: Final = re.compile(r"tls://(\[[0-9a-fA-F:]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})")


# --- its address and certificates ---


def find_certs_dir(environ: Mapping[str, str]) -> Path:
    """The directory of the files for TLS: as the environment says, else in the user's configuration."""
    return choose_directory(environ, CERTS_VARIABLE, user_directory("config") / "cluster")


def open_cluster(address: str, environ: Mapping[str, str]) -> Cluster:
    """How to reach a cluster's scheduler.  InputError: it is no address, or there are no certificates."""
    if address == SLURM:
        raise InputError(
            "slurm: that is no cluster of sessionrun's own; Slurm's squeue and sinfo show its jobs and nodes"
        )
    check_address(address)
    return Cluster(address, *find_certs(environ))


def check_address(address: str) -> None:
    """See that it is an address of a cluster.  InputError: it is none."""
    found = _ADDRESS.fullmatch(address)
    if found is None or not 0 < int(found[2]) < 65536:
        raise InputError(f"the cluster {address!r:.140}: write tls://HOST:PORT, or slurm")


def find_certs(environ: Mapping[str, str]) -> tuple[str, str, str]:
    """The paths of the three files for TLS.  Whether they fit the other end is seen when that is called."""
    folder = find_certs_dir(environ)
    for name in NAMES:
        if not os.access(folder / name, os.R_OK):
            raise InputError(
                f"{folder / name} is not there, or cannot be read: `sessionrun cluster certs` makes the three "
                f"files, once for all machines of a cluster; copy {folder} to each of them"
            )
    ca_name, cert_name, key_name = NAMES
    return str(folder / ca_name), str(folder / cert_name), str(folder / key_name)


def require_dask() -> None:
    """See that the libraries are there.  InputError: they are not."""
    if find_spec("distributed") is None:  # to import it takes half a second
        raise lack("cluster", "distributed", "dask")


# --- a session of its ---


def choose_cluster(draft: Draft) -> Draft:
    """The cluster of the session; tasks that are added to one run where its own do.

    Repositories of tasks' own are fetched here, for all nodes, but not in a preview.  A ref begins where it does
    for tasks that the session has.

    Raises:
        InputError: the address cannot be used, nothing listens there, or what is asked for cannot be had on nodes.
    """
    spec, into = draft.spec, draft.into
    cluster = _find_cluster(draft) if into is None else into.cluster
    tasks = spec.tasks
    if uses_replicas(cluster) and spec.mirrors is not None and not draft.preview:
        from sessionrun.worktrees.bases import settle_starts

        known = () if into is None else into.tasks
        tasks = settle_starts(tasks, known, require_cache=spec.mirrors.require_cache)
    return draft.settle(cluster=cluster, tasks=tasks)


def _find_cluster(draft: Draft) -> Cluster | None:
    spec, options = draft.spec, draft.options
    address = options.choose("cluster") or ""
    if "slurm" in options.given and address != SLURM:
        raise InputError("--slurm-option has no effect without --cluster slurm")
    if not (address and spec.tasks):
        return None
    if address == SLURM:
        of_config = check_options(options.config.get("slurm", {}), "slurm")
        of_sbatch = {**of_config, **check_options(options.given.get("slurm", {}), "--slurm-option")}
        return open_slurm(of_sbatch, os.environ)
    cluster = open_cluster(address, os.environ)
    require_dask()
    if spec.seats is not None:
        raise InputError(
            "worktrees: those that stay are of one machine, and cannot be had on the nodes of a cluster: "
            "leave worktrees out"
        )
    if spec.repository is not None:
        from sessionrun.cluster.companions import list_included

        try:
            list_included(spec.repository)  # with each task they go to a node
        except (SessionrunError, OSError) as error:
            raise InputError(f"{spec.repository.top}: {error}") from error
    _join(cluster)
    return cluster


def _join(cluster: Cluster) -> None:
    """See that the cluster's scheduler serves us; one of the user's own gets what it lacks, with a warning.

    Raises:
        InputError: it does not, or none of its workers can run jobs.
    """
    shown, failed = ask_scheduler(cluster, "sr_show", registers=True)
    lives = [node for node in shown["nodes"] if node["lives"]]
    versions = sorted({node["version"] for node in lives})
    if lives and __version__ not in versions:
        raise InputError(
            f"the cluster at {cluster.address}: its nodes have version {', '.join(versions)} of sessionrun, "
            f"and this is {__version__}: install the same version on all"
        )
    if failed is not None:
        notify(
            f"the cluster at {cluster.address} was not started by `sessionrun cluster`, and has got its plug-ins "
            "now: a worker that loses the scheduler closes, so let something start it again under the same "
            "--name; and no adaptive scaling, which sees an idle cluster"
        )
    for worker, why in (failed or {}).items():
        notify(f"worker {worker} gets no jobs: {why.rstrip('.')}; sessionrun has to be installed there")


# --- what it answers ---


def show_cluster(cluster: Cluster) -> dict[str, Any]:
    """What the cluster's scheduler shows of itself: see `Permits.show`.  InputError: see `ask_scheduler`."""
    return {"address": cluster.address, **ask_scheduler(cluster, "sr_show")[0]}


def ask_scheduler(
    cluster: Cluster, name: str, *, registers: bool = False, **words: object
) -> tuple[dict[str, Any], dict[str, str] | None]:
    """What the cluster's scheduler answers to a call: see `ask_once`.

    Raises:
        InputError: it cannot be reached, refuses, or is no scheduler of ours.
    """
    import asyncio

    require_dask()
    from sessionrun.cluster.dask_carrier import ask_once, word_fault

    silence = f"the cluster at {cluster.address} does not answer"
    try:
        answer, failed = asyncio.run(ask_once(cluster, name, words, SHOW_TIMEOUT_S, registers=registers))
    except Exception as error:  # whatever the library raises
        why = word_fault(error)
        if isinstance(error, asyncio.TimeoutError):
            why = f"there was nothing in {SHOW_TIMEOUT_S:g} s"
        if isinstance(error, (asyncio.TimeoutError, OSError)):
            why += "; is `sessionrun cluster head` running there, with the same certificates?"
        if "disallowed" in why:
            why += ": start it with --preload sessionrun.cluster.dask_scheduler"
        if isinstance(error, ModuleNotFoundError):
            why = f"{why}: sessionrun has to be installed where the scheduler runs"
        raise InputError(f"{silence}: {why}") from error
    if answer is None:
        raise InputError(
            f"{silence}: its scheduler has no plug-ins of sessionrun; the first session brings them: run --cluster"
        )
    if "refused" in answer:
        raise InputError(f"the cluster at {cluster.address} refuses to answer: {answer['refused']}")
    return answer, failed


DAYS: Final = 3650


def make_certs(folder: Path) -> list[Path]:
    """Make the three files, in a directory that has none of them.

    Raises:
        InputError: a library is missing, one of the files is there, or the directory cannot be written.
    """
    paths = [folder / name for name in NAMES]
    for path in paths:
        if os.path.lexists(path):
            raise InputError(f"{path} is there: the machines of a cluster share it; remove all three for new ones")
    certificate, key = _sign()
    try:
        make_directories(folder, 0o700)
        for path, content in zip(paths, (certificate, certificate, key), strict=True):  # its own authority
            replace_file(path, content, durable=True)
    except OSError as error:
        raise InputError(f"{folder}: the certificates cannot be written: {error.strerror}") from error
    return paths


def _sign() -> tuple[bytes, bytes]:
    """A certificate that is its own authority, and its key."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
    except ImportError as error:
        raise lack("cluster", error.name, "dask") from None
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "sessionrun cluster")])
    now = datetime.datetime.now(datetime.timezone.utc)
    usage = (True, False, False, False, False, True, False, False, False)  # digital signature, certificates
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))  # a machine's clock may be behind
        .not_valid_after(now + datetime.timedelta(days=DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        # Python 3.13 and later refuse certificates without these
        .add_extension(x509.KeyUsage(*usage), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    encoded = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return certificate.public_bytes(Encoding.PEM), encoded


# --- Slurm ---

PROGRAMS: Final = ("sbatch", "squeue", "scancel", "sinfo")

OPTIONS: Final = frozenset(
    (
        *("account", "partition", "qos", "reservation", "wckey", "priority", "nice", "licenses", "power"),
        *("constraint", "prefer", "nodelist", "exclude", "exclusive", "contiguous"),
        *("cpus-per-task", "cores-per-socket", "sockets-per-node", "threads-per-core", "core-spec", "hint"),
        *("gpus", "gres", "gres-flags", "cpus-per-gpu", "mem-per-gpu", "mem", "mem-per-cpu", "tmp"),
        *("time", "time-min", "deadline"),
    )
)
"""The options of sbatch that say where and how a job may run; the others are ours, or are for scripts."""


def check_options(options: Mapping[str, Any], where: str) -> dict[str, str]:
    """The options as words.  InputError: one is none that a user may give, or has a value that is no word."""
    checked: dict[str, str] = {}
    for key, value in options.items():
        name = key.removeprefix("--")
        if name not in OPTIONS:
            known = ", ".join(sorted(OPTIONS))
            raise InputError(
                f"{where} {name!r:.140}: is not an option that a session may give sbatch; there are {known}"
            )
        if value is False:
            continue
        if not isinstance(value, (str, int, float)):
            raise InputError(f"{where} {name}: must be text or a number, not {value!r:.140}")
        text = "" if value is True else str(value)
        if not text.isprintable():
            raise InputError(f"{where} {name}: holds a character that cannot be printed")
        checked[name] = text
    return checked


def open_slurm(options: Mapping[str, str], environ: Mapping[str, str]) -> Cluster:
    """Slurm as a cluster, once it says that it would take such jobs.

    Raises:
        InputError: its programs are not there, it does not answer, or refuses.
    """
    from sessionrun.cluster import slurm_jobs  # few sessions are Slurm's

    for program in PROGRAMS:
        if shutil.which(program, path=environ.get("PATH")) is None:
            raise InputError(
                f"--cluster {SLURM}: {program} is not on PATH; sessions are started where Slurm's are"
            )
    words = ["sbatch", *slurm_jobs.option_words(options), "--test-only", "--no-requeue"]
    words += ["--array=0-0", "--chdir=/", "--wrap=true"]
    try:
        slurm_jobs.run_program(slurm_jobs.make_environment(environ), words)
    except slurm_jobs.SlurmFault as fault:
        raise InputError(f"--cluster {SLURM}: {fault}") from None
    return Cluster(SLURM, options=dict(options))
