"""Installing the plugin where TensorFlow looks for plugins when it is imported."""

from __future__ import annotations

import dataclasses
import importlib.util
from pathlib import Path

from placer.errors import PlacerError
from placer.files import write_atomically
from placer.plugin.library import FILE_NAME, library_path, open_library

# tensorflow/__init__.py loads every shared object of this folder beside the packages.
_FOLDER = "tensorflow-plugins"


@dataclasses.dataclass(frozen=True)
class Status:
    """Where the plugin is.

    Attributes:
      built: the library of this installation of Placer, None if it is not built.
      installed: the copy that TensorFlow loads by itself, None if there is none.
      current: whether that copy is the same as the one built.
    """

    built: Path | None
    installed: Path | None
    current: bool

    def __str__(self) -> str:
        built = str(self.built) if self.built else "not built"
        if self.installed is None:
            installed = "not installed; placer.plugin.load() loads it"
        elif self.current:
            installed = f"{self.installed}, loaded whenever TensorFlow is imported"
        else:
            installed = f"{self.installed}, of another build: run `placer plugin install`"
        return f"library:   {built}\ninstalled: {installed}"


def plugin_folder() -> Path:
    """The folder that TensorFlow of this Python loads plugins from; it need not exist."""
    spec = importlib.util.find_spec("tensorflow")
    if spec is None or spec.origin is None:
        raise PlacerError("TensorFlow is not installed in this Python environment")
    packages = Path(spec.origin).resolve().parent.parent
    if packages.name not in ("site-packages", "dist-packages"):
        raise PlacerError(
            f"TensorFlow in {packages} is not installed in a site-packages folder, so it looks for "
            "no plugins; call placer.plugin.load() instead"
        )
    return packages / _FOLDER


def status(folder: Path | None = None) -> Status:
    """Whether the library is built and installed.

    Args:
      folder: instead of the folder that TensorFlow looks in.
    """
    try:
        built: Path | None = library_path()
    except PlacerError:
        built = None
    copy = (folder or plugin_folder()) / FILE_NAME
    installed = copy if copy.is_file() else None
    current = bool(built and installed and built.read_bytes() == installed.read_bytes())
    return Status(built, installed, current)


def install(folder: Path | None = None) -> Path:
    """Copies the library to where TensorFlow loads plugins from, and returns the copy's path.

    Every program of this Python environment then has the plugin, idle until something is
    activated.

    Args:
      folder: instead of the folder that TensorFlow looks in.

    Raises:
      PlacerError: if the library is not built, or the folder cannot be written.
    """
    source = library_path()
    open_library(source)
    folder = folder or plugin_folder()
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise PlacerError(f"cannot create {folder}: {error.strerror}") from None
    # A rename, so that a process which has the old copy mapped keeps it.
    write_atomically(folder / FILE_NAME, source.read_bytes())
    return folder / FILE_NAME


def remove(folder: Path | None = None) -> bool:
    """Removes the installed copy; False if there was none.

    Args:
      folder: instead of the folder that TensorFlow looks in.

    Raises:
      PlacerError: if it cannot be removed.
    """
    folder = folder or plugin_folder()
    copy = folder / FILE_NAME
    if not copy.exists():
        return False
    try:
        copy.unlink()
        if not any(folder.iterdir()):
            folder.rmdir()
    except OSError as error:
        raise PlacerError(f"cannot remove {copy}: {error.strerror}") from None
    return True
