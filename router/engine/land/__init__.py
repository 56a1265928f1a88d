"""Land: the rows of a batch as Parquet files in the folders of their tables, in one Spark job.

In: the plan of a batch and what existing tables demand of rows (`job`, on the driver). Each task decodes, labels and
sorts its record batches by table (`task`) and writes one file per table. Out: `Landed`, the staged files with their
statistics, and what became of every record, counted by source partition. Nothing refers to the files yet: what is not
committed can be deleted.
"""
