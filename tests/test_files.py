"""Writing files that are not there yet, that are, and what is no file."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from placer.errors import PlacerError
from placer.files import check_directory, check_distinct, check_writable, write_atomically


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


@pytest.mark.parametrize("name", ["a" * 255, "é" * 127])
def test_the_longest_names_are_written(name: str, tmp_path: Path) -> None:
    check_writable(tmp_path / name)
    write_atomically(tmp_path / name, b"data")
    assert [p.name for p in tmp_path.iterdir()] == [name]


def test_longer_names_are_refused(tmp_path: Path) -> None:
    for check in (check_writable, check_directory):
        with pytest.raises(PlacerError, match="too long"):
            check(tmp_path / ("a" * 256))


def test_what_may_not_be_looked_into_is_refused(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0)
    user = os.geteuid()
    try:
        if user == 0:
            # Root may look into anything.
            os.seteuid(65534)
        for check in (check_writable, check_directory):
            with pytest.raises(PlacerError, match=r"cannot write.*[Pp]ermission denied"):
                check(closed / "nested" / "file")
    finally:
        os.seteuid(user)


def test_one_file_for_two_outputs_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "file")
    check_distinct([tmp_path / "file", tmp_path / "other", os.devnull, os.devnull])
    for again in (tmp_path / "file", tmp_path / "link", tmp_path / "there" / ".." / "file"):
        with pytest.raises(PlacerError, match="twice"):
            check_distinct([tmp_path / "file", tmp_path / "other", again])


def test_what_cannot_be_written_is_named(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere" / "file"):
        with pytest.raises(PlacerError, match="cannot write"):
            check_writable(path)
    with pytest.raises(PlacerError, match="cannot write"):
        write_atomically(tmp_path / "nowhere" / "file", b"")


def test_a_pipe_by_the_number_of_its_descriptor(tmp_path: Path) -> None:
    """As in `--output /dev/stdout | gzip`: where the link leads is no path."""
    read, write = os.pipe()
    try:
        path = f"/dev/fd/{write}"
        check_writable(path)
        check_distinct([path, path])
        write_atomically(path, b"data")
        assert os.read(read, 100) == b"data"
    finally:
        os.close(read)
        os.close(write)


def test_a_file_that_is_replaced_keeps_its_permissions(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    path.chmod(0o600)
    write_atomically(path, b"new")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
