"""`router init`: a configuration and its tests, written from a sample of the records that it is for.

In come records of topics or files (samples), out go NAME.yaml and NAME.test.yaml (documents). Between them stand what
the values are (formats), their columns and types (columns), the field that tells kinds apart (kinds), and the tables of
each topic (tables). No JVM.
"""
