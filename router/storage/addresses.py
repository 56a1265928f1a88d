"""Addresses of lakes and checkpoints: a path, or a URI of one of the storages that `router.storage.files` reaches.

What checks a configuration needs no more of a storage than this, and does not wait for its clients to be imported.
"""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

STORAGE_BY_SCHEME = {
    **dict.fromkeys(("s3", "s3a"), "s3"),
    **dict.fromkeys(("abfss", "abfs", "az"), "azure"),
    "gs": "gs",
}
URI_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(?=/)")
"""One letter before a colon is a drive, not a scheme."""


class AddressError(ValueError):
    """An address that cannot hold a lake; `what` says why, without the address, which may hold a secret."""

    def __init__(self, place: str, what: str) -> None:
        super().__init__(f"{place}: {what}")
        self.what = what


def normalize_address(place: str) -> str:
    """Return a place as the router writes it: an absolute path, or a URI without a slash at its end.

    Raises AddressError for a scheme that cannot hold a lake, and for a URI that names no bucket.
    """
    match = URI_SCHEME.match(place)
    if match is None:
        return str(Path(place).resolve())
    scheme = match[1].lower()
    if scheme == "file":
        return _read_file_uri(place)
    if scheme == "dbfs":
        raise AddressError(
            place, f"DBFS cannot hold a lake; give the address of the bucket beneath it: {_list_known_schemes()}"
        )
    if scheme not in STORAGE_BY_SCHEME:
        raise AddressError(
            place, f"{scheme}:// is not a storage that the router knows; it knows {_list_known_schemes()}"
        )
    after_scheme = place[match.end() :]
    rest = after_scheme.strip("/")
    bucket, _, _ = rest.partition("/")
    if not bucket or not after_scheme.startswith("//"):
        raise AddressError(place, f"names no bucket; write {scheme}://BUCKET/FOLDER")
    if scheme.startswith("abfs") and not re.fullmatch(r"[^@]+@[^.@]+\..+", bucket):
        raise AddressError(place, f"names no account; write {scheme}://CONTAINER@ACCOUNT.dfs.core.windows.net/FOLDER")
    return f"{scheme}://{rest}"


def _read_file_uri(uri: str) -> str:
    """Return the path of file:/x, file:///x and file://localhost/x."""
    parts = urlsplit(uri)
    if parts.netloc not in ("", "localhost"):
        raise AddressError(uri, "names a host; write file:///FOLDER for a folder of this machine")
    return str(Path(unquote(parts.path)).resolve())


def _list_known_schemes() -> str:
    return ", ".join(f"{scheme}://" for scheme in STORAGE_BY_SCHEME) + ", file:/ and paths"


def is_local_path(path: str) -> bool:
    """Return whether a path, or pattern, as a configuration gives it to Spark, is one of this machine."""
    scheme = URI_SCHEME.match(path)
    return scheme is None or scheme[1].lower() == "file"


def is_local(place: str) -> bool:
    """Return whether a place is a folder; the place as `normalize_address` returns it."""
    return "://" not in place
