#!/usr/bin/env bash
# Run games.yaml on Dataproc (an image with Spark 4): dataproc.sh BUCKET CLUSTER REGION. The job is what `router submit`
# prints, with its archives in the bucket. Native packages come with the cluster, which is created with
#   --properties 'dataproc:pip.packages=spark-event-router==0.1.0'
set -euo pipefail
bucket=$1 cluster=$2 region=$3 build=${4:-build}
mkdir -p "$build"
router submit games.yaml --master yarn --deploy-mode cluster --conf spark.yarn.appMasterEnv.KAFKA="$KAFKA" \
    --print --to "$build" >"$build/command.sh"
python3 - "$build" "gs://$bucket/router" "$cluster" "$region" <<'PYTHON'
import pathlib
import shlex
import shutil
import sys

build, there, cluster, region = pathlib.Path(sys.argv[1]), *sys.argv[2:]
words = shlex.split((build / "command.sh").read_text())
run = words.index("run")
shutil.copy(words[run - 1], build / "__main__.py")
after = {word: words[at + 1] for at, word in enumerate(words[:run]) if word.startswith("--")}
settings = [words[at + 1] for at, word in enumerate(words[:run]) if word == "--conf"]
settings += ["spark.submit.deployMode=cluster", f"spark.jars.packages={after['--packages']}"]
command = ["gcloud", "dataproc", "jobs", "submit", "pyspark", f"{there}/__main__.py"]
command += ["--cluster", cluster, "--region", region, "--max-failures-per-hour", "10"]
for option in ("--py-files", "--archives"):
    command += [option, ",".join(f"{there}/" + path.rsplit("/", 1)[-1] for path in after[option].split(","))]
command += ["--properties", "^|^" + "|".join(settings), "--", *words[run:]]
(build / "gcloud.sh").write_text(shlex.join(command) + "\n")
PYTHON
gcloud storage cp "$build"/*.zip "$build/__main__.py" "gs://$bucket/router/"
bash "$build/gcloud.sh"
