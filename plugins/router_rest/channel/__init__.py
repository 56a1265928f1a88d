"""The channel between the tasks of a driver and the driver: TLS, lines of JSON, and who may speak.

server.py is the driver's end, one for all tasks; client.py is a task's end; protocol.py is what both agree on. In come
messages, as dicts of plain data; out they go to the users of the channel, each of which takes those of its own:
limits/ exchanges reports and grants, logins/ asks for credentials and gets them.
"""
