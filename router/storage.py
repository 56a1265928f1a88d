"""Files of lakes and checkpoints: in a folder, or below a prefix of an object store. Nothing else opens their paths.

| place | is |
|---|---|
| `./lake`, `/data/lake`, `file:/data/lake` | a folder that driver and executors have mounted |
| `s3://BUCKET/PREFIX`, `s3a://...` | S3, or whatever speaks its protocol at the endpoint that the options name |
| `abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PREFIX`, `az://CONTAINER/PREFIX` | Azure |
| `gs://BUCKET/PREFIX` | Google Cloud Storage |

Object stores are reached through obstore: it wraps the Rust crate that delta-rs uses as well, so both take the same
options, and it writes a file only if none is there yet, which pyarrow's own clients do not offer
(docs/decisions/0013). Works on driver and executors.
"""

from __future__ import annotations

import errno
import io
import os
import re
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timezone
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

import pyarrow as pa
from pyarrow import fs

from router.addresses import SCHEMES, is_local
from router.errors import StartError, first_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

THREADS = 16
WHOLE = 8 << 20
"""Bytes up to which a file is read by one request, whatever part of it is asked for."""
PART = 8 << 20
"""Bytes of a part of an upload, and of a file that one request writes; a task has up to 128 files open."""


def for_spark(place: str, options: Mapping[str, str]) -> str:
    """Return the address that Spark's file systems know a place by: s3a:// and abfss://."""
    scheme, found, rest = place.partition("://")
    if found and scheme == "s3":
        return f"s3a://{rest}"
    account = _lower(options).get("azure_storage_account_name") or os.environ.get("AZURE_STORAGE_ACCOUNT_NAME")
    if scheme == "az" and account:
        container, _, folder = rest.partition("/")
        return f"abfss://{container}@{account}.dfs.core.windows.net/{folder}"
    return place


def hadoop_settings(place: str, options: Mapping[str, str]) -> dict[str, str]:
    """Return what Spark's own file systems must know to reach a place with these options; secrets are among it."""
    given, scheme = _lower(for_delta(place, options) or {}), place.partition("://")[0]
    if SCHEMES.get(scheme) == "s3":
        found = {f"fs.s3a.{name}": given.get(option) for name, option in S3A.items()}
        if endpoint := given.get("aws_endpoint_url"):
            plain = given.get("aws_virtual_hosted_style_request", "false") != "true"
            found |= {"fs.s3a.path.style.access": str(plain).lower()}
            found |= {"fs.s3a.connection.ssl.enabled": str(not endpoint.startswith("http://")).lower()}
    elif SCHEMES.get(scheme) == "azure":
        host = for_spark(place, options).partition("@")[2].partition("/")[0]
        found = {f"fs.azure.account.key.{host}": given.get("azure_storage_account_key")}
    else:
        found = {}
    return {name: value for name, value in found.items() if value}


S3A = {
    "access.key": "aws_access_key_id",
    "secret.key": "aws_secret_access_key",
    "session.token": "aws_session_token",
    "endpoint": "aws_endpoint_url",
    "endpoint.region": "aws_region",
}
"""Names of Hadoop's s3a for options that delta-rs and obstore know."""


class Storage(Protocol):
    """What both kinds of storage do; paths are relative to the place."""

    @property
    def arrow(self) -> fs.FileSystem:
        """Return the files as a file system of Arrow."""

    def read(self, path: str) -> bytes | None:
        """Return the content of a file, or None where there is none."""

    def write(self, path: str, content: bytes) -> None:
        """Write a file so that a crash leaves either all of it or what was there; make its folder."""

    def create(self, path: str, content: bytes) -> str | None:
        """Write a file unless there is one; return its stamp, or None where there is one."""

    def replace(self, path: str, content: bytes, stamp: str) -> str | None:
        """Write a file in place of the one with a stamp; return the new stamp, or None where it is another one."""

    def stamp(self, path: str) -> str | None:
        """Return what changes whenever a file is written, or None where there is none."""

    def stamps(self, folder: str, after: str) -> dict[str, str]:
        """Return the stamps of the files in a folder whose paths come after another one."""

    def delete(self, paths: Iterable[str]) -> None:
        """Delete files, those that are there."""

    def sync(self, path: str) -> None:
        """Return when a closed file, and its name, survive a power cut."""


def probe(place: str, options: Mapping[str, str]) -> None:
    """Raise StartError where a place does not keep a file that is there from one that is created in its stead.

    Two writers of one commit would both believe that it is theirs. Mounted buckets are like that, and stores that do
    not know conditional writes. What else is wrong with a folder, a full disk for one, passes: the run waits for it.
    """
    files, path = files_at(place, options), f"_probe-{uuid.uuid4().hex}"
    try:
        written = [files.create(path, content) is not None for content in (b"1", b"2")]
        alike = written == [True, False] and files.read(path) == b"1"
        files.delete([path])
    except OSError as error:
        if not is_local(place):
            raise StartError(f"{place} cannot be written: {first_line(error)}") from None
        alike = error.errno not in NO_LINKS
    if not alike:
        what = "the folder is a mounted bucket, or on a file system without hard links; give the bucket's own address"
        if not is_local(place):
            what = "the store ignores If-None-Match; take one, or a version of it, that has conditional writes"
        raise StartError(f"{place} cannot hold a lake: a file there can be replaced by one that is created: {what}")


NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


def files_at(place: str, options: Mapping[str, str]) -> Storage:
    """Return the files of a place that `normalized` returned."""
    return LocalFiles(place) if is_local(place) else ObjectFiles(place, options)


class LocalFiles:
    """Files of a folder."""

    def __init__(self, root: str) -> None:
        self.root = root

    @cached_property
    def arrow(self) -> fs.FileSystem:
        Path(self.root).mkdir(parents=True, exist_ok=True)
        return fs.SubTreeFileSystem(self.root, fs.LocalFileSystem())

    def read(self, path: str) -> bytes | None:
        try:
            with self.arrow.open_input_stream(path) as stream:
                return cast("bytes", stream.read())
        except FileNotFoundError:
            return None

    def write(self, path: str, content: bytes) -> None:
        whole = Path(self.root, path)
        self._unfinished(path, content).replace(whole)
        _sync(whole.parent)  # or a power cut takes the name, and what relied on it stays

    def create(self, path: str, content: bytes) -> str | None:
        unfinished = self._unfinished(path, content)
        try:
            os.link(unfinished, Path(self.root, path))  # unlike a rename it fails where there is a file
        except FileExistsError:
            return None
        finally:
            unfinished.unlink(missing_ok=True)
        _sync(unfinished.parent)
        return self.stamp(path)

    def replace(self, path: str, content: bytes, stamp: str) -> str | None:
        if self.stamp(path) != stamp:
            return None
        self.write(path, content)
        return self.stamp(path)

    def stamp(self, path: str) -> str | None:
        try:
            return str(Path(self.root, path).stat().st_mtime_ns)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def stamps(self, folder: str, after: str) -> dict[str, str]:
        found = (f"{folder}/{entry.name}" for entry in Path(self.root, folder).iterdir())
        return {path: self.stamp(path) or "" for path in sorted(found) if path > after}

    def delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            if self.arrow.get_file_info(path).type is fs.FileType.File:
                self.arrow.delete_file(path)

    def sync(self, path: str) -> None:
        whole = Path(self.root, path)
        for place in (whole, whole.parent):
            _sync(place)

    def _unfinished(self, path: str, content: bytes) -> Path:
        """Write the content beside its file, down to the disk; under a name that no other writer of the file has."""
        whole = Path(self.root, path)
        unfinished = whole.with_name(f".{whole.name}.{uuid.uuid4().hex}.tmp")
        unfinished.parent.mkdir(parents=True, exist_ok=True)
        with unfinished.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        return unfinished


def _sync(place: Path) -> None:
    at = os.open(place, os.O_RDONLY)
    try:
        os.fsync(at)
    finally:
        os.close(at)


class ObjectFiles(fs.FileSystemHandler):  # type: ignore[misc]
    """Files below a prefix of an object store, which are there whole or not at all. Folders exist by their files only.

    Failures are OSErrors, as those of a disk.
    """

    def __init__(self, root: str, options: Mapping[str, str]) -> None:
        self.root, self.options = root, dict(options)

    @cached_property
    def store(self) -> Any:
        return open_store(self.root, self.options)

    @cached_property
    def arrow(self) -> fs.FileSystem:
        return fs.PyFileSystem(self)

    def read(self, path: str) -> bytes | None:
        try:
            with failures():
                return bytes(_obstore().get(self.store, path).bytes())
        except FileNotFoundError:
            return None

    def write(self, path: str, content: bytes) -> None:
        with failures():
            _obstore().put(self.store, path, content, use_multipart=False)

    def create(self, path: str, content: bytes) -> str | None:
        return self._put(path, content, "create")

    def replace(self, path: str, content: bytes, stamp: str) -> str | None:
        mode = {"e_tag": stamp}
        if self.root.startswith("gs:"):  # it compares generations, not ETags
            found = self._head(path)
            if found is None or found["e_tag"] != stamp:
                return None
            mode["version"] = str(found["version"])
        return self._put(path, content, mode)

    def _put(self, path: str, content: bytes, mode: Any) -> str | None:
        try:
            with failures():
                return str(_obstore().put(self.store, path, content, mode=mode, use_multipart=False)["e_tag"])
        except FileExistsError:
            return None

    def stamp(self, path: str) -> str | None:
        found = self._head(path)
        return str(found["e_tag"]) if found else None

    def _head(self, path: str) -> Any:
        try:
            with failures():
                return _obstore().head(self.store, path)
        except FileNotFoundError:
            return None

    def stamps(self, folder: str, after: str) -> dict[str, str]:
        with failures():
            chunks = _obstore().list(self.store, folder, offset=after, chunk_size=1000)
            return {one["path"]: str(one["e_tag"]) for chunk in chunks for one in chunk}

    def delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            try:
                with failures():
                    _obstore().delete(self.store, path)
            except FileNotFoundError:
                continue

    def sync(self, path: str) -> None:
        """Do nothing: a store that has taken a file keeps it."""

    # What Arrow asks of a file system.

    def get_type_name(self) -> str:
        return "object store"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: list[str]) -> list[fs.FileInfo]:
        if len(paths) <= 1:
            return [self._info(path) for path in paths]
        with ThreadPoolExecutor(THREADS) as pool:
            return list(pool.map(self._info, paths))

    def _info(self, path: str) -> fs.FileInfo:
        if not path.strip("/"):
            return fs.FileInfo(path, fs.FileType.Directory)
        try:
            with failures():
                return _file_info(_obstore().head(self.store, path))
        except FileNotFoundError:
            with failures():
                inside: Any = next(iter(_obstore().list(self.store, path, chunk_size=1)), [])
            return fs.FileInfo(path, fs.FileType.Directory if inside else fs.FileType.NotFound)

    def get_file_info_selector(self, selector: fs.FileSelector) -> list[fs.FileInfo]:
        """List a folder; with `recursive` its files at any depth, without the folders between."""
        with failures():
            if selector.recursive:
                chunks = _obstore().list(self.store, selector.base_dir or None, chunk_size=1000)
                found = [_file_info(one) for chunk in chunks for one in chunk]
            else:
                listed = _obstore().list_with_delimiter(self.store, selector.base_dir or None)
                found = [fs.FileInfo(path, fs.FileType.Directory) for path in listed["common_prefixes"]]
                found += [_file_info(one) for one in listed["objects"]]
        if not found and not selector.allow_not_found:
            raise FileNotFoundError(selector.base_dir)
        return found

    def create_dir(self, path: str, recursive: bool) -> None:
        """Do nothing: a folder is there with its first file."""

    def open_input_stream(self, path: str) -> pa.NativeFile:
        return self.open_input_file(path)

    def open_input_file(self, path: str) -> pa.NativeFile:
        with failures():
            found = _obstore().get(self.store, path)
            if found.meta["size"] <= WHOLE:
                return pa.BufferReader(pa.py_buffer(found.bytes()))
            return pa.PythonFile(_Download(self.store, path, found.meta["size"]), mode="r")

    def open_output_stream(self, path: str, metadata: Any) -> pa.NativeFile:
        with failures():
            return pa.PythonFile(_Upload(_obstore().open_writer(self.store, path, buffer_size=PART)), mode="w")

    def open_append_stream(self, path: str, metadata: Any) -> pa.NativeFile:
        raise NotImplementedError("an object store does not append")

    def delete_file(self, path: str) -> None:
        with failures():
            _obstore().delete(self.store, path)

    def move(self, src: str, dest: str) -> None:
        self.copy_file(src, dest)
        self.delete_file(src)

    def copy_file(self, src: str, dest: str) -> None:
        with failures():
            _obstore().copy(self.store, src, dest)

    def delete_dir(self, path: str) -> None:
        found = self.get_file_info_selector(fs.FileSelector(path, recursive=True, allow_not_found=True))
        for info in found:
            self.delete_file(info.path)

    def delete_dir_contents(self, path: str, missing_dir_ok: bool = False) -> None:
        self.delete_dir(path)

    def delete_root_dir_contents(self) -> None:
        raise NotImplementedError("the router does not empty a lake")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObjectFiles) and (other.root, other.options) == (self.root, self.options)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None  # type: ignore[assignment]


def _file_info(meta: Mapping[str, Any]) -> fs.FileInfo:
    return fs.FileInfo(meta["path"], fs.FileType.File, size=meta["size"], mtime=meta["last_modified"])


class _Upload(io.RawIOBase):
    """A file on its way to an object store; it is there when it is closed."""

    def __init__(self, writer: Any) -> None:
        self.writer, self.at = writer, 0

    def writable(self) -> bool:
        return True

    def write(self, content: Any) -> int:
        with failures():
            self.writer.write(content)
        self.at += len(content)
        return len(content)

    def tell(self) -> int:
        return self.at

    def flush(self) -> None:
        """Do nothing: an object store shows no half of a file, and every flush would be a request."""

    def close(self) -> None:
        if not self.closed:
            super().close()
            with failures():
                self.writer.close()


class _Download(io.RawIOBase):
    """A large file of an object store, read in the ranges that are asked for."""

    def __init__(self, store: Any, path: str, size: int) -> None:
        self.store, self.path, self.length, self.at = store, path, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self.at = {io.SEEK_SET: 0, io.SEEK_CUR: self.at, io.SEEK_END: self.length}[whence] + offset
        return self.at

    def size(self) -> int:
        return self.length

    def read(self, count: int | None = -1) -> bytes:
        left = self.length - self.at
        wanted = left if count is None or count < 0 else min(count, left)
        if wanted <= 0:
            return b""
        with failures():
            found = bytes(_obstore().get_range(self.store, self.path, start=self.at, length=wanted))
        self.at += len(found)
        return found


def open_store(root: str, options: Mapping[str, str]) -> Any:
    """Return a client of the object store at a place. Raises StartError where its options cannot be used.

    What the options do not say comes from the environment, as the store's own tools read it.
    """
    from obstore import store  # noqa: PLC0415 - local lakes do without

    scheme, _, rest = root.partition("://")
    bucket, _, folder = rest.partition("/")
    given, prefix = _lower(options), folder or None
    if SCHEMES[scheme] == "s3":
        role = {name: given.pop(name, None) for name in ("aws_profile", "aws_iam_role_arn")}
        provider = _boto3(root, given, **role)
        return _configured(store.S3Store, root, bucket, prefix, given, credential_provider=provider)
    if SCHEMES[scheme] == "gs":
        return _configured(store.GCSStore, root, bucket, prefix, given)
    container, _, account = bucket.partition("@")
    if account:
        given.setdefault("azure_storage_account_name", account.partition(".")[0])
    return _configured(store.AzureStore, root, container, prefix, given)


def _configured(kind: Any, root: str, bucket: str, prefix: str | None, given: dict[str, str], **more: Any) -> Any:
    """Return a client with the options that it knows: some are of delta-rs only."""
    from obstore import exceptions  # noqa: PLC0415 - local lakes do without

    while True:
        try:
            return kind(bucket, prefix=prefix, config=given, **more)
        except exceptions.UnknownConfigurationKeyError as error:
            unknown = re.search(r"'([^']+)'", str(error))
            if unknown is None or given.pop(unknown[1], None) is None:
                raise StartError(f"{root}: {_said(error)}") from None
        except exceptions.BaseError as error:
            raise StartError(f"{root}: its storage_options cannot be used: {_said(error)}") from None


def for_delta(place: str, options: Mapping[str, str]) -> dict[str, str] | None:
    """Return the options that delta-rs takes: it knows no profiles, so it gets the keys that belong to one just now."""
    if is_local(place) or SCHEMES[place.partition("://")[0]] != "s3":
        return dict(options) or None
    given = _lower(options)
    role = {name: given.pop(name, None) for name in ("aws_profile", "aws_iam_role_arn")}
    provider = _boto3(place, given, **role)
    if provider is None:
        return dict(options) or None
    keys = provider()
    found = {"aws_access_key_id": keys["access_key_id"], "aws_secret_access_key": keys["secret_access_key"]}
    found |= {"aws_session_token": keys["token"]} if keys.get("token") else {}
    return {**given, **found}


def _boto3(root: str, given: Mapping[str, str], aws_profile: str | None, aws_iam_role_arn: str | None) -> Any:
    """Return who asks for credentials where a profile or a role is named; None where keys or the machine say it."""
    profile = aws_profile or os.environ.get("AWS_PROFILE")
    if "aws_access_key_id" in given or not (profile or aws_iam_role_arn):
        return None
    return _provider(root, profile, aws_iam_role_arn, given.get("aws_region"))


@cache
def _provider(root: str, profile: str | None, role: str | None, region: str | None) -> Any:
    try:
        import boto3  # noqa: PLC0415 - few need it
        from obstore.auth.boto3 import Boto3CredentialProvider, StsCredentialProvider  # noqa: PLC0415
    except ImportError:
        raise StartError(
            f"{root}: a profile or a role needs boto3; install spark-event-router[aws], or name keys in storage_options"
        ) from None
    session = boto3.Session(profile_name=profile, region_name=region)
    if not role:
        return Boto3CredentialProvider(session)
    assumed = StsCredentialProvider(session, RoleArn=role, RoleSessionName="spark-event-router")

    def provider() -> dict[str, Any]:
        keys: dict[str, Any] = {**assumed()}
        # obstore knows no other zone than datetime's own UTC, and boto3 has another
        return {**keys, "expires_at": keys["expires_at"].astimezone(timezone.utc)}

    return provider


def _lower(options: Mapping[str, str]) -> dict[str, str]:
    """Return options by one name each: people write them in capitals, as variables of the environment, as well."""
    names = {"account_name": "azure_storage_account_name", "profile": "aws_profile"}
    names |= {name: f"aws_{name}" for name in ("access_key_id", "secret_access_key", "region", "endpoint_url")}
    return {names.get(key.lower(), key.lower()): value for key, value in options.items()}


SECRET = re.compile(r"(?i)((?:sig|signature|token|password|secret|key)[a-z_-]*=)[^&\s\"]+")


@contextmanager
def failures() -> Iterator[None]:
    """Raise what an object store answers as the OSError that a disk would raise, without keys that stand in a URL."""
    from obstore import exceptions  # noqa: PLC0415 - local lakes do without

    try:
        yield
    except exceptions.NotFoundError as error:
        raise FileNotFoundError(_said(error)) from None
    except (exceptions.AlreadyExistsError, exceptions.PreconditionError) as error:
        raise FileExistsError(_said(error)) from None
    except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
        raise PermissionError(_said(error)) from None
    except exceptions.BaseError as error:
        raise OSError(_said(error)) from None


def _said(error: Exception) -> str:
    return SECRET.sub(r"\1***", first_line(error))


def _obstore() -> Any:
    import obstore  # noqa: PLC0415 - 30 ms, and local lakes do without

    return obstore
