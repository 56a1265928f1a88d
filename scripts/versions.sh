#!/usr/bin/env bash
# Run the tests with another Python, Spark and Delta, in a virtual environment below .versions:
#   scripts/versions.sh PYTHON SPARK DELTA [ARGUMENT OF PYTEST...]
# All other packages are those of constraints.txt. Safe to repeat: what is installed stays. Where that Python is not
# here, or the packages or jars cannot be had, a line says so, and nothing is run.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$1 spark=$2 delta=$3
shift 3
home=.versions/python$python-spark$spark-delta$delta

say() { printf 'versions: %s\n' "$*" >&2; }

leave_out() {
    say "$*: Spark $spark is left out"
    exit 0
}

find_python() { # on PATH, or where pyenv and uv put theirs
    local found
    for found in "python$python" "$HOME"/.pyenv/versions/"$python".*/bin/python \
        "$HOME"/.local/share/uv/python/cpython-"$python".*/bin/python; do
        if "$found" -c "import ensurepip, sys, venv; sys.exit('%d.%d' % sys.version_info[:2] != '$python')" 2>/dev/null; then
            echo "$found"
            return
        fi
    done
    return 1
}

constraints() { # the tests' versions without their hashes, but for the pair and for what only the two ask for
    sed '/^ *--hash/d; s/ *\\$//' constraints.txt | grep -vE '^(pyspark|delta-spark|py4j|importlib-metadata)=='
    printf 'pyspark==%s\ndelta-spark==%s\n' "$spark" "$delta"
}

install() {
    local found
    found=$(find_python) || leave_out "no Python $python here"
    say "Python $python, Spark $spark, Delta $delta in $home (about 700 MB, a few minutes) ..."
    "$found" -m venv --clear "$home"
    constraints >"$home/constraints.txt"
    .venv/bin/uv pip install --quiet --no-progress --python "$home/bin/python" -c "$home/constraints.txt" -e '.[dev]' ||
        "$home/bin/python" -m pip install --quiet --disable-pip-version-check -c "$home/constraints.txt" -e '.[dev]' ||
        leave_out "its packages cannot be had"
    touch "$home/complete"
}

[ -e "$home/complete" ] && [ "$home/complete" -nt pyproject.toml ] || install
export JAVA_HOME=${JAVA_HOME:-$(cat .venv/java-home)}
"$home/bin/python" -c 'import router.engine.spark.connectors' # what fails here is no matter of the network
say "jars of Spark $spark ..."
"$home/bin/python" -m router.engine.spark.connectors >/dev/null || leave_out "its jars cannot be had"
exec "$home/bin/python" -m pytest -n 2 --dist loadscope --no-loadscope-reorder -m "not slow" "$@"
