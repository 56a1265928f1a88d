"""Start: what must hold before the first batch of a run.

In: a configuration, its lake and its checkpoint. `run_lock` keeps a second run away from the checkpoint, `checks`
refuses a lake or checkpoint that belongs to something else, `spark_checkpoint` mends what a power cut has left half,
`lost_records` finds offsets that the source has no more. Out: nothing, or a sentence that says what a person must do.
"""
