"""A connection between a node and the head: lines of JSON, after both have shown that they know the job's token.

The token itself never travels. What does (addresses, versions, progress) is no secret.
"""

from __future__ import annotations

import json
import secrets
import socket
import threading
from typing import Any

from laurel.launch.cluster.secret import proof

ALIVE_EVERY_S = 2.0
SILENT_AFTER_S = 20.0
_GREETING = "laurel-cluster-1"
_LONGEST = 1 << 16
_GREETING_S = 5.0


class Stranger(Exception):
    """What answered is not the head of this job: another program, or a job with another token."""


class Closed(Exception):
    """The other side ended the connection, or was silent for too long."""


class Wire:
    """One connection; ``send`` may be called from several threads, ``receive`` from one.

    Raises OSError if the other side is gone already. The addresses are kept, since a broken socket has none.
    """

    def __init__(self, connection: socket.socket):
        self.own_address, self.other_address = connection.getsockname()[0], connection.getpeername()[0]
        self._socket = connection
        self._rest = b""
        self._sending = threading.Lock()

    def send(self, **words: Any) -> None:
        """Raises Closed if the other side is gone."""
        try:
            with self._sending:
                self._socket.sendall(json.dumps(words).encode() + b"\n")
        except OSError as error:
            raise Closed(str(error)) from error

    def receive(self, timeout_s: float = SILENT_AFTER_S) -> dict[str, Any]:
        """The next message. Raises Closed at the end of the connection, or if nothing comes for ``timeout_s``."""
        self._socket.settimeout(timeout_s)
        while b"\n" not in self._rest:
            try:
                more = self._socket.recv(4096)
            except TimeoutError as error:
                raise Closed(f"no word for {timeout_s:.0f} s") from error
            except OSError as error:
                raise Closed(str(error)) from error
            if not more:
                raise Closed("the connection was closed")
            self._rest += more
            if len(self._rest) > _LONGEST:
                raise Closed("it speaks something else")
        line, _, self._rest = self._rest.partition(b"\n")
        try:
            words = json.loads(line)
        except ValueError as error:
            raise Closed("it speaks something else") from error
        if not isinstance(words, dict):
            raise Closed("it speaks something else")
        return words

    def close(self) -> None:
        self._socket.close()


def call(address: str, port: int, token: str, *, timeout_s: float = _GREETING_S) -> Wire:
    """Connect to the head as a node. Raises OSError if nobody listens, Stranger if it is not this job's head."""
    wire = Wire(socket.create_connection((address, port), timeout=timeout_s))
    try:
        greeting = wire.receive(timeout_s)
        if greeting.get("greeting") != _GREETING:
            raise Stranger("another program")
        mine = secrets.token_hex(16)
        theirs = str(greeting.get("nonce"))
        wire.send(nonce=mine, proof=proof(token, "node", theirs, mine))
        if wire.receive(timeout_s).get("proof") != proof(token, "head", theirs, mine):
            raise Stranger("a Laurel job with another token")
    except Closed as closed:
        wire.close()
        raise Stranger("another program, or a Laurel job with another token") from closed
    except BaseException:
        wire.close()
        raise
    return wire


def greet(connection: socket.socket, token: str) -> Wire:
    """Answer a caller as the head. Raises Stranger if it does not know the token, and closes the connection."""
    try:
        wire = Wire(connection)
        mine = secrets.token_hex(16)
        wire.send(greeting=_GREETING, nonce=mine)
        answer = wire.receive(_GREETING_S)
        theirs = str(answer.get("nonce"))
        if not secrets.compare_digest(str(answer.get("proof")), proof(token, "node", mine, theirs)):
            raise Stranger(f"{wire.other_address} called with another token")
        wire.send(proof=proof(token, "head", mine, theirs))
    except (Closed, OSError) as error:
        connection.close()
        raise Stranger(str(error)) from error
    except BaseException:
        connection.close()
        raise
    return wire
