"""Requests of the driver to servers that plugins share: schema registries, token servers.

options.py is what people write about such a server, auth.py logs in with it, client.py sends one request, within limits
of time and size, and says whether the server is away or refuses. Calls of the REST sink go by router_rest.http_client.
"""
