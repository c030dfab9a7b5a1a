"""A stand-in for nats-server that records what a client sends and gives the shortest good answers."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from libs.testbed.child_process import HANG_SECONDS
from tests.tcp_server import serve_tcp

CREATED = "2026-03-01T11:00:00Z"
_RANDOM = re.compile(r"\b[0-9a-f]{16}\b|(?<=-)[0-9a-f]{8}\b")
_NUMBER = re.compile(r"(?<=\.[rs]\.)\d+$")
_GREETING = {"server_id": "A", "version": "2.11.0", "headers": True, "max_payload": 1048576, "proto": 1}


def without_chance(subject: str) -> str:
    """The subject with words for its random and counted tokens."""
    return _NUMBER.sub("<number>", _RANDOM.sub("<random>", subject))


class NatsRecorder:
    """One server; `sent` has every distinct message, `heard` every subscription, `greetings` each CONNECT.

    `commands` has the name of each command in the order of their arrival.
    """

    def __init__(self, deliveries: list[tuple[str, bytes]]) -> None:
        """`deliveries`, subject and body, answer the first pull of a durable."""
        self.port = 0
        self.sent: dict[str, list[Any]] = {}
        self.heard: set[str] = set()
        self.greetings: list[dict[str, Any]] = []
        self.commands: list[str] = []
        self.arrived = asyncio.Event()
        self._deliveries = deliveries
        self._stream: dict[str, Any] = {}
        self._consumers: dict[str, Any] = {}
        self._sids: dict[str, str] = {}
        self._sequence = 0

    @classmethod
    @asynccontextmanager
    async def start(cls, *deliveries: tuple[str, bytes]) -> AsyncIterator["NatsRecorder"]:
        recorder = cls(list(deliveries))
        async with serve_tcp(recorder._serve) as recorder.port:
            yield recorder

    async def until(self, body: str) -> None:
        """Until a message with that body has come; ends after 20 s."""
        async with asyncio.timeout(HANG_SECONDS):
            while not any(each["body"] == body for sent in self.sent.values() for each in sent):
                self.arrived.clear()
                await self.arrived.wait()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"INFO " + msgspec.json.encode(_GREETING) + b"\r\n")
        while line := await reader.readline():
            command, *tokens = line.decode().split()
            self.commands.append(command)
            if command in {"PUB", "HPUB"}:
                data = await reader.readexactly(int(tokens[-1]) + 2)
                self._publish(command, tokens, data[:-2], writer)
            else:
                self._obey(command, tokens, line, writer)

    def _obey(self, command: str, tokens: list[str], line: bytes, writer: asyncio.StreamWriter) -> None:
        match command:
            case "CONNECT":
                said = msgspec.json.decode(line.removeprefix(b"CONNECT "))
                kept = ("name", "echo", "headers", "no_responders", "pedantic", "verbose")
                self.greetings.append({key: said.get(key) for key in kept})
            case "PING":
                writer.write(b"PONG\r\n")
            case "SUB":
                self.heard.add(without_chance(tokens[0]))
                self._sids[tokens[0]] = tokens[-1]

    def _publish(self, command: str, tokens: list[str], data: bytes, writer: asyncio.StreamWriter) -> None:
        size = int(tokens[-2]) if command == "HPUB" else 0
        named = tokens[1:-2] if command == "HPUB" else tokens[1:-1]
        subject, reply = tokens[0], named[0] if named else ""
        sent = {
            "reply to": without_chance(reply),
            "headers": [line for line in data[:size].decode().split("\r\n") if line],
            "body": without_chance(data[size:].decode()),
        }
        known = self.sent.setdefault(without_chance(subject), [])
        if sent not in known:
            known.append(sent)
        self.arrived.set()
        if not reply:
            return
        if ".CONSUMER.MSG.NEXT." in subject:
            self._deliver(subject, self._sids[reply], writer)
        elif ".DIRECT.GET." in subject:
            self._say(writer, reply, b"", header=b"NATS/1.0 404 Message Not Found\r\n\r\n")
        else:
            self._say(writer, reply, msgspec.json.encode(self._answer(subject, data[size:])))

    def _answer(self, subject: str, body: bytes) -> Any:
        name = subject.split(".")[5] if ".CONSUMER." in subject else ""
        if ".STREAM.CREATE." in subject or ".STREAM.UPDATE." in subject:
            self._stream = msgspec.json.decode(body)
        if ".CONSUMER.CREATE." in subject:
            self._consumers[name] = msgspec.json.decode(body)["config"]
        if ".CONSUMER.DELETE." in subject:
            return {"success": True}
        if ".CONSUMER." in subject:
            missing = {"error": {"code": 404, "err_code": 10014, "description": "consumer not found"}}
            return {"name": name, "config": self._consumers[name]} if name in self._consumers else missing
        if ".STREAM." in subject and not self._stream:
            return {"error": {"code": 404, "err_code": 10059, "description": "stream not found"}}
        if ".STREAM." in subject:
            return {"config": self._stream, "created": CREATED, "state": {"last_seq": 7}}
        self._sequence += 1
        return {"stream": "any", "seq": self._sequence}

    def _deliver(self, subject: str, sid: str, writer: asyncio.StreamWriter) -> None:
        consumer = subject.rpartition(".")[2]
        if "durable_name" not in self._consumers[consumer]:
            return
        for number, (where, body) in enumerate(self._deliveries, 1):
            reply = f"$JS.ACK.TALOSCCM.{consumer}.1.{number}.{number}.1767225600000000000.0"
            writer.write(f"MSG {where} {sid} {reply} {len(body)}\r\n".encode() + body + b"\r\n")
        self._deliveries = []

    def _say(self, writer: asyncio.StreamWriter, reply: str, body: bytes, *, header: bytes = b"") -> None:
        sid = self._sids[f"{reply.rpartition('.')[0]}.*"]
        sizes = f"{len(header)} {len(header) + len(body)}" if header else f"{len(body)}"
        command = "HMSG" if header else "MSG"
        writer.write(f"{command} {reply} {sid} {sizes}\r\n".encode() + header + body + b"\r\n")
