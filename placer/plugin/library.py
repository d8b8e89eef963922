"""The native library: finding it, loading it into TensorFlow once, calling its functions."""

from __future__ import annotations

import ctypes
import os
import threading
from pathlib import Path

from placer.errors import PlacerError

FILE_NAME = "libplacer_plugin.so"
# placer_plugin_version() in placer/native/plugin/plugin.cc.
VERSION = 2

_lock = threading.Lock()
_library: ctypes.CDLL | None = None


def library_path() -> Path:
    """Where the library of this installation of Placer is.

    Raises:
      PlacerError: if it has not been built.
    """
    path = Path(__file__).with_name(FILE_NAME)
    if not path.is_file():
        raise PlacerError(
            f"{path} is missing; build it with `pip install .` or `setup.py build_ext`"
        )
    return path


def mapped_path() -> Path | None:
    """The file that this process has mapped as the plugin, None if there is none.

    TensorFlow itself loads an installed copy (`placer plugin install`) when it is imported.
    """
    with open("/proc/self/maps") as maps:
        for line in maps:
            path = line.rstrip("\n").partition("/")[2]
            if os.path.basename(path.removesuffix(" (deleted)")) == FILE_NAME:
                return Path("/" + path)
    return None


def open_library(path: Path) -> ctypes.CDLL:
    """Opens the library without telling TensorFlow of it.

    Raises:
      PlacerError: if it is no plugin of this version of Placer.
    """
    try:
        library = ctypes.CDLL(str(path))
        library.placer_plugin_version.restype = ctypes.c_int32
        version = library.placer_plugin_version()
    except (OSError, AttributeError) as error:
        raise PlacerError(f"{path} is not Placer's plugin: {error}") from None
    if version != VERSION:
        raise PlacerError(
            f"{path} is a plugin of interface {version}, this Placer needs {VERSION}; "
            "run `placer plugin install` again"
        )
    c_size = ctypes.c_size_t
    library.placer_plugin_registered.restype = ctypes.c_int32
    library.placer_plugin_activate.restype = ctypes.c_int64
    library.placer_plugin_activate.argtypes = [
        ctypes.c_char_p,
        c_size,
        ctypes.c_char_p,
        c_size,
    ]
    library.placer_plugin_deactivate.restype = ctypes.c_int32
    library.placer_plugin_deactivate.argtypes = [ctypes.c_int64]
    library.placer_plugin_activate_heuristic.restype = ctypes.c_int64
    library.placer_plugin_activate_heuristic.argtypes = [ctypes.c_double]
    library.placer_plugin_report.restype = c_size
    library.placer_plugin_report.argtypes = [ctypes.c_char_p, c_size]
    library.placer_plugin_reset_report.restype = None
    library.placer_plugin_rewrite.restype = ctypes.c_int64
    library.placer_plugin_rewrite.argtypes = [
        ctypes.c_char_p,
        c_size,
        ctypes.c_char_p,
        ctypes.POINTER(ctypes.c_void_p),
        ctypes.POINTER(c_size),
    ]
    library.placer_plugin_free.restype = None
    library.placer_plugin_free.argtypes = [ctypes.c_void_p]
    return library


def load() -> None:
    """Loads the plugin into TensorFlow; does nothing if it is loaded already.

    From then on TensorFlow hands every graph that it optimizes in this process to the plugin,
    which leaves them alone until something is activated. It cannot be unloaded.

    Raises:
      PlacerError: if the library is missing, of another version, or refused by TensorFlow.
    """
    get()


def get() -> ctypes.CDLL:
    """The loaded library; loads it first if need be. Raises as `load` does."""
    global _library
    with _lock:
        if _library is None:
            _library = _load()
        return _library


def loaded() -> bool:
    """Whether TensorFlow has the plugin in this process."""
    with _lock:
        if _library is not None:
            return True
    path = mapped_path()
    return path is not None and bool(ctypes.CDLL(str(path)).placer_plugin_registered())


def _load() -> ctypes.CDLL:
    # The import itself may load an installed copy.
    from tensorflow.python.client import pywrap_tf_session

    path = mapped_path() or library_path()
    library = open_library(path)
    if not library.placer_plugin_registered():
        try:
            # What tf.load_pluggable_device_library calls, without listing devices anew: the
            # plugin brings none.
            pywrap_tf_session.TF_LoadPluggableDeviceLibrary(str(path))
        except Exception as error:
            raise PlacerError(f"TensorFlow refused {path}: {error}") from None
    return library
