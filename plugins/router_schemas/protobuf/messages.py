"""Find a message in descriptors: by index path as frames name it, or by full name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from google.protobuf import descriptor_pb2, descriptor_pool  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


def name_at(descriptors: bytes, path: Sequence[int]) -> str:
    """Return the full name of the message at an index path of the last file of a FileDescriptorSet.

    A map makes a nested message, its entry, which clients count that work on descriptors, and which those do not that
    work on the text. A path is read with entries counted, and without them where it leads nowhere or to an entry.
    Raises ValueError where it leads nowhere either way.
    """
    file = _main(descriptors)
    found = _walked(file, path, entries=True) or _walked(file, path, entries=False)
    if found is None:
        raise ValueError(f"{file.name}: no message at index path {list(path)}; a frame names another schema's message")
    return found


def path_of(descriptors: bytes, name: str) -> tuple[int, ...]:
    """Return the index path of a message of the last file, entries counted; raise ValueError where there is none."""
    file = _main(descriptors)
    for path, found, _ in _nested(file.message_type, file.package):
        if found == name:
            return path
    raise ValueError(f"{file.name}: no message {name!r}; it has {_listed(descriptors)}")


def paths_of(descriptors: bytes, name: str) -> tuple[tuple[int, ...], ...]:
    """Return the index paths of a message in the file that holds it: with entries counted, and without them."""
    files = descriptor_pb2.FileDescriptorSet.FromString(descriptors).file
    both = ([*_nested(file.message_type, file.package, (), entries)] for file in files for entries in (True, False))
    return tuple(dict.fromkeys(path for found in both for path, one, _ in found if one == name))


def names(descriptors: bytes) -> tuple[str, ...]:
    """Return the full names of the messages of the last file, the first message first."""
    return _names(_main(descriptors))


def all_names(descriptors: bytes) -> tuple[str, ...]:
    """Return the full names of the messages of all files, those of the last file first."""
    files = descriptor_pb2.FileDescriptorSet.FromString(descriptors).file
    return tuple(name for file in reversed(files) for name in _names(file))


def pool_of(descriptors: bytes) -> Any:
    """Return a new descriptor pool with the files of a FileDescriptorSet, dependencies first.

    Raises ValueError with what does not fit together.
    """
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(descriptors).file:
        try:
            pool.Add(file)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{file.name}: {str(error).removeprefix(_POOL)}") from None
    return pool


def message_of(descriptors: bytes, name: str) -> Any:
    """Return the descriptor of a message of any of the files, by full name; raise ValueError where there is none."""
    try:
        return pool_of(descriptors).FindMessageTypeByName(name)
    except KeyError:
        raise ValueError(f"no message {name!r}; there is {_listed(descriptors)}") from None


_POOL = "Couldn't build proto file into descriptor pool: "


def _main(descriptors: bytes) -> Any:
    return descriptor_pb2.FileDescriptorSet.FromString(descriptors).file[-1]


def _walked(file: Any, path: Sequence[int], entries: bool) -> str | None:
    name, here = file.package, file.message_type
    for index in path:
        if not 0 <= index < len(here) or here[index].options.map_entry:
            return None
        name, message = _joined(name, here[index].name), here[index]
        here = [one for one in message.nested_type if entries or not one.options.map_entry]
    return name if path else None


def _names(file: Any) -> tuple[str, ...]:
    return tuple(name for _, name, message in _nested(file.message_type, file.package) if not message.options.map_entry)


def _nested(
    messages: Sequence[Any], scope: str, at: tuple[int, ...] = (), entries: bool = True
) -> Iterator[tuple[tuple[int, ...], str, Any]]:
    counted = [one for one in messages if entries or not one.options.map_entry]
    for index, message in enumerate(counted):
        name = _joined(scope, message.name)
        yield (*at, index), name, message
        yield from _nested(message.nested_type, name, (*at, index), entries)


def _joined(scope: str, name: str) -> str:
    return f"{scope}.{name}" if scope else name


def _listed(descriptors: bytes) -> str:
    known = names(descriptors)
    return ", ".join(known[:5]) + (f" and {len(known) - 5} more" if len(known) > 5 else "") or "none"
