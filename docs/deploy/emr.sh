#!/usr/bin/env bash
# Run games.yaml as a step of an EMR cluster (a release with Spark 4). The bootstrap action below installs what is native on
# every node; the step calls spark-submit with what `router submit games.yaml --master yarn --deploy-mode cluster --print`
# prints, its archives copied to S3.
#   bootstrap.sh: sudo python3.11 -m pip install spark-event-router
set -euo pipefail
bucket=$1 cluster=$2
router submit games.yaml --master yarn --deploy-mode cluster --print --to build >build/command.sh
aws s3 cp --recursive build "s3://$bucket/router/"
program=$(python3 -c 'import pathlib, router; print(pathlib.Path(router.__file__).with_name("__main__.py"))')
aws s3 cp "$program" "s3://$bucket/router/__main__.py"
aws emr add-steps --cluster-id "$cluster" --steps "Type=Spark,Name=router-games,ActionOnFailure=CONTINUE,Args=[\
--deploy-mode,cluster,--py-files,s3://$bucket/router/$(basename build/spark_event_router-*.zip),\
--archives,s3://$bucket/router/games.zip#games,\
--packages,$(python3 -c 'from router.engine.spark.session import all_packages; print(r"\,".join(all_packages()))'),\
--conf,spark.pyspark.python=python3.11,s3://$bucket/router/__main__.py,run,games/games.yaml]"
