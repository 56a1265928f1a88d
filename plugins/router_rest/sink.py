"""The sink `rest`: the part that people configure, and the hooks by which the router calls it."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from router import ApiState, Batch, Opening, Outcome, Resent, Server, StartError
from router_rest.options import RestOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from pyspark.sql import DataFrame
    from typing_extensions import Self

log = logging.getLogger("router")


class Rest(RestOptions):
    """Post events to an HTTP API, as fast as it allows and no faster.

    `url: https://api.test/players/{event.user}/wins` has fields in braces; a value stays one segment of the path, or
    one value of the query, whatever it holds. A row whose value is null, or would make an empty segment, `.` or `..`,
    is a dead letter. SQL and fields see the route's columns, also as `event.NAME`, and of the record `_topic`,
    `_partition`, `_offset`, `_timestamp` and `_key`. URLs are logged: secrets belong into `auth` and `headers`.

    The body is a JSON object of the route's columns, or an array of such objects with `rows_per_call`; `body` and
    `value` change that. Calls are cut from neighbouring offsets of one partition with the same URL.

    `calls_per_second`, `rows_per_second` and `limits` hold for all tasks of a job together, and for everything with
    the same `limit_name`. What the API refuses for good is a dead letter; what it cannot take now is tried again.

    Delivery: at least once; once in effect if the API honours the idempotency key. Every row has a receipt.
    """

    previews: ClassVar[bool] = True
    needs: ClassVar[tuple[str, ...]] = ("router_rest.delivery.worker", "router_rest.logins.credentials")
    resends: ClassVar[bool] = True

    def talks_to(self, folder: Path) -> Iterable[Server]:
        """Yield the hosts of the API, without a path: nothing is done by asking them."""
        verify = self.tls.resolve_paths(folder).verify
        origins = [f"{self.template.scheme}://{host}" for host in self.hosts] or [self.template.origin]
        for origin in origins:
            yield Server("API", origin, verify)

    @property
    def seconds_between(self) -> float:
        """Return how long rows are collected before they are sent."""
        return self.linger or 0.0

    @property
    def tasks_at_most(self) -> int:
        """Return how many tasks send at once."""
        from router_rest.delivery.send_plan import tasks_of

        return tasks_of(self)

    @property
    def receipts_table(self) -> str:
        """Return the table of the receipts."""
        return self.receipts

    def api_state(self) -> ApiState | None:
        """Return whether the circuit is open, and how much of the rate limit is used."""
        from router_rest.limits.lease_server import api_state

        state = api_state(self.limit)
        # A query may have a key; a login is refused in a URL.
        return state and replace(state, url=self.url.partition("?")[0])

    def prepare(self, opening: Opening) -> Self:
        """Return this sink with its columns, files and login checked. May ask a token server or schema registry."""
        from router_rest.batch import check_spark
        from router_rest.logins.credentials import make_login

        # What would fail in tasks, in each batch again, fails here: Spark's settings, files, columns and the login.
        check_spark(opening.events.sparkSession)
        tls_options = [self.tls]
        if self.auth is not None and self.auth.oauth is not None:
            tls_options.append(self.auth.oauth.tls)
        for tls in tls_options:
            missing = tls.resolve_paths(opening.folder).missing_file
            if missing is not None:
                raise StartError(f"tls: {missing}")
        prepared = self.check_columns(opening)
        try:
            # A login that cannot work fails here, and not in each task.
            make_login(prepared.open_credentials(prepared.folder).current_credentials())
        except ConnectionError as error:
            if not opening.trial:
                raise
            log.warning("rest %s: no token yet: %s", prepared.limit, error)
        return prepared

    def preview(self, events: DataFrame, opening: Opening) -> list[dict[str, Any]]:
        """Return the calls: `method`, `url`, `headers` that say what the body is, `body`, and the number of `rows`.

        With an answer also the `outcome`, in the words of `answers`, and the `reason`; of rows that differ as a list.
        """
        from router_rest.batch import preview_calls

        return list(preview_calls(self.check_columns(opening), events, opening.answer))

    def apply(self, events: DataFrame, batch: Batch) -> Outcome:
        """Send the rows of one batch, for as long as it takes; raise ConnectionError when it is stopped before."""
        from router_rest.batch import send_batch

        return send_batch(self, events, batch)

    def set_aside(self, batch: Batch, read: Callable[[str], DataFrame | None]) -> DataFrame | None:
        """Return the rows that are parked or dead by their last receipt, and have none that says delivered."""
        from router_rest.batch import set_aside

        receipts = read(self.receipts)
        if receipts is None:
            return None
        return set_aside(receipts, batch.query, batch.route, batch.sink)

    def resend(self, events: DataFrame, aside: DataFrame, batch: Batch) -> Resent:
        """Send rows again, those of one call as the same call; ends early when stopped or a setting is wrong."""
        from router_rest.batch import resend_rows

        return resend_rows(self, events, aside, batch)
