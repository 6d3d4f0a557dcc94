"""A client of the Debug Adapter Protocol, as an editor is one: attach, read stacks and variables, let go."""

from __future__ import annotations

import itertools
import json
import socket
from types import TracebackType
from typing import Any


class Debugger:
    """Attached to ``address`` ("HOST:PORT"); every read ends after ``timeout_s``. Leaving it lets the program go on."""

    def __init__(self, address: str, timeout_s: float = 30):
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout_s)
        self._stream = self._socket.makefile("rb")
        self._numbers = itertools.count(1)
        self._events: list[dict[str, Any]] = []
        self.ask("initialize", adapterID="python", clientID="test", linesStartAt1=True, pathFormat="path")
        attached = self._send("attach", justMyCode=False)  # answered only when the configuration is done
        self.event("initialized")
        self.ask("setExceptionBreakpoints", filters=["uncaught"])
        self.ask("configurationDone")
        self._answer(attached)

    def stopped(self) -> tuple[str, list[dict[str, Any]]]:
        """Why the program stands still, and the frames of that thread, the innermost first."""
        body = self.event("stopped")
        return body["reason"], self.ask("stackTrace", threadId=body["threadId"])["stackFrames"]

    def value(self, frame: dict[str, Any], expression: str) -> str:
        return self.ask("evaluate", expression=expression, frameId=frame["id"], context="repl")["result"]

    def ask(self, command: str, **arguments: Any) -> dict[str, Any]:
        return self._answer(self._send(command, **arguments))

    def event(self, name: str) -> dict[str, Any]:
        while True:
            for place, event in enumerate(self._events):
                if event["event"] == name:
                    return self._events.pop(place).get("body") or {}
            self._keep(self._read())

    def __enter__(self) -> Debugger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.ask("disconnect", terminateDebuggee=False)
        self._socket.close()

    def _send(self, command: str, **arguments: Any) -> int:
        number = next(self._numbers)
        message = {"seq": number, "type": "request", "command": command, "arguments": arguments}
        body = json.dumps(message).encode()
        self._socket.sendall(b"Content-Length: %d\r\n\r\n" % len(body) + body)
        return number

    def _answer(self, number: int) -> dict[str, Any]:
        while True:
            message = self._read()
            if message["type"] == "response" and message["request_seq"] == number:
                assert message["success"], message
                return message.get("body") or {}
            self._keep(message)

    def _keep(self, message: dict[str, Any]) -> None:
        if message["type"] == "event":
            self._events.append(message)

    def _read(self) -> dict[str, Any]:
        length = 0
        while (line := self._stream.readline()).strip():
            if line.lower().startswith(b"content-length:"):
                length = int(line.split(b":")[1])
        assert length, "the program closed the connection"
        return json.loads(self._stream.read(length))
