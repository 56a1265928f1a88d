"""What an answer of an API means: for its call, for each row of it, and for the calls that follow.

In come a call and its answer; out goes the next step (classifier.py), by the rules of the configuration first, which
expression_reader.py reads on the driver and expression.py evaluates in tasks. Sends nothing.
"""
