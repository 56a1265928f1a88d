#!/usr/bin/env bash
# Install the router with Spark and its jars into $ROUTER_HOME (default /opt/router): what a machine of a cluster needs.
#   install.sh                 all steps, from the checkout that this script is in
#   install.sh packages FROM   a virtual environment with the router: a checkout, a wheel, or a name for pip
#   install.sh jars            Delta, Kafka and Avro connectors beside Spark's own jars, so that nothing is fetched at a start
#   install.sh check           a run of a small configuration with what is installed
# Needs Python 3.10 to 3.13 and Java 17 or 21. Safe to repeat. In a checkout packages have the tested versions.
set -euo pipefail
home=${ROUTER_HOME:-/opt/router}
source=$(cd "$(dirname "$0")/../.." && pwd)
bin=$home/venv/bin

packages() { # packages FROM
    local pinned=()
    mkdir -p "$home/work"
    if [ -f "$source/constraints.txt" ]; then # pip refuses hashes beside a package without one
        sed '/^ *--hash/d; s/ *\\$//' "$source/constraints.txt" >"$home/constraints.txt"
        pinned=(-c "$home/constraints.txt")
    fi
    [ -x "$bin/python" ] || "${PYTHON:-python3}" -m venv "$home/venv"
    "$bin/pip" install --quiet --disable-pip-version-check "${pinned[@]}" "$1[protobuf]"
    ln -sfn "$(place_of pyspark)" "$home/spark"
    cp "$(place_of router)/__main__.py" "$home/__main__.py"
}

place_of() { # place_of PACKAGE
    "$bin/python" -I -c 'import importlib.util, sys; print(importlib.util.find_spec(sys.argv[1]).submodule_search_locations[0])' "$1"
}

jars() {
    local work
    work=$(mktemp -d)
    (cd "$work" && ROUTER_CACHE=$work "$bin/python" -I -m router.engine.spark.connectors kafka avro >jars)
    xargs -d '\n' cp -v -t "$home/spark/jars" <"$work/jars"
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
    [ -d "$work/lake/silver/uno" ] && [ -d "$work/lake/silver/chess" ] && [ -d "$work/lake/ops/dead_letters" ]
    rm -rf "$work"
    echo "install.sh: two tables and a dead letter, as it should be"
}

case ${1:-all} in
packages) packages "${2:-$source}" ;;
jars) jars ;;
check) check ;;
all) packages "$source" && jars && check ;;
*) sed -n '2,7p' "$0" && exit 2 ;;
esac
