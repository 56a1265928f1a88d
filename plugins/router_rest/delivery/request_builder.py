"""Make requests of calls. Runs on executors.

`requests` prepares one request for each URL; those of calls are copies of it, which is a tenth of the work.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from requests import PreparedRequest, Request
from requests.structures import CaseInsensitiveDict

if TYPE_CHECKING:
    from collections.abc import Mapping

    from router_rest.delivery.body import Body


class Headers(CaseInsensitiveDict[Any]):
    """The headers of a request, copied and listed as a whole: `requests` does either name by name."""

    _store: OrderedDict[str, tuple[str, Any]]
    """Of CaseInsensitiveDict: names and values by names in lower case."""

    @classmethod
    def of(cls, other: Any) -> Headers:
        """Return a copy of headers of this class, or of that of `requests`."""
        made = cls.__new__(cls)
        made._store = OrderedDict(other._store)
        return made

    def items(self) -> Any:
        """Return pairs of names and values."""
        return self._store.values()


MOST_KEPT = 1024
"""Requests that are kept prepared: URLs may be made of data, and be as many as rows."""


@dataclass(frozen=True)
class RequestForm:
    """What all requests of a sink have in common; travels to tasks.

    `url`: empty where rows name theirs. `key_header` carries the idempotency key, where there is one.
    """

    method: str
    url: str
    headers: Mapping[str, str]
    body: Body
    key_header: str | None = None


@dataclass
class RequestBuilder:
    """A builder of requests, all but their login."""

    form: RequestForm
    _prepared: OrderedDict[str, PreparedRequest] = field(default_factory=OrderedDict)

    def request(self, url: str, body: bytes, key: str) -> PreparedRequest:
        """Return the request of a call. Raises ValueError for a URL that is none."""
        base = self._base(url or self.form.url)
        request = PreparedRequest()
        request.method, request.url = base.method, base.url
        request.headers = Headers.of(base.headers)
        request.hooks = {"response": []}
        request.body = self.form.body.packed(body)
        request.headers["Content-Length"] = str(len(request.body))
        if self.form.key_header is not None:
            request.headers[self.form.key_header] = quoted(key)
        return request

    def _base(self, url: str) -> PreparedRequest:
        found = self._prepared.get(url)
        if found is None:
            if len(self._prepared) >= MOST_KEPT:
                self._prepared.popitem(last=False)
            headers = {**self.form.body.headers, **self.form.headers}
            found = self._prepared[url] = Request(self.form.method, url, headers=headers).prepare()
            found.headers = Headers.of(found.headers)
        return found


def quoted(key: str) -> str:
    """Return an idempotency key as its header has it: a string (draft-ietf-httpapi-idempotency-key-header-07, 2.1)."""
    return f'"{key}"'
