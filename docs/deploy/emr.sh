#!/usr/bin/env bash
# Run games.yaml as a step of an EMR cluster (a release with Spark 4): emr.sh BUCKET CLUSTER. The step is what `router submit`
# prints, with its archives in S3. What has native code is installed on every node, by a bootstrap action of the cluster
# with the Python that is named below:
#   sudo python3.11 -m pip install 'spark-event-router[protobuf]'
set -euo pipefail
bucket=$1 cluster=$2 build=${3:-build}
mkdir -p "$build"
router submit games.yaml --master yarn --deploy-mode cluster --conf spark.pyspark.python=python3.11 \
    --conf spark.yarn.appMasterEnv.KAFKA="$KAFKA" --print --to "$build" >"$build/command.sh"
python3 - "$build" "s3://$bucket/router" <<'PYTHON'
import json
import pathlib
import shlex
import shutil
import sys

build, there = pathlib.Path(sys.argv[1]), sys.argv[2]
words = shlex.split((build / "command.sh").read_text())[1:]  # without spark-submit, which EMR calls itself
program = words[words.index("run") - 1]
shutil.copy(program, build / "__main__.py")
words[words.index("run") - 1] = f"{there}/__main__.py"
for option in ("--py-files", "--archives"):
    at = words.index(option) + 1
    words[at] = ",".join(f"{there}/" + path.rsplit("/", 1)[-1] for path in words[at].split(","))
step = {"Type": "Spark", "Name": "router-games", "ActionOnFailure": "CONTINUE", "Args": words}
(build / "steps.json").write_text(json.dumps([step], indent=1))
PYTHON
aws s3 cp --recursive "$build" "s3://$bucket/router/"
aws emr add-steps --cluster-id "$cluster" --steps "file://$build/steps.json"
