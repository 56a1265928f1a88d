"""Label: which routes take a record, which table its row goes to, and what the row holds.

In: raw records, the decoder and the routes of a configuration (`planner`, on the driver). Out: a `Plan`, whose
`labelling` travels to the landing task and gives each record batch the columns of the `Layout` (`labels`, on
executors). An expression that Arrow evaluates with Spark's meaning is evaluated there; the routes whose expressions
need Spark bring them as guarded columns, and everything after that is the same code.
"""
