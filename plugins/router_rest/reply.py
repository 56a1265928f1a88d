"""Read one answer from the bytes of a connection."""

from __future__ import annotations

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from router_rest.answer import Answer, Headers, InDoubt, decoded

MOST_HEAD = 64 << 10
"""Bytes of a head, with the interim ones before it, and of what surrounds a body."""
OF_ONE = 6
"""Bytes that carry one byte of a body, when a server makes a chunk of each."""


class Reply:
    """Collect the answers of one connection as they arrive, one at a time, at most `most` bytes of a body.

    The parser calls the methods `on_...`.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._parser: HttpResponseParser | None = None
        self.begin(bodiless=False)

    def begin(self, *, bodiless: bool) -> None:
        """Begin with the next answer. bodiless: it has no body, whatever its head says."""
        self.begun = False
        """Whether anything of it came."""
        self.head = False
        """Whether its status and headers are there."""
        self.done = False
        self.full = False
        """Whether it is longer than anybody wants to read."""
        self.keeps = False
        """Whether the connection is of further use when it is done."""
        self._bodiless = bodiless
        self._status = 0
        self._headers: dict[str, str] = {}
        self._parts: list[bytes] = []
        self._size = 0
        self._room = MOST_HEAD
        if self._parser is None:
            self._parser = HttpResponseParser(self)

    def end(self) -> None:
        """Let go of the parser, which refers to this object."""
        self._parser = None

    def feed(self, data: bytes) -> None:
        """Take bytes. Raises InDoubt when they are no answer."""
        if self._parser is None:
            return
        self.begun = True
        self._room -= len(data)
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade):
            self.keeps = False
            if not self.done:
                raise InDoubt("the answer is broken: it is not HTTP/1") from None
        if self._room < 0 and not self.done:
            if not self.head:
                raise InDoubt(f"the answer is broken: its head does not end within {MOST_HEAD} bytes")
            self.full = True
        if self._bodiless and self.done:
            self._parser = None  # it still waits for the body

    @property
    def ends_by_closing(self) -> bool:
        """Say whether the end of the connection is the end of the body (RFC 9112, 6.3)."""
        if not self.head or self.done:
            return False
        coding = self._headers.get("transfer-encoding", "").lower()
        return "content-length" not in self._headers and "chunked" not in coding

    def answer(self, seconds: float) -> Answer:
        """Return what there is."""
        body, whole = b"".join(self._parts)[: self._most], self.done and not self.full
        if "content-encoding" in self._headers:
            body, all_of_it = decoded(body, self._headers["content-encoding"], self._most)
            whole = whole and all_of_it
        return Answer(self._status, Headers(self._headers), body, seconds, whole)

    def on_message_begin(self) -> None:
        # whatever comes after an answer was not asked for, and must not pass for the next one
        self.keeps = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.head:  # not a trailer
            key, text = name.decode("latin-1").lower(), value.decode("latin-1")
            self._headers[key] = f"{self._headers[key]}, {text}" if key in self._headers else text

    def on_headers_complete(self) -> None:
        if self.done or self._parser is None:
            return
        self._status = self._parser.get_status_code()
        if self._status < 200:
            return
        self.head = True
        self._room = MOST_HEAD + OF_ONE * self._most
        if self._bodiless:
            self.done, self.keeps = True, self._parser.should_keep_alive()

    def on_body(self, body: bytes) -> None:
        if self.done:
            self.keeps = False
        elif not self.full:
            self._parts.append(body)
            self._size += len(body)
            self.full = self._size > self._most

    def on_message_complete(self) -> None:
        if not self.head:
            self._headers.clear()  # 100 Continue, 103 Early Hints: the answer is still to come
        elif not self.done and self._parser is not None:
            self.done, self.keeps = True, self._parser.should_keep_alive()
