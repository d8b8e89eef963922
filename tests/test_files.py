"""Writing files that are not there yet, that are, and what is no file."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from placer.errors import PlacerError
from placer.files import check_writable, write_atomically


def test_a_file_is_replaced_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for data in (b"old", b"new"):
        check_writable(path)
        write_atomically(path, data)
        assert path.read_bytes() == data
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    target, link = tmp_path / "there" / "file", tmp_path / "link"
    target.write_bytes(b"old")
    link.symlink_to(target)
    check_writable(link)
    write_atomically(link, b"new")
    assert link.is_symlink()
    assert target.read_bytes() == b"new"


def test_what_is_no_file_is_written_to_as_it_is(tmp_path: Path) -> None:
    """A pipe stands for /dev/stdout and /dev/null: replaced by a file, it would be no more."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()), daemon=True)
    reader.start()
    check_writable(pipe)
    write_atomically(pipe, b"data")
    reader.join(10)
    assert read == [b"data"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_what_cannot_be_written_is_named(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere" / "file"):
        with pytest.raises(PlacerError, match="cannot write"):
            check_writable(path)
    with pytest.raises(PlacerError, match="cannot write"):
        write_atomically(tmp_path / "nowhere" / "file", b"")
