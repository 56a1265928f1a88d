"""The sink `rest`: events become calls of an HTTP API, as fast as the API allows, and every row gets a receipt.

sink.py is the part that people configure; options.py, auth.py and templates.py are what they write, credentials.py is
what comes of a login. batch.py turns a micro-batch, or rows that are sent again, into a Spark job. delivery/ is what
the tasks of that job do, rate_limit/ says when a call may go out, http_client/ sends it. In come rows of an outbox; out
go calls, and a table of receipts that says of each row: delivered, dead or parked.
"""
