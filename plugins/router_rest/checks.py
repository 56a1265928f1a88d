"""Find options of a REST sink that do not go together."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from router_encoders import ToAvro, ToProtobuf
from router_http.addresses import checked_url, is_header_name, is_header_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from router import Encoder
    from router_http.secret import Secret
    from router_rest.auth import Auth
    from router_rest.options import BodyOptions, Limit
    from router_rest.templates import UrlTemplate

TAKEN = {
    "content-type": "write `body: {content_type: ...}`",
    "content-encoding": "write `gzip`",
    "content-length": "it follows from the body",
    "transfer-encoding": "it follows from the body",
    "host": "it follows from `url`",
    "connection": "connections are kept",
}
"""Headers that are not the user's, and what to do."""


def check_headers(headers: Mapping[str, Secret]) -> None:
    """Raise ValueError for a header that cannot be sent, or is not the user's."""
    seen: set[str] = set()
    for name, value in headers.items():
        if not is_header_name(name) or not is_header_text(value.get_secret_value()):
            raise ValueError("a header has a token as its name and printable ASCII as its value")
        if name.lower() in TAKEN:
            raise ValueError(f"the header {name} belongs to the sink: {TAKEN[name.lower()]}")
        if name.lower() in seen:
            raise ValueError(f"the header {name} is given twice")
        seen.add(name.lower())


def checked_host(host: str) -> str:
    """Return a host as it is compared; raise ValueError for what is none."""
    try:
        same = host != "" and urlsplit(checked_url(f"https://{host}")).netloc == host
    except ValueError:
        same = False
    if not same:
        raise ValueError("a host is a name or an address, with a port if the URL has one: api.test:8443")
    return host.lower()


def check_proxy(url: str) -> None:
    """Raise ValueError, which quotes nothing, for what is no proxy's URL."""
    try:
        parts = urlsplit(url)
        whole = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:
        whole = False
    if not whole or not is_header_text(url) or parts.path.strip("/") or parts.query or parts.fragment:
        raise ValueError("a proxy is http(s)://[user:password@]host[:port]")


def check_hosts(template: UrlTemplate, hosts: tuple[str, ...]) -> None:
    """Raise ValueError where data could name any host, or a list of them is of no use."""
    if hosts and template.has_fixed_host:
        raise ValueError("hosts: the URL's host is fixed; take `hosts` away")
    if not hosts and not template.has_fixed_host:
        raise ValueError("the URL's host has a field in it: list in `hosts` what it may be")


def check_own_headers(headers: Mapping[str, Secret], auth: Auth | None, idempotency_header: str | None) -> None:
    """Raise ValueError where two would set one header, or a name is none."""
    if idempotency_header is not None and not is_header_name(idempotency_header):
        raise ValueError("idempotency_header: it has a character that no name of a header has")
    logins = {name.lower() for name in (auth.headers if auth else ())}
    own = idempotency_header.lower() if idempotency_header else None
    for name in headers:
        if name.lower() in {*logins, own}:
            raise ValueError(f"the header {name} is set by `auth` or `idempotency_header`; take it out of `headers`")
    if own in {*logins, *TAKEN}:
        raise ValueError(f"idempotency_header: {idempotency_header} is another header's name")


def check_body(body: BodyOptions, value: Encoder | None, without: tuple[str, ...], rows_per_call: int) -> None:
    """Raise ValueError for a body that cannot be made; `value` is the encoder that was written, if any was."""
    form = body.form_of(rows_per_call)
    if body.template is not None and value is not None:
        raise ValueError("give `value` or a `template` of the body, not both")
    if body.template is not None and without:
        raise ValueError("the template of the body names its columns itself; take `without` away")
    if form == "object" and rows_per_call > 1:
        raise ValueError(f"the body is one object, and a call has up to {rows_per_call} rows: write array or ndjson")
    if form != "object" and isinstance(value, (ToAvro, ToProtobuf)):
        raise ValueError(f"values of {value.part_name} are not JSON: they go alone, with `rows_per_call: 1`")


def check_limits(limits: Iterable[Limit], rows_per_call: int) -> None:
    """Raise ValueError for a limit that would let no full call go, ever."""
    for limit in limits:
        if limit.rows is not None and limit.rows < rows_per_call:
            what = f"{limit.rows:g} rows per {limit.seconds:g} s"
            raise ValueError(f"a call of {rows_per_call} rows never fits into {what}: lower rows_per_call")
