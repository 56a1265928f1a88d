"""The messages between a task and the driver about calls, and the TLS that protects them.

Reports of how calls went and grants of tokens are plain data, each message a line of JSON. The driver's server has a
certificate of its own, made when it starts. A task trusts this certificate and no other, and proves by a secret that it
is one of this driver; both travel inside the Spark job.
"""

from __future__ import annotations

import datetime
import json
import ssl
import tempfile
from dataclasses import dataclass, field
from math import inf, isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256

from router_rest.limits.sliding_window import RateLimit, Run

if TYPE_CHECKING:
    from collections.abc import Mapping


CONNECT_SECONDS = 10.0
"""Seconds within which a task has to reach the driver, and prove that it is one of this driver."""
TICK_SECONDS = 0.1
"""Seconds between two reports of a task that are not urgent, and between two looks of the driver at all tasks."""
TICKS_PER_HEARTBEAT = 10
"""Ticks after which both sides send a message in any case: without one each would take the other for dead."""

State = Literal["go", "probe", "hold", "leave", "stop"]


@dataclass(frozen=True)
class Pace:
    """The pace at which an API may be called, by all tasks of all sinks that share the limit together.

    `share` is the part of each limit that is used at most; the rest allows for calls that arrive earlier or later than
    planned.
    """

    limits: tuple[RateLimit, ...] = ()
    in_flight: int = 64
    share: float = 0.98
    longest_pause: float = 300.0
    """Seconds: a longer Retry-After counts as this long."""
    retry_share: float = 0.2
    """Retries per call."""
    retry_floor: float = 10.0
    """Retries per second that are allowed in any case."""
    keyed: bool = False
    """The limits are those of each key, not of all calls together."""

    def __post_init__(self) -> None:
        if self.in_flight < 1 or not 0 < self.share < 1 or not 0 < self.longest_pause < inf:
            raise ValueError("a pace has in_flight of 1 or more, a share between 0 and 1, and a longest pause above 0")


class Want(NamedTuple):
    """Tokens that a task asks for: for calls of so many rows, how many such calls, and for which key."""

    rows: int
    calls: int
    key: str = ""


@dataclass(frozen=True)
class TaskReport:
    """The results of a task's calls since its last report, and the tokens that it asks for."""

    sent: int = 0
    ok: int = 0
    delivered: int = 0
    """Rows that were delivered."""
    throttled: int = 0
    partly: int = 0
    """Of those throttled: calls of which some rows were taken."""
    failed: int = 0
    timeouts: int = 0
    """Of those that failed."""
    bad_status: int = 0
    """The status of the last answer to a call that failed; 0: there was none."""
    lapsed: int = 0
    """Tokens that expired unused."""
    retried: int = 0
    """Of those sent."""
    denied: int = 0
    """Retries that the budget did not allow."""
    seconds: float = 0.0
    """The time of all attempts that ended, added up."""
    pause: float | None = None
    """Retry-After, seconds."""
    asking: int = 0
    """Answers with a Retry-After."""
    refused_keys: tuple[int, ...] = ()
    """Some of the keys whose calls were refused, each as a number."""
    remaining: tuple[float, float] | None = None
    """What RateLimit headers said: calls left, and the seconds that they are for."""
    received: int = 0
    """All tokens so far: the driver knows from it which ones are still on their way."""
    number: int = 0
    """The number of the last grant whose `cap` was read."""
    in_flight: int = 0
    """Calls in flight."""
    waiting: int = 0
    """Calls that wait for a token."""
    wants: tuple[Want, ...] = ()
    """In order."""

    def to_message(self) -> dict[str, Any]:
        """Return this as JSON can hold it, without what is zero or empty."""
        return {name: value for name, value in vars(self).items() if value}

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> TaskReport:
        """Read a message; leave out times from the API's headers that are no finite numbers."""
        remaining = message.get("remaining")
        pause = message.get("pause")
        numbers = {name: message[name] for name in INT_FIELDS if name in message}
        return cls(
            **numbers,
            seconds=message.get("seconds", 0.0),
            pause=pause if pause is not None and _is_time(pause) else None,
            refused_keys=tuple(message.get("refused_keys", ())),
            remaining=(remaining[0], remaining[1]) if remaining and all(map(_is_time, remaining)) else None,
            wants=tuple(Want(max(1, rows), *more) for rows, *more in message.get("wants", ())),
        )


INT_FIELDS = [name for name, one in TaskReport.__dataclass_fields__.items() if one.type == "int"]


def _is_time(value: float) -> bool:
    return isfinite(value) and value >= 0


@dataclass(frozen=True)
class Grant:
    """The tokens of one task, and what it has to do.

    `go`: use the tokens. `probe`: the same; the circuit is open, and this call finds out whether the API works again.
    `hold`: drop all tokens. `leave`: end the task, for nothing may be sent for about `retry_after` seconds. `stop`: the
    same, and soon, for the sink stops. The times of tokens are those of the driver's clock.
    """

    state: State = "go"
    runs: tuple[Run, ...] = ()
    number: int = 0
    cap: int = 0
    """Calls in flight."""
    retries: int = 0
    """Further retries, in addition to those that were granted before."""
    retry_after: float = 0.0

    def to_message(self) -> dict[str, Any]:
        """Return this as JSON can hold it."""
        runs = [[run.first, run.step, run.calls, run.rows, run.lives, run.key] for run in self.runs]
        return {**vars(self), "runs": runs}

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> Grant:
        """Read a message."""
        return cls(**{**message, "runs": tuple(Run(*run) for run in message["runs"])})


@dataclass(frozen=True)
class Outlook:
    """A forecast for the driver: whether it is worth starting a job now."""

    is_open: bool
    """The circuit is open: the API does not work."""
    retry_after: float
    """Seconds until a call may be sent; 0: now."""
    tasks: int


@dataclass(frozen=True)
class ServerAddress:
    """The address of the server of a limit; it is pickled to tasks. The secret is shown nowhere.

    `certificate` is that of the server, as PEM.
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
