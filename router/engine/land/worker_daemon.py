"""The daemon that PySpark forks its Python workers from, with what a landing task imports loaded already.

A worker begins with the pages of its daemon: the imports of a task, a second of CPU and 100 MB, are paid once in place
of once for each core. Local runs name it in `spark.python.daemon.module`.
"""

import gc

import router.engine.land.task  # noqa: F401 - for those who are forked from here
from router.spark_internals import python_daemon

if __name__ == "__main__":
    gc.freeze()  # a collection in a worker would copy the pages that it shares
    python_daemon()()
