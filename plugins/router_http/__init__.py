"""Requests of the driver to servers that plugins share: schema registries, token servers.

options.py is what people write about such a server; client.py logs in with it, sends one request, within limits of
time and size, and says whether the server is unavailable or refuses. Calls of the REST sink go by
router_rest.http_client.
"""
