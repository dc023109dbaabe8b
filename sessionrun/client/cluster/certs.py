"""The certificates of a cluster: an authority of its own, and one certificate that its machines share.

dask takes any peer that the authority has signed, whatever its name; so who has the key belongs to the cluster.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sessionrun.client.cluster.address import NAMES, find_certs, find_certs_dir
from sessionrun.client.installation import lack
from sessionrun.model.errors import InputError
from sessionrun.store.files import make_directories, replace_file
from sessionrun.store.locks import hold

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.x509 import Certificate

DAYS: Final = 3650
LOCK_TIMEOUT_S: Final = 30.0

_USES: Final = (
    "digital_signature",
    "content_commitment",
    "key_encipherment",
    "data_encipherment",
    "key_agreement",
    "key_cert_sign",
    "crl_sign",
    "encipher_only",
    "decipher_only",
)


def ensure_certs(environ: Mapping[str, str]) -> tuple[str, str, str]:
    """The paths of the three files, which are made if none of them is there.

    Raises:
        InputError: as `make_certs` and `find_certs`.
    """
    folder = find_certs_dir(environ)
    if not all(os.path.lexists(folder / name) for name in NAMES):
        with _alone(folder):  # a head and a node may start at once: the other may have written some of them by now
            if not any(os.path.lexists(folder / name) for name in NAMES):
                _write(folder)
    return find_certs(environ)


def make_certs(folder: Path) -> list[Path]:
    """Make the three files, in a directory that has none of them.

    Raises:
        InputError: a library is missing, one of the files is there, or the directory cannot be written.
    """
    with _alone(folder):
        for name in NAMES:
            if os.path.lexists(folder / name):
                raise InputError(
                    f"{folder / name} is there: the machines of a cluster share it; remove all three for new ones"
                )
        return _write(folder)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Make the directory, and keep other programs of ours from writing into it."""
    try:
        make_directories(folder, 0o700)
        fd = hold(folder / "lock", timeout_s=LOCK_TIMEOUT_S)
    except OSError as error:
        raise InputError(f"{folder}: the certificates cannot be written: {error.strerror}") from error
    if fd is None:
        raise InputError(f"{folder}: another program is making the certificates")
    try:
        yield
    finally:
        os.close(fd)


def _write(folder: Path) -> list[Path]:
    """The three files; the key of the authority is thrown away, so nothing else can be signed by it."""
    try:
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
    except ImportError as error:
        raise lack("cluster", error.name, "dask") from None
    authority, certificate, key = _sign()
    pem = Encoding.PEM
    contents = (
        authority.public_bytes(pem),
        certificate.public_bytes(pem),
        key.private_bytes(pem, PrivateFormat.PKCS8, NoEncryption()),
    )
    paths = [folder / name for name in NAMES]
    try:
        for path, content in zip(paths, contents, strict=True):
            replace_file(path, content, durable=True)
    except OSError as error:
        raise InputError(f"{folder}: the certificates cannot be written: {error.strerror}") from error
    return paths


def _sign() -> tuple[Certificate, Certificate, EllipticCurvePrivateKey]:
    """The authority's certificate, the machines' certificate and its key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    now = datetime.datetime.now(datetime.timezone.utc)
    keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(2)]
    names = [
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        for name in ("sessionrun cluster authority", "sessionrun cluster")
    ]
    made = []
    signed_by = x509.AuthorityKeyIdentifier.from_issuer_public_key(keys[0].public_key())
    for number, (key, name) in enumerate(zip(keys, names, strict=True)):
        usage = {
            use: use in (("key_cert_sign", "crl_sign") if number == 0 else ("digital_signature",)) for use in _USES
        }
        builder = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(names[0])
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=DAYS))
            .add_extension(x509.BasicConstraints(ca=number == 0, path_length=None), critical=True)
            # Python 3.13 and later refuse certificates without these
            .add_extension(x509.KeyUsage(**usage), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(signed_by, critical=False)
        )
        made.append(builder.sign(keys[0], hashes.SHA256()))
    return made[0], made[1], keys[1]
