#!/usr/bin/env bash
# What runs in a container of Spark on Kubernetes: `driver` with the arguments of spark-submit, `executor`; `stop` ends the
# driver's run after its batch, and returns when it has ended. Anything else runs as it is.
# Spark says by variables how: SPARK_DRIVER_BIND_ADDRESS, SPARK_EXECUTOR_*, SPARK_JAVA_OPT_0, SPARK_JAVA_OPT_1, ...
set -eu
export SPARK_HOME=${SPARK_HOME:-/opt/router/spark}
class_path=$SPARK_HOME/conf:$SPARK_HOME/jars/*:${SPARK_EXTRA_CLASSPATH:-}
options=()
for ((i = 0; ; i++)); do
    name=SPARK_JAVA_OPT_$i
    [ -n "${!name:-}" ] || break
    options+=("${!name}")
done
case ${1:-} in
driver)
    shift
    set -- "$SPARK_HOME/bin/spark-submit" --deploy-mode client \
        --conf "spark.driver.bindAddress=${SPARK_DRIVER_BIND_ADDRESS:?}" \
        --conf "spark.executorEnv.SPARK_DRIVER_POD_IP=${SPARK_DRIVER_BIND_ADDRESS}" "$@"
    ;;
executor)
    shift
    set -- java "${options[@]}" "-Xms${SPARK_EXECUTOR_MEMORY:?}" "-Xmx$SPARK_EXECUTOR_MEMORY" -cp "$class_path" \
        org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
        --driver-url "$SPARK_DRIVER_URL" --executor-id "$SPARK_EXECUTOR_ID" --cores "$SPARK_EXECUTOR_CORES" \
        --app-id "$SPARK_APPLICATION_ID" --hostname "$SPARK_EXECUTOR_POD_IP" \
        --resourceProfileId "${SPARK_RESOURCE_PROFILE_ID:-0}" --podName "$SPARK_EXECUTOR_POD_NAME"
    ;;
stop)
    program='^[^ ]*python[0-9.]* [^ ]*__main__\.py run'
    pkill -TERM -f "$program" || exit 0
    while pgrep -f "$program" >/dev/null; do sleep 1; done
    exit 0
    ;;
esac
exec tini -s -- "$@"
