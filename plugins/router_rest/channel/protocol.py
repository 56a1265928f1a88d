"""What a task and the driver agree on before they talk: TLS, a secret, and a line of JSON for each message.

The driver's server has a certificate of its own, made when it starts. A task trusts this certificate and no other, and
proves by a secret that it is one of this driver; both travel inside the Spark job.
"""

from __future__ import annotations

import datetime
import json
import ssl
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256

if TYPE_CHECKING:
    from collections.abc import Mapping

TICK_SECONDS = 0.1
"""Seconds between two reports of a task that are not urgent, and between two looks of the driver at all tasks."""
TICKS_PER_HEARTBEAT = 10
"""Ticks after which both sides send a message in any case: without one each would take the other for dead."""
MAX_SILENT_TICKS = 10 * TICKS_PER_HEARTBEAT
"""Ticks without a message, after which the driver counts as gone; a loop that is blocked counts as one tick. A task is
given three times as long, because it may wait for a core."""
CONNECT_SECONDS = MAX_SILENT_TICKS * TICK_SECONDS
"""Seconds within which a task has to reach the driver, and prove that it is one of this driver."""
MAX_LINE_BYTES = 1 << 20
"""Bytes of a message of the driver, and of those that a task may leave unread. Messages of tasks are smaller: they may
have a sixteenth, so that a stranger fills no memory."""


@dataclass(frozen=True)
class ServerAddress:
    """The address of the driver's server for the tasks of a sink; it is pickled to them. The secret is shown nowhere.

    `name` is that of the limit that the sink was admitted to, `certificate` that of the server, as PEM.
    """

    host: str
    port: int
    name: str
    certificate: str
    secret: bytes = field(repr=False)


def line_of(message: Mapping[str, Any]) -> bytes:
    """Return a message as a line."""
    return json.dumps(message).encode() + b"\n"


def server_tls() -> tuple[ssl.SSLContext, str]:
    """Return the TLS settings of a server with a new certificate, and the certificate as PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "router leases")])
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    # Tasks compare the certificate itself, so that its dates mean nothing: clocks of executors may be wrong.
    builder = builder.not_valid_before(datetime.datetime(2000, 1, 1))  # noqa: DTZ001 - X.509 times are UTC
    builder = builder.not_valid_after(datetime.datetime(2100, 1, 1))  # noqa: DTZ001
    certificate = builder.sign(key, SHA256()).public_bytes(serialization.Encoding.PEM).decode()
    key_text = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # OpenSSL reads a certificate from a file only.
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "server.pem"
        path.touch(mode=0o600)
        path.write_text(key_text + certificate)
        context.load_cert_chain(path)
    return context, certificate


def task_tls(certificate: str) -> ssl.SSLContext:
    """Return the TLS settings of a task: it talks to the server with this certificate and to no other."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # the certificate says who the server is, at whichever address it is reached
    context.load_verify_locations(cadata=certificate)
    return context
