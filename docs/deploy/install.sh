#!/usr/bin/env bash
# Install the router with Spark and its jars into $ROUTER_HOME (default /opt/router): what a machine of a cluster needs.
#   install.sh                 all steps, from the checkout that this script is in
#   install.sh packages FOLDER a virtual environment with the router of a checkout or a wheel
#   install.sh jars            Delta, Kafka and Avro connectors beside Spark's own jars, so that nothing is fetched at a start
#   install.sh check           a run of a small configuration with what is installed
# Needs Python 3.10 to 3.13 and Java 17 or 21. Safe to repeat.
set -euo pipefail
home=${ROUTER_HOME:-/opt/router}
source=$(cd "$(dirname "$0")/../.." && pwd)
bin=$home/venv/bin

packages() { # packages FOLDER_OR_WHEEL
    mkdir -p "$home/work"
    [ -x "$bin/python" ] || "${PYTHON:-python3}" -m venv "$home/venv"
    "$bin/pip" install --quiet --disable-pip-version-check -c "$source/constraints.txt" "$1[protobuf]"
    ln -sfn "$("$bin/python" -c 'import pathlib, pyspark; print(pathlib.Path(pyspark.__file__).parent)')" "$home/spark"
    cp "$("$bin/python" -c 'import pathlib, router; print(pathlib.Path(router.__file__).with_name("__main__.py"))')" "$home/__main__.py"
}

jars() {
    local work
    work=$(mktemp -d)
    (cd "$work" && HOME=$work "$bin/python" - "$home/spark/jars" <<'PYTHON'
import pathlib
import shutil
import sys
import urllib.parse

from pyspark.sql import SparkSession

from router.engine.spark.session import all_packages

builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = builder.config("spark.jars.packages", ",".join(all_packages())).getOrCreate()
for uri in spark.conf.get("spark.jars").split(","):
    jar = pathlib.Path(urllib.parse.urlparse(uri).path)
    shutil.copy(jar, sys.argv[1])
    print(jar.name)
spark.stop()
PYTHON
    )
    rm -rf "$work"
}

check() {
    local work
    work=$(mktemp -d)
    mkdir "$work/in"
    printf '{"game": "uno", "amount": 1}\n{"game": "chess", "amount": 2}\nno json\n' >"$work/in/events.jsonl"
    cat >"$work/check.yaml" <<YAML
name: check
lake: $work/lake
source: {files: {path: "$work/in"}}
decode: {json: "game string, amount double"}
routes:
  - {name: games, match: {sql: "event.game IS NOT NULL"}, sinks: [{tables: "silver.{event.game}"}]}
dead_letters: ops.dead_letters
YAML
    (cd "$work" && SPARK_HOME=$home/spark PYSPARK_PYTHON=$bin/python "$home/spark/bin/spark-submit" \
        --master 'local[2]' --conf spark.ui.enabled=false --conf "spark.pyspark.driver.python=$bin/python" \
        "$home/__main__.py" run check.yaml --once)
    "$bin/router" ledger "$work/check.yaml"
    ls "$work/lake/silver"
    rm -rf "$work"
}

case ${1:-all} in
packages) packages "${2:-$source}" ;;
jars) jars ;;
check) check ;;
all) packages "$source" && jars && check ;;
*) sed -n '2,8p' "$0" && exit 2 ;;
esac
