"""Messages between the runner and its child processes: a JSON header and binary parts.

No pickle: nothing that is received can execute code. On the wire a message is its header's
length (8 bytes, big endian), the header in JSON, and the parts, whose lengths the header holds.
"""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

_LENGTH = struct.Struct(">Q")
_PARTS = "_parts"
# A damaged length must not be taken for a request to allocate terabytes.
MAX_BYTES = 1 << 36


def send(channel: socket.socket, header: dict[str, Any], *parts: bytes) -> None:
    """Sends one message; OSError if the other side is gone."""
    text = json.dumps({**header, _PARTS: [len(p) for p in parts]}).encode()
    channel.sendall(_LENGTH.pack(len(text)) + text)
    for part in parts:
        channel.sendall(part)


def receive(channel: socket.socket) -> tuple[dict[str, Any], list[bytes]]:
    """Waits for one message.

    Returns:
      The header and the parts.

    Raises:
      EOFError: if the other side closed the channel.
    """
    header = json.loads(_read(channel, _LENGTH.unpack(_read(channel, _LENGTH.size))[0]))
    parts = [bytes(_read(channel, length)) for length in header.pop(_PARTS)]
    return header, parts


def _read(channel: socket.socket, length: int) -> bytearray:
    if not 0 <= length <= MAX_BYTES:
        raise EOFError("damaged message")
    data = bytearray(length)
    view = memoryview(data)
    done = 0
    while done < length:
        try:
            count = channel.recv_into(view[done:], min(length - done, 1 << 20))
        except ConnectionError:
            count = 0
        if count == 0:
            raise EOFError("the other side closed the channel")
        done += count
    return data
