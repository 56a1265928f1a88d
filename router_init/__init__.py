"""`router init`: a configuration and its tests, written from a sample of the records that it is for.

In come records of topics or files (samples), out go NAME.yaml and NAME.test.yaml (documents). Between them stand what
values are (formats), what was observed of JSON (observed), and the tables of each topic (tables). No JVM.
"""
