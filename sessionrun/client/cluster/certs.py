"""The certificate of a cluster, which its machines share: each takes a peer that has it, whatever its name.

So a person who has the key belongs to the cluster.
"""

from __future__ import annotations

import datetime
import os
from pathlib import Path
from typing import Final

from sessionrun.client.cluster.address import NAMES
from sessionrun.client.installation import lack
from sessionrun.model.errors import InputError
from sessionrun.store.files import make_directories, replace_file

DAYS: Final = 3650

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
    """A certificate that is its own authority, and its key.

    Raises:
        InputError: the library is missing.
    """
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
    usage = {use: use in ("digital_signature", "key_cert_sign") for use in _USES}
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))  # a machine's clock may be behind
        .not_valid_after(now + datetime.timedelta(days=DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        # Python 3.13 and later refuse certificates without these
        .add_extension(x509.KeyUsage(**usage), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    encoded = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return certificate.public_bytes(Encoding.PEM), encoded
