"""Reach HTTP services: secrets, logins, tokens, and whom a client trusts."""
