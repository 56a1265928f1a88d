"""The TLS context of a client: whom it trusts, and who it is itself."""

from __future__ import annotations

import ssl
from functools import lru_cache
from pathlib import Path

from requests.utils import DEFAULT_CA_BUNDLE_PATH


class Unusable(ValueError):  # noqa: N818 - it says what is wrong
    """A file of a TLS option that is of no use."""


def tls_context(verify: bool | str, cert: str | tuple[str, str] | None) -> ssl.SSLContext:
    """Return the TLS context of a client, made anew when one of its files has changed.

    verify: True for the authorities that `requests` trusts, the path of a file or folder of others, False for nobody's
    word. cert: the client's certificate, with its key in the same file or in a second one. The environment has no say.
    Raises Unusable when a file is missing or holds something else.
    """
    authorities = None if verify is False else DEFAULT_CA_BUNDLE_PATH if verify is True else verify
    files = (cert,) if isinstance(cert, str) else cert or ()
    return _context(authorities, files, tuple(_stamp(file) for file in (authorities, *files) if file is not None))


def _stamp(file: str) -> int:
    try:
        return Path(file).stat().st_mtime_ns
    except OSError as error:
        raise Unusable(f"TLS: {file}: {error.strerror}") from None


# reading the authorities takes longer than a hundred calls
@lru_cache(maxsize=16)
def _context(authorities: str | None, files: tuple[str, ...], stamps: tuple[int, ...]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    file = authorities
    try:
        if authorities is None:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        elif Path(authorities).is_dir():
            context.load_verify_locations(capath=authorities)
        else:
            context.load_verify_locations(authorities)
        if files:
            file = files[0]
            context.load_cert_chain(file, files[-1], password="")  # or OpenSSL asks a terminal for it
    except (ssl.SSLError, OSError) as error:
        why = getattr(error, "reason", None) or error.strerror
        raise Unusable(f"TLS: {file} is not what it should be: {why}") from None
    return context
