"""A sink with a query of its own, as a plugin file: it appends to a file, unless somebody says otherwise."""

from __future__ import annotations

import json
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from router import ApplyingSink, Batch, Opening, Outcome, Sink, StartError, hookimpl


class Pigeons(ApplyingSink):
    """Append `[n, batch, replay]` to the file `flown` of a folder.

    While there is a file `storm`, they do not fly; with a file `closed` they never will. A file `night` keeps them from
    getting ready, as one `moved` does until a person has done something.
    """

    main_option = "loft"
    loft: str

    @property
    def detached(self) -> bool:
        return True

    def prepare(self, opening: Opening) -> Pigeons:
        if (Path(self.loft) / "night").exists():
            raise ConnectionError("it is night")
        if (Path(self.loft) / "moved").exists():
            raise StartError("the loft has moved")
        return self

    def apply(self, events: DataFrame, batch: Batch) -> Outcome:
        loft = Path(self.loft)
        if (loft / "storm").exists():
            with (loft / "waited").open("a") as waited:
                waited.write("x")
            raise ConnectionError("there is a storm")
        if (loft / "closed").exists():
            raise ValueError(f"{loft.name} is closed")
        refused = F.col("n") < 0
        rows = [row["n"] for row in events.filter(~refused).collect()]
        with (loft / "flown").open("a") as flown:
            flown.writelines(json.dumps([n, batch.id, batch.replay]) + "\n" for n in rows)
        return Outcome(len(rows), events.filter(refused).withColumn("reason", F.lit("pigeons cannot swim")))


@hookimpl
def router_sinks() -> dict[str, type[Sink]]:
    return {"pigeons": Pigeons}
