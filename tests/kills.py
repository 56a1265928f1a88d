"""Exceptions that end a batch in this process, in place of a signal that ends the process."""

from __future__ import annotations


class ProcessKilled(BaseException):
    """The end of a process in place of SIGKILL: no `except Exception` on its way sees it."""


class CrashError(Exception):
    """The end of a batch in place of a kill: what comes after it never happens; a stream reports it as its failure."""
