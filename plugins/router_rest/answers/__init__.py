"""What an answer of an API means: for its call, for each row of it, and for the calls that follow. Sends nothing.

In come a call and its answer; out goes the next step (classifier.py): by the rules of the configuration first
(rules.py), whose SQL expression_reader.py reads on the driver and expression.py evaluates in tasks, else by the status
(actions.py), and for each row of a bulk API by bulk_results.py. pause_headers.py reads when the API wants more calls.
"""
