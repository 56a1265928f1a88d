"""Start: what must hold before the first batch of a run.

In: a configuration, its lake and its checkpoint. `run_lock` keeps a second run away from the checkpoint, `checks`
refuses a lake or checkpoint that belongs to something else, `spark_checkpoint` mends files that a power cut has
truncated, `lost_records` finds offsets that the source does not have any more. Out: nothing, or a sentence with what a
person must do.
"""
