#!/usr/bin/env bash
# Run games.yaml on YARN, driver in the cluster. Needs HADOOP_CONF_DIR, and a shared lake (hdfs is no lake: s3, abfss, gs
# or a mounted folder). Python with its native packages travels as one archive, made once:
#   python3.11 -m venv env && env/bin/pip install spark-event-router venv-pack && env/bin/venv-pack -p env -o env.tar.gz
set -euo pipefail
exec router submit games.yaml --master yarn --deploy-mode cluster \
    --conf spark.yarn.dist.archives=env.tar.gz#env \
    --conf spark.pyspark.python=./env/bin/python \
    --conf spark.yarn.appMasterEnv.PYSPARK_PYTHON=./env/bin/python \
    --conf spark.yarn.appMasterEnv.KAFKA="$KAFKA" \
    --conf spark.yarn.maxAppAttempts=1000 \
    --conf spark.yarn.am.attemptFailuresValidityInterval=1h \
    --conf spark.executor.instances=2 --conf spark.executor.memory=4g
