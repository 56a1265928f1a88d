"""Offer files as the subjects of a registry, for tests of configurations: nothing goes over a network."""

from __future__ import annotations

from typing import TYPE_CHECKING

from router import StartError
from router_schemas.model import Kind, Reference, RegisteredSchema
from router_schemas.registry_options import NotFound

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path
    from uuid import UUID


SUFFIXES: dict[str, Kind] = {".proto": "PROTOBUF", ".avsc": "AVRO", ".json": "JSON"}


class OfflineRegistry:
    """A registry of files of one kind, with those methods of RegistryClient that read.

    `subjects`: subject -> its versions, the oldest first.
    Without a kind each file's name says it, by SUFFIXES. Ids count from 1 in the order of the files. `imports` returns
    what the text of a file needs from its folder.
    """

    name = "the files of the test"

    def __init__(
        self,
        kind: Kind | None,
        subjects: Mapping[str, Sequence[Path]],
        imports: Callable[[Path, str], Mapping[str, str]] = lambda folder, text: {},
    ) -> None:
        self._ids: dict[Path, int] = {}
        self._texts: dict[int, RegisteredSchema] = {}
        self._imported: dict[str, RegisteredSchema] = {}
        self._subjects = {subject: list(files) for subject, files in subjects.items()}
        for path in dict.fromkeys(path for files in self._subjects.values() for path in files):
            number = self._ids[path] = len(self._ids) + 1
            text, own = _read(path), kind or kind_of(path)
            needed = imports(path.parent, text) if own == "PROTOBUF" else {}
            self._imported |= {name: RegisteredSchema(0, own, found) for name, found in needed.items()}
            refers = tuple(Reference(name, name, 1) for name in needed)
            self._texts[number] = RegisteredSchema(number, own, text, refers)

    def chosen(self, path: Path | None) -> tuple[int, Path]:
        """Return a file, or the newest version of the one subject, with its id; raise ValueError."""
        if path is None:
            newest = {files[-1] for files in self._subjects.values() if files}
            if len(newest) != 1:
                raise ValueError("several subjects have schemas: say which file with `schema`")
            (path,) = newest
        if path not in self._ids:
            known = ", ".join(one.name for one in self._ids)
            raise ValueError(f"{path.name} is not among the test's `schemas`; there are {known or 'none'}")
        return self._ids[path], path

    def by_id(self, schema_id: int) -> RegisteredSchema:
        """Return the schema of an id, without its subjects."""
        if schema_id not in self._texts:
            raise NotFound(self.name, f"none has the id {schema_id}")
        return self._texts[schema_id]

    def subjects_of(self, schema_id: int) -> tuple[tuple[str, int], ...]:
        """Return every (subject, version) of an id."""
        pairs = ((subject, files, place) for subject, files in self._subjects.items() for place in range(len(files)))
        return tuple((subject, place + 1) for subject, files, place in pairs if self._ids[files[place]] == schema_id)

    def id_of(self, guid: UUID) -> int:
        """Raise NotFound: files have no GUIDs."""
        raise NotFound(self.name, f"files have no GUIDs, so none has {guid}")

    def versions(self, subject: str) -> tuple[int, ...]:
        """Return the versions of a subject in their order."""
        if subject not in self._subjects:
            raise NotFound(self.name, f"no subject {subject!r}; the test's `schemas` have {', '.join(self._subjects)}")
        return tuple(range(1, len(self._subjects[subject]) + 1))

    def version(self, subject: str, version: int) -> RegisteredSchema:
        """Return one version of a subject, or what a file imports under that name."""
        files = self._subjects.get(subject, [])
        if 1 <= version <= len(files):
            return self._texts[self._ids[files[version - 1]]]
        if subject in self._imported:
            return self._imported[subject]
        raise NotFound(self.name, f"no version {version} of {subject!r}")


def kind_of(path: Path) -> Kind:
    """Return the format that the name of a schema file says."""
    if path.suffix not in SUFFIXES:
        raise StartError(f"schema file {path.name}: its name has to end in one of {', '.join(SUFFIXES)}")
    return SUFFIXES[path.suffix]


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise StartError(f"schema file {path}: {why}; it is looked for in the configuration's folder") from error
