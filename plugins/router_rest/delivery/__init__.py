"""From rows to receipts: what the tasks of a batch do, and the driver before and after.

In: the rows of an outbox, and a `TaskJob`. batcher.py cuts them into calls, call.py makes the request of each and sends
it, again if that may help, until answers/ says what becomes of its rows; receipts.py writes that down. worker.py is the
loop of one task, with timers for parts of a millisecond. job.py (driver) runs tasks until every row has a receipt,
partitioner.py decides which task gets which rows. Out: receipts, and an `Outcome`.
"""
