#!/usr/bin/env bash
# Run games.yaml on Dataproc (an image with Spark 4). Native packages: the cluster is created with
#   --properties 'dataproc:pip.packages=spark-event-router==0.1.0'
set -euo pipefail
cluster=$1 region=$2
router submit games.yaml --master yarn --deploy-mode cluster --print --to build >build/command.sh
program=$(python3 -c 'import pathlib, router; print(pathlib.Path(router.__file__).with_name("__main__.py"))')
packages=$(python3 -c 'from router.engine.spark.session import all_packages; print(",".join(all_packages()))')
gcloud dataproc jobs submit pyspark "$program" --cluster "$cluster" --region "$region" \
    --py-files "$(ls build/spark_event_router-*.zip)" --archives build/games.zip#games \
    --properties "^|^spark.submit.deployMode=cluster|spark.jars.packages=$packages" \
    --max-failures-per-hour 10 -- run games/games.yaml
