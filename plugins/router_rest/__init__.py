"""The sink `rest`: events become calls of an HTTP API, as fast as the API allows, and every row gets a receipt.

sink.py is the part that people configure; options.py, logins/auth.py and templates.py are what they write. batch.py
turns a micro-batch, or rows that are sent again, into a Spark job. delivery/ is what the tasks of that job do: limits/
says when a call may go out, logins/ adds the login, http_client/ sends the call, answers/ says what its answer means.
In come rows of an outbox; out go calls, and a table of receipts that says of each row: delivered, dead or parked.
"""
