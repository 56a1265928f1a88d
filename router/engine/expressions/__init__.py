"""Expressions: rules, projections and expectations, evaluated in Arrow with Spark's values.

In: Columns of Spark. `evaluator` translates each, as Spark has analysed it, into a tree of nodes (`tree`) and evaluates
it on record batches, on executors; it raises Untranslatable for what only Spark can evaluate. Out: an Arrow array that
equals what Spark would give, nulls and errors included. A new function is a maker in `functions` or `text`.
"""
