"""Files that are damaged while a run is down: which, after which step of a batch, and what must come of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Outcome = Literal["goes on", "waits", "stops", "quarantine"]
STEPS = {
    "land, first batch": "4 land, of the first batch",
    "manifest, first batch": "5 decide, of the first batch",
    "land": "4 land",
    "manifest": "5 decide",
    "commit": "6 commit, half of the tables",
    "apply": "6 commit",
    "ledger": "8 apply",
    "offsets": "9 ledger",
    "end": "the end of the batch",
    "plan": "1 read, of the next batch",
}
"""After which step the run was killed, by name; `commit` is in the middle of it."""
SPARK, STORE = "_router/games/spark", "_router/games/store"


@dataclass(frozen=True)
class Fault:
    """A damaged file, and what must come of it.

    `path` is a pattern below the lake, of which the newest file is damaged, or all with `every`. `says` is in a line of
    the log, or in the sentence that the run ends with; the file's name is, too, unless `says` is empty. `way` is what a
    person does then: puts the file back, or deletes it. `left_out` is the layer of a table that keeps the damaged file.
    """

    what: str
    path: str
    step: str
    outcome: Outcome
    says: str = ""
    way: Literal["", "put it back", "delete it", "delete it and `commits/N`"] = ""
    every: bool = False
    left_out: str = ""
    quick: bool = False
    damages: tuple[str, ...] = ("empty", "cut")

    @property
    def name(self) -> str:
        """Return a name for a test."""
        text = f"{self.what}, {self.step}, {self.way}".replace("`", "").replace("/", "-")
        return text.replace(", ", "_").replace(" ", "-").strip("_")


AGAIN = "is read again"
MENDED = "the manifest says where the batch ends"
STAGED = "is missing or truncated"
BEGINS = "where the first batch begins"
OF_LOG = "its log is"
AND_COMMIT: Literal["delete it and `commits/N`"] = "delete it and `commits/N`"
RUMMY, BRONZE = "silver/rummy/_delta_log/*.json", "bronze/events/_delta_log/*.json"
LEDGER = "ops/ledger/_delta_log/*.json"
FAULTS = (
    Fault("`offsets/N` of Spark", f"{SPARK}/offsets/*", "land, first batch", "goes on", AGAIN),
    Fault("`offsets/N` of Spark", f"{SPARK}/offsets/*", "manifest, first batch", "goes on", MENDED),
    Fault("`offsets/N` of Spark", f"{SPARK}/offsets/*", "land", "goes on", AGAIN),
    Fault("`offsets/N` of Spark", f"{SPARK}/offsets/*", "manifest", "goes on", MENDED),
    Fault("`offsets/N` of Spark", f"{SPARK}/offsets/*", "commit", "goes on", MENDED, quick=True),
    Fault("`offsets/N` of Spark", f"{SPARK}/offsets/*", "ledger", "goes on", MENDED),
    Fault("`offsets/N` of Spark", f"{SPARK}/offsets/*", "offsets", "goes on", MENDED),
    Fault("`offsets/N` of Spark", f"{SPARK}/offsets/*", "end", "goes on", MENDED),
    Fault("`offsets/N` of Spark", f"{SPARK}/offsets/*", "plan", "goes on", AGAIN),
    Fault("every `offsets/N` of Spark", f"{SPARK}/offsets/*", "plan", "goes on", MENDED, every=True),
    Fault("`commits/N` of Spark", f"{SPARK}/commits/*", "commit", "goes on", "had ended"),
    Fault("`commits/N` of Spark", f"{SPARK}/commits/*", "end", "goes on", "finds its work done"),
    Fault("every `commits/N` of Spark", f"{SPARK}/commits/*", "end", "goes on", "had ended", every=True),
    Fault("`metadata` of Spark", f"{SPARK}/metadata", "land, first batch", "goes on", "a new run begins"),
    Fault("`metadata` of Spark", f"{SPARK}/metadata", "manifest, first batch", "goes on", "say which run this is"),
    Fault("`metadata` of Spark", f"{SPARK}/metadata", "end", "goes on", "say which run this is"),
    Fault("`sources/0/0` of Spark", f"{SPARK}/sources/0/0", "land, first batch", "goes on", "from its beginning"),
    Fault(
        "`sources/0/0` of Spark",
        f"{SPARK}/sources/0/0",
        "manifest, first batch",
        "goes on",
        "where the first batch begins",
    ),
    Fault("`sources/0/0` of Spark", f"{SPARK}/sources/0/0", "end", "goes on", BEGINS),
    Fault("a checksum of Spark", f"{SPARK}/offsets/.*.crc", "commit", "goes on", "the checksum was cut off"),
    Fault("all of Spark's notes", f"{SPARK}/*/[0-9]*", "offsets", "goes on", MENDED, every=True),
    Fault("the manifest of N", f"{STORE}/manifests/*/*.json", "manifest", "goes on", "which is decided again"),
    Fault(
        "the manifest of N", f"{STORE}/manifests/*/*.json", "commit", "stops", "skip it when", "delete it", quick=True
    ),
    Fault("the manifest of N", f"{STORE}/manifests/*/*.json", "ledger", "stops", "skip it when", "delete it"),
    Fault("the manifest of N", f"{STORE}/manifests/*/*.json", "offsets", "stops", "skip it when", "delete it"),
    Fault("the manifest of N", f"{STORE}/manifests/*/*.json", "end", "goes on"),
    Fault("the mark of applied sinks", f"{STORE}/applied/*/*.json", "offsets", "stops", "or delete it", "delete it"),
    Fault("the tables of a merge", f"{STORE}/known/*.json", "end", "stops", "Restore it", "put it back"),
    Fault("the note of the query", f"{STORE}/query.json", "end", "stops", "removed sinks", "put it back"),
    Fault("a staged file of a table", "silver/rummy/part-0000000001-*.parquet", "manifest", "goes on", STAGED),
    Fault("a staged file of bronze", "bronze/events/part-0000000001-*.parquet", "manifest", "goes on", STAGED),
    Fault("a staged file of dead letters", "ops/dead_letters/part-0000000001-*.parquet", "manifest", "goes on", STAGED),
    Fault("a staged file of an outbox", "outbox/*/part-0000000001-*.parquet", "manifest", "goes on", STAGED),
    Fault(
        "a committed file of an outbox",
        "outbox/*/part-0000000001-*.parquet",
        "apply",
        "goes on",
        STAGED,
        left_out="outbox",
    ),
    Fault("the log of a table", RUMMY, "manifest", "quarantine", OF_LOG, "put it back"),
    Fault("the log of a table", RUMMY, "offsets", "quarantine", OF_LOG, "put it back"),
    Fault("the log of a table", RUMMY, "offsets", "quarantine", OF_LOG, "delete it"),
    Fault("the log of a table", RUMMY, "end", "quarantine", OF_LOG, "put it back"),
    Fault("the log of bronze", BRONZE, "manifest", "waits", OF_LOG, "put it back"),
    Fault("the log of bronze", BRONZE, "apply", "waits", OF_LOG, "delete it"),
    Fault("the log of bronze", BRONZE, "end", "waits", OF_LOG, "put it back"),
    Fault("the log of bronze", BRONZE, "end", "waits", OF_LOG, AND_COMMIT),
    Fault("the log of dead letters", "ops/dead_letters/_delta_log/*.json", "offsets", "waits", OF_LOG, "delete it"),
    Fault("the log of an outbox", "outbox/*/_delta_log/*.json", "offsets", "waits", OF_LOG, "delete it"),
    Fault("the log of the ledger", LEDGER, "apply", "waits", OF_LOG, "put it back"),
    Fault("the log of the ledger", LEDGER, "offsets", "waits", OF_LOG, "delete it"),
    Fault("the log of the ledger", LEDGER, "end", "waits", OF_LOG, AND_COMMIT),
)


@dataclass(frozen=True)
class Disk:
    """Files in which writing fails with EIO while a run goes on, and what a line of the log says: `says` and `also`."""

    group: Literal["lake", "checkpoint"]
    what: str
    path: str
    outcome: Literal["waits", "quarantine"]
    says: str
    also: str = ""


TRIES = "trying again"
DISKS = (
    Disk("lake", "a table's files", "/silver/rummy/part-", "quarantine", "silver.rummy cannot be written", "Errno 5"),
    Disk("lake", "the log of a table", "/silver/rummy/_delta_log/", "quarantine", "silver.rummy cannot", "os error 5"),
    Disk("lake", "bronze's files", "/bronze/events/part-", "waits", TRIES, "Errno 5"),
    Disk("lake", "the log of bronze", "/bronze/events/_delta_log/", "waits", TRIES, "bronze.events"),
    Disk("checkpoint", "the manifest", "/store/manifests/", "waits", TRIES, "Errno 5"),
    Disk("checkpoint", "the log of the ledger", "/ops/ledger/_delta_log/", "waits", TRIES, "ops.ledger"),
    Disk("checkpoint", "`offsets/N` of Spark", "/spark/offsets/", "waits", TRIES, "Input/output error"),
    Disk("checkpoint", "`commits/N` of Spark", "/spark/commits/", "waits", TRIES, "Input/output error"),
)
