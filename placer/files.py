"""Files: writing so that a reader sees the old content or the new, and reading protos."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from google.protobuf import message, text_format

from placer.errors import PlacerError


def write_atomically(path: str | os.PathLike[str], data: bytes) -> None:
    """Writes `data` to `path` through a temporary file beside it and a rename.

    A symbolic link stays one: the file that it names is written. What is no file, such as
    /dev/stdout or a pipe, is written to as it is.

    Raises:
      PlacerError: if the file cannot be written; nothing is left behind.
    """
    temporary: str | None = None
    try:
        path = _written(path)
        if path.exists() and not path.is_file():
            path.write_bytes(data)
            return
        # The whole of a long name would leave no room for what makes it another.
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:32]}.")
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, _mode(path))
        os.replace(temporary, path)
        temporary = None
    except OSError as error:
        raise PlacerError(f"cannot write {path}: {error.strerror or error}") from None
    finally:
        if temporary is not None and os.path.exists(temporary):
            os.unlink(temporary)


def _written(path: str | os.PathLike[str]) -> Path:
    """What writing to `path` writes: the file that links lead to, or what is no file, as given.

    The system's name for a pipe, to which /dev/stdout may be a link, is no path that can be opened.
    """
    given = Path(path)
    if given.exists() and not given.is_file():
        return given
    return Path(os.path.realpath(given))


def _mode(path: Path) -> int:
    """Permissions of the file that is replaced, or those of a new one."""
    if path.exists():
        return path.stat().st_mode & 0o777
    umask = os.umask(0)
    os.umask(umask)
    return 0o666 & ~umask


Proto = TypeVar("Proto", bound=message.Message)


def read_proto(
    path: str | os.PathLike[str], kind: type[Proto], what: str, plausible: Callable[[Proto], bool]
) -> Proto:
    """Reads a proto file in binary or text form.

    Args:
      path: the file.
      kind: class of the message.
      what: what to call it in errors, such as "topology".
      plausible: whether a message that was parsed can be meant: other files may parse too.

    Raises:
      PlacerError: if the file cannot be read or is neither.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise PlacerError(f"cannot read {what} {path}: {error.strerror}") from None
    try:
        proto = kind.FromString(data)
        if plausible(proto):
            return proto
    except message.DecodeError:
        pass
    try:
        return text_format.Parse(data.decode(), kind())
    except UnicodeDecodeError:
        reason = ""
    except text_format.ParseError as error:
        reason = f" ({error})"
    article = "an" if what[0] in "aeiou" else "a"
    raise PlacerError(f"{path} is not {article} {what}{reason}")


def check_directory(path: str | os.PathLike[str]) -> None:
    """Raises PlacerError now if no directory `path` could be made or written to later."""
    path = Path(path)
    try:
        found = next(p for p in (path, *path.absolute().parents) if p.exists())
    except OSError as error:
        # A name that is too long, or a directory that may not be looked into.
        raise PlacerError(f"cannot write to directory {path}: {error.strerror}") from None
    if not found.is_dir():
        raise PlacerError(f"cannot write to directory {path}: {found} is a file")
    if not os.access(found, os.W_OK):
        raise PlacerError(f"cannot write to directory {path}: permission denied")


def check_writable(path: str | os.PathLike[str]) -> None:
    """Raises PlacerError now if `path` could not be written later; changes nothing."""
    try:
        path = _written(path)
        exists, is_directory, is_file = path.exists(), path.is_dir(), path.is_file()
        has_parent = path.parent.is_dir()
    except OSError as error:
        # A name that is too long, or a directory that may not be looked into.
        raise PlacerError(f"cannot write {path}: {error.strerror}") from None
    if is_directory:
        raise PlacerError(f"cannot write {path}: it is a directory")
    if exists and not is_file and os.access(path, os.W_OK):
        return
    if not has_parent:
        raise PlacerError(f"cannot write {path}: there is no directory {path.parent}")
    if not os.access(path.parent, os.W_OK) or (exists and not os.access(path, os.W_OK)):
        raise PlacerError(f"cannot write {path}: permission denied")


def check_distinct(paths: Sequence[str | os.PathLike[str]]) -> None:
    """Raises PlacerError if two of the writable `paths` are one file: the last would be all of it.

    What is no file, such as /dev/null, may be given more than once.
    """
    seen: set[str] = set()
    for path in paths:
        if os.path.exists(path) and not os.path.isfile(path):
            continue
        real = os.path.realpath(path)
        if real in seen:
            raise PlacerError(f"cannot write {path} twice; give each output a file of its own")
        seen.add(real)
