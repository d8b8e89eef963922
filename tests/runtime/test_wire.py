"""Messages arrive whole and in order, and a closed channel shows."""

from __future__ import annotations

import os
import socket
import struct
import threading

import pytest

from placer.runtime import wire


def test_messages_arrive_as_they_were_sent() -> None:
    a, b = socket.socketpair()
    large = os.urandom(3 << 20)
    sent = [({"n": 1, "text": "ü"}, [b"", large]), ({"n": 2}, [])]

    def send() -> None:
        for header, parts in sent:
            wire.send(a, header, *parts)
        a.close()

    thread = threading.Thread(target=send)
    thread.start()
    assert [wire.receive(b), wire.receive(b)] == [(h, p) for h, p in sent]
    with pytest.raises(EOFError):
        wire.receive(b)
    thread.join()
    b.close()


def test_a_damaged_length_allocates_nothing() -> None:
    a, b = socket.socketpair()
    a.sendall(struct.pack(">Q", 1 << 60))
    with pytest.raises(EOFError, match="damaged"):
        wire.receive(b)
    a.close()
    b.close()
