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

import io
import os
import re
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import timezone
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast
from urllib.parse import urlsplit

import pyarrow as pa
from pyarrow import fs

from router.errors import StartError, first_line
from router.storage.addresses import STORAGE_BY_SCHEME, is_local

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

FILE_THREADS = 16
WHOLE_FILE_BYTES = 8 << 20
"""Bytes up to which a file is read by one request, whatever part of it is asked for."""
UPLOAD_PART_BYTES = 8 << 20
"""Bytes of a part of an upload, and of a file that one request writes; a task has up to 128 files open."""


def for_spark(place: str, options: Mapping[str, str]) -> str:
    """Return the address that Spark's file systems know a place by: s3a:// and abfss://."""
    scheme, separator, rest = place.partition("://")
    if separator and scheme == "s3":
        return f"s3a://{rest}"
    account = _with_long_names(options).get("azure_storage_account_name") or os.environ.get(
        "AZURE_STORAGE_ACCOUNT_NAME"
    )
    if scheme == "az" and account:
        container, _, folder = rest.partition("/")
        return f"abfss://{container}@{account}.dfs.core.windows.net/{folder}"
    return place


def hadoop_settings(place: str, options: Mapping[str, str]) -> dict[str, str]:
    """Return the settings for Spark's own file systems to reach a place with these options, secrets among them."""
    named = _with_long_names(for_delta(place, options) or {})
    scheme, _, _ = place.partition("://")
    settings: dict[str, str | None] = {}
    if STORAGE_BY_SCHEME.get(scheme) == "s3":
        for name, option in S3A.items():
            settings[f"fs.s3a.{name}"] = named.get(option)
        endpoint = named.get("aws_endpoint_url")
        if endpoint:
            # Whatever is not Amazon has its buckets in the path, and may have no certificate.
            in_path = named.get("aws_virtual_hosted_style_request", "false") != "true"
            settings["fs.s3a.path.style.access"] = str(in_path).lower()
            settings["fs.s3a.connection.ssl.enabled"] = str(not endpoint.startswith("http://")).lower()
    elif STORAGE_BY_SCHEME.get(scheme) == "azure":
        account = for_spark(place, options).partition("@")[2]
        host, _, _ = account.partition("/")
        settings[f"fs.azure.account.key.{host}"] = named.get("azure_storage_account_key")
    return {name: value for name, value in settings.items() if value}


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
        """Return the content of a file, or None if there is none."""

    def write(self, path: str, content: bytes) -> None:
        """Write a file so that a crash leaves either all of it or what was there; make its folder."""

    def create_if_absent(self, path: str, content: bytes) -> str | None:
        """Write a file unless there is one; return its stamp, or None if there is one."""

    def replace_if_unchanged(self, path: str, content: bytes, stamp: str) -> str | None:
        """Write a file in place of the one with a stamp; return the new stamp, or None if it is another one."""

    def read_stamp(self, path: str) -> str | None:
        """Return the stamp of a file, which changes whenever it is written, or None if there is none."""

    def list_stamps(self, folder: str, after: str) -> dict[str, str]:
        """Return the stamps of the files in a folder whose paths come after another one."""

    def delete(self, paths: Iterable[str]) -> None:
        """Delete files, those that are there."""

    def sync_file(self, path: str) -> None:
        """Return when a closed file, and its name, survive a power cut."""


def probe_conditional_writes(place: str, options: Mapping[str, str]) -> None:
    """Raise StartError if a place does not keep a file that is there from one that is created in its stead.

    Two writers of one commit would both believe that it is theirs. Mounted buckets are like that, and stores that do
    not know conditional writes. What else is wrong with a folder, a full disk for one, passes: the run waits for it.
    """
    files = files_at(place, options)
    path = f"_probe-{uuid.uuid4().hex}"
    try:
        # The second one must be refused, and leave the first one as it is.
        is_created = files.create_if_absent(path, b"1") is not None
        is_replaced = files.create_if_absent(path, b"2") is not None
        is_kept = is_created and not is_replaced and files.read(path) == b"1"
        files.delete([path])
    except OSError as error:
        if not is_local(place):
            raise StartError(f"{place} cannot be written: {_explain_failed_write(error)}") from None
        # File systems say in many ways that they have no hard links; a folder with another fault takes no file at all.
        is_kept = not _takes_files(files)
    if is_kept:
        return
    reason = "the store ignores If-None-Match; take one, or a version of it, that has conditional writes"
    if is_local(place):
        reason = "the folder is a mounted bucket, or on a file system without hard links; give the bucket's own address"
    raise StartError(f"{place} cannot hold a lake: a file there can be replaced by one that is created: {reason}")


def _explain_failed_write(error: OSError) -> str:
    """Return why a store cannot be written; obstore does not say so where it is that the address is no https."""
    reason = first_line(error)
    if "builder error" in reason:
        reason += '; an endpoint with http:// needs `aws_allow_http: "true"` in storage_options'
    return reason


def _takes_files(files: Storage) -> bool:
    path = f"_probe-{uuid.uuid4().hex}"
    try:
        files.write(path, b"1")
        files.delete([path])
    except OSError:
        return False
    return True


def files_at(place: str, options: Mapping[str, str]) -> Storage:
    """Return the files of a place that `normalize_address` returned."""
    if is_local(place):
        return LocalFiles(place)
    return ObjectFiles(place, options)


class LocalFiles:
    """Files of a folder."""

    def __init__(self, root: str) -> None:
        self.root = root

    @cached_property
    def arrow(self) -> fs.FileSystem:
        return fs.SubTreeFileSystem(self.root, fs.LocalFileSystem())

    def read(self, path: str) -> bytes | None:
        try:
            with self.arrow.open_input_stream(path) as stream:
                return cast("bytes", stream.read())
        except FileNotFoundError:
            return None

    def write(self, path: str, content: bytes) -> None:
        file = Path(self.root, path)
        self._write_unfinished_file(path, content).replace(file)
        # Or a power cut takes the name, and what relied on it stays.
        _sync_to_disk(file.parent)

    def create_if_absent(self, path: str, content: bytes) -> str | None:
        unfinished = self._write_unfinished_file(path, content)
        try:
            # Unlike a rename it fails if there is a file.
            os.link(unfinished, Path(self.root, path))
        except FileExistsError:
            return None
        finally:
            unfinished.unlink(missing_ok=True)
        _sync_to_disk(unfinished.parent)
        return self.read_stamp(path)

    def replace_if_unchanged(self, path: str, content: bytes, stamp: str) -> str | None:
        if self.read_stamp(path) != stamp:
            return None
        self.write(path, content)
        return self.read_stamp(path)

    def read_stamp(self, path: str) -> str | None:
        try:
            return str(Path(self.root, path).stat().st_mtime_ns)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def list_stamps(self, folder: str, after: str) -> dict[str, str]:
        paths = [f"{folder}/{name}" for name in os.listdir(Path(self.root, folder))]  # noqa: PTH208 - a log has many files
        return {path: self.read_stamp(path) or "" for path in sorted(paths) if path > after}

    def delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            if self.arrow.get_file_info(path).type is fs.FileType.File:
                self.arrow.delete_file(path)

    def sync_file(self, path: str) -> None:
        file = Path(self.root, path)
        _sync_to_disk(file)
        _sync_to_disk(file.parent)

    def _write_unfinished_file(self, path: str, content: bytes) -> Path:
        """Write the content next to its file, down to the disk, under a name that no other writer of the file has."""
        file = Path(self.root, path)
        unfinished = file.with_name(f".{file.name}.{uuid.uuid4().hex}.tmp")
        unfinished.parent.mkdir(parents=True, exist_ok=True)
        try:
            with unfinished.open("wb") as stream:
                stream.write(content)
                stream.flush()
                os.fsync(stream.fileno())
        except OSError:
            # On a full disk this is tried again and again, and each try would leave a file.
            with suppress(OSError):
                unfinished.unlink(missing_ok=True)
            raise
        return unfinished


def _sync_to_disk(place: Path) -> None:
    descriptor = os.open(place, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class ObjectFiles(fs.FileSystemHandler):  # type: ignore[misc]
    """Files below a prefix of an object store, which exist completely or not at all. Folders exist by their files only.

    Failures are OSErrors, as those of a disk.
    """

    def __init__(self, root: str, options: Mapping[str, str]) -> None:
        self.root = root
        self.options = dict(options)

    @cached_property
    def store(self) -> Any:
        return open_store(self.root, self.options)

    @cached_property
    def arrow(self) -> fs.FileSystem:
        return fs.PyFileSystem(self)

    def read(self, path: str) -> bytes | None:
        try:
            with raise_as_os_errors():
                return bytes(_import_obstore().get(self.store, path).bytes())
        except FileNotFoundError:
            return None

    def write(self, path: str, content: bytes) -> None:
        with raise_as_os_errors():
            _import_obstore().put(self.store, path, content, use_multipart=False)

    def create_if_absent(self, path: str, content: bytes) -> str | None:
        return self._put_object(path, content, "create")

    def replace_if_unchanged(self, path: str, content: bytes, stamp: str) -> str | None:
        mode = {"e_tag": stamp}
        if self.root.startswith("gs:"):
            # It compares generations, not ETags.
            head = self._read_head(path)
            if head is None or head["e_tag"] != stamp:
                return None
            mode["version"] = str(head["version"])
        return self._put_object(path, content, mode)

    def _put_object(self, path: str, content: bytes, mode: Any) -> str | None:
        try:
            with raise_as_os_errors():
                return str(_import_obstore().put(self.store, path, content, mode=mode, use_multipart=False)["e_tag"])
        except FileExistsError:
            return None

    def read_stamp(self, path: str) -> str | None:
        head = self._read_head(path)
        return str(head["e_tag"]) if head else None

    def _read_head(self, path: str) -> Any:
        try:
            with raise_as_os_errors():
                return _import_obstore().head(self.store, path)
        except FileNotFoundError:
            return None

    def list_stamps(self, folder: str, after: str) -> dict[str, str]:
        stamps = {}
        with raise_as_os_errors():
            for chunk in _import_obstore().list(self.store, folder, offset=after, chunk_size=1000):
                for head in chunk:
                    if head["path"] > after:  # Azurite ignores where a list is to begin
                        stamps[head["path"]] = str(head["e_tag"])
        return stamps

    def delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            try:
                with raise_as_os_errors():
                    _import_obstore().delete(self.store, path)
            except FileNotFoundError:
                continue

    def sync_file(self, path: str) -> None:
        """Do nothing: a store that has taken a file keeps it."""

    # What Arrow asks of a file system.

    def get_type_name(self) -> str:
        return "object store"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: list[str]) -> list[fs.FileInfo]:
        if len(paths) <= 1:
            return [self._read_info(path) for path in paths]
        with ThreadPoolExecutor(FILE_THREADS) as pool:
            return list(pool.map(self._read_info, paths))

    def _read_info(self, path: str) -> fs.FileInfo:
        if not path.strip("/"):
            return fs.FileInfo(path, fs.FileType.Directory)
        try:
            with raise_as_os_errors():
                return _file_info(_import_obstore().head(self.store, path))
        except FileNotFoundError:
            # No file of this name: a folder, if there is one below it.
            with raise_as_os_errors():
                inside: Any = next(iter(_import_obstore().list(self.store, path, chunk_size=1)), [])
            return fs.FileInfo(path, fs.FileType.Directory if inside else fs.FileType.NotFound)

    def get_file_info_selector(self, selector: fs.FileSelector) -> list[fs.FileInfo]:
        """List a folder; with `recursive` its files at any depth, without the folders between."""
        infos: list[fs.FileInfo] = []
        with raise_as_os_errors():
            if selector.recursive:
                for chunk in _import_obstore().list(self.store, selector.base_dir or None, chunk_size=1000):
                    infos += [_file_info(head) for head in chunk]
            else:
                listing = _import_obstore().list_with_delimiter(self.store, selector.base_dir or None)
                infos += [fs.FileInfo(path, fs.FileType.Directory) for path in listing["common_prefixes"]]
                infos += [_file_info(head) for head in listing["objects"]]
        if not infos and not selector.allow_not_found:
            raise FileNotFoundError(selector.base_dir)
        return infos

    def create_dir(self, path: str, recursive: bool) -> None:
        """Do nothing: a folder is there with its first file."""

    def open_input_stream(self, path: str) -> pa.NativeFile:
        return self.open_input_file(path)

    def open_input_file(self, path: str) -> pa.NativeFile:
        with raise_as_os_errors():
            answer = _import_obstore().get(self.store, path)
            if answer.meta["size"] <= WHOLE_FILE_BYTES:
                return pa.BufferReader(pa.py_buffer(answer.bytes()))
            return pa.PythonFile(_Download(self.store, path, answer.meta["size"]), mode="r")

    def open_output_stream(self, path: str, metadata: Any) -> pa.NativeFile:
        with raise_as_os_errors():
            return pa.PythonFile(
                _Upload(_import_obstore().open_writer(self.store, path, buffer_size=UPLOAD_PART_BYTES)), mode="w"
            )

    def open_append_stream(self, path: str, metadata: Any) -> pa.NativeFile:
        raise NotImplementedError("an object store does not append")

    def delete_file(self, path: str) -> None:
        with raise_as_os_errors():
            _import_obstore().delete(self.store, path)

    def move(self, src: str, dest: str) -> None:
        self.copy_file(src, dest)
        self.delete_file(src)

    def copy_file(self, src: str, dest: str) -> None:
        with raise_as_os_errors():
            _import_obstore().copy(self.store, src, dest)

    def delete_dir(self, path: str) -> None:
        for info in self.get_file_info_selector(fs.FileSelector(path, recursive=True, allow_not_found=True)):
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
        self.writer = writer
        self.position = 0

    def writable(self) -> bool:
        return True

    def write(self, content: Any) -> int:
        with raise_as_os_errors():
            self.writer.write(content)
        self.position += len(content)
        return len(content)

    def tell(self) -> int:
        return self.position

    def flush(self) -> None:
        """Do nothing: an object store shows no half of a file, and every flush would be a request."""

    def close(self) -> None:
        if not self.closed:
            super().close()
            with raise_as_os_errors():
                self.writer.close()


class _Download(io.RawIOBase):
    """A large file of an object store, read in the ranges that are asked for."""

    def __init__(self, store: Any, path: str, size: int) -> None:
        self.store = store
        self.path = path
        self.length = size
        self.position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self.position, io.SEEK_END: self.length}[whence]
        self.position = origin + offset
        return self.position

    def size(self) -> int:
        return self.length

    def read(self, count: int | None = -1) -> bytes:
        length = self.length - self.position
        if count is not None and count >= 0:
            length = min(count, length)
        if length <= 0:
            return b""
        with raise_as_os_errors():
            content = bytes(_import_obstore().get_range(self.store, self.path, start=self.position, length=length))
        self.position += len(content)
        return content


def open_store(root: str, options: Mapping[str, str]) -> Any:
    """Return a client of the object store at a place. Raises StartError if its options cannot be used.

    What the options do not say comes from the environment, as the store's own tools read it.
    """
    from obstore import store  # noqa: PLC0415 - local lakes do without

    scheme, _, rest = root.partition("://")
    bucket, _, folder = rest.partition("/")
    named = _with_long_names(options)
    prefix = folder or None
    if STORAGE_BY_SCHEME[scheme] == "s3":
        provider = _take_provider(root, named)
        return _open_client(store.S3Store, root, bucket, prefix, named, credential_provider=provider)
    if STORAGE_BY_SCHEME[scheme] == "gs":
        return _open_client(store.GCSStore, root, bucket, prefix, named)
    container, _, account = bucket.partition("@")
    if account:
        named.setdefault("azure_storage_account_name", account.partition(".")[0])
    return _open_client(store.AzureStore, root, container, prefix, named)


def _open_client(kind: Any, root: str, bucket: str, prefix: str | None, options: dict[str, str], **more: Any) -> Any:
    """Return a client with the options that it knows: some are of delta-rs only."""
    from obstore import exceptions  # noqa: PLC0415 - local lakes do without

    while True:
        try:
            return kind(bucket, prefix=prefix, config=options, **more)
        except exceptions.UnknownConfigurationKeyError as error:
            unknown = re.search(r"'([^']+)'", str(error))
            if unknown is None or options.pop(unknown[1], None) is None:
                raise StartError(f"{root}: {_without_secrets(error)}") from None
        except exceptions.BaseError as error:
            raise StartError(f"{root}: its storage_options cannot be used: {_without_secrets(error)}") from None


def for_delta(place: str, options: Mapping[str, str]) -> dict[str, str] | None:
    """Return the options that delta-rs takes: it knows no profiles, so it gets the keys that belong to one just now."""
    if is_local(place):
        return dict(options) or None
    kind = STORAGE_BY_SCHEME[place.partition("://")[0]]
    if kind == "azure":
        return _for_emulator(options) or None
    if kind != "s3":
        return dict(options) or None
    named = _with_long_names(options)
    provider = _take_provider(place, named)
    if provider is None:
        return dict(options) or None
    keys = provider()
    named["aws_access_key_id"] = keys["access_key_id"]
    named["aws_secret_access_key"] = keys["secret_access_key"]
    if keys.get("token"):
        named["aws_session_token"] = keys["token"]
    return named


def _for_emulator(options: Mapping[str, str]) -> dict[str, str]:
    """Return options of Azure, by which delta-rs knows an emulator: the account is in the path of its endpoint.

    Azurite ignores where a list is to begin (`startFrom`). delta-rs then meets commits that it has read, and writes to
    no table a second time. In the list of an emulator it leaves them out itself. It takes the address of an emulator
    from the environment only.
    """
    endpoint = urlsplit(_with_long_names(options).get("azure_endpoint", ""))
    if endpoint.path.strip("/"):
        os.environ["AZURITE_BLOB_STORAGE_URL"] = f"{endpoint.scheme}://{endpoint.netloc}"
        return {**options, "azure_storage_use_emulator": "true"}
    return dict(options)


def _take_provider(root: str, options: dict[str, str]) -> Any:
    """Take profile and role out of the options; return what gets credentials for them.

    None if there are neither, or also keys: then the keys are used, or the machine's own credentials.
    """
    profile = options.pop("aws_profile", None) or os.environ.get("AWS_PROFILE")
    role = options.pop("aws_iam_role_arn", None)
    if "aws_access_key_id" in options or not (profile or role):
        return None
    return _make_credential_provider(root, profile, role, options.get("aws_region"))


@cache
def _make_credential_provider(root: str, profile: str | None, role: str | None, region: str | None) -> Any:
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
        keys: dict[str, Any] = dict(assumed())
        # obstore knows no other zone than datetime's own UTC, and boto3 has another.
        keys["expires_at"] = keys["expires_at"].astimezone(timezone.utc)
        return keys

    return provider


def _with_long_names(options: Mapping[str, str]) -> dict[str, str]:
    """Return options by one name each: people write them in capitals, as variables of the environment, as well."""
    return {OTHER_NAMES.get(key.lower(), key.lower()): value for key, value in options.items()}


OTHER_NAMES = {
    "account_name": "azure_storage_account_name",
    "azure_storage_endpoint": "azure_endpoint",
    "profile": "aws_profile",
    "access_key_id": "aws_access_key_id",
    "secret_access_key": "aws_secret_access_key",
    "region": "aws_region",
    "endpoint_url": "aws_endpoint_url",
}
"""Short names of options, which delta-rs and obstore take as well."""


SECRET_IN_URL = re.compile(r"(?i)((?:sig|signature|token|password|secret|key)[a-z_-]*=)[^&\s\"]+")


@contextmanager
def raise_as_os_errors() -> Iterator[None]:
    """Raise what an object store answers as the OSError that a disk would raise, without keys that stand in a URL."""
    from obstore import exceptions  # noqa: PLC0415 - local lakes do without

    try:
        yield
    except exceptions.NotFoundError as error:
        raise FileNotFoundError(_without_secrets(error)) from None
    except (exceptions.AlreadyExistsError, exceptions.PreconditionError) as error:
        raise FileExistsError(_without_secrets(error)) from None
    except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
        raise PermissionError(_without_secrets(error)) from None
    except exceptions.BaseError as error:
        raise OSError(_without_secrets(error)) from None


def _without_secrets(error: Exception) -> str:
    return SECRET_IN_URL.sub(r"\1***", first_line(error))


def _import_obstore() -> Any:
    import obstore  # noqa: PLC0415 - 30 ms, and local lakes do without

    return obstore
