"""The channel between the tasks of a driver and the driver: TLS, lines of JSON, and who may speak.

server.py is the driver's end, one for all tasks; client.py is a task's end; protocol.py is what both agree on. In come
messages, as dicts of plain data; out they go to limits/, which exchanges reports and grants. Tasks also ask for
credentials, and get them.
"""
