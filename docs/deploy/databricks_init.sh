#!/usr/bin/env bash
# Install the router on each machine of a Databricks cluster, next to the Spark and the Delta of the runtime: pip would put
# others in front of them.
set -euo pipefail
bin=${DATABRICKS_PYTHON:-/databricks/python}/bin
"$bin/pip" install --quiet --no-deps "${ROUTER:-spark-event-router==0.1.0}"
"$bin/python" -c '
import importlib.metadata, re
for needed in importlib.metadata.requires("spark-event-router"):
    if "extra ==" not in needed and re.match(r"[\w-]+", needed)[0] not in ("pyspark", "delta-spark"):
        print(needed)
' | xargs -d '\n' "$bin/pip" install --quiet
