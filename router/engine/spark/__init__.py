"""Spark: what a run needs of the machine and of the cluster before there is a batch.

In: a configuration and the environment. `java` finds a Java that Spark runs on, `connectors` the jars of the
configuration's source and lake, `session` starts the session with the router's settings. `executors` lets every
executor prove, before its first staged file, that it has the same parts and sees the same lake. Out: a session.
"""
