"""The sink `spark`: what its messages show."""

from __future__ import annotations

from router_sinks.spark_writer import SparkWriter


def test_masked_values_do_not_cut_words() -> None:
    """Without it a message about drivers reads `jdbc.***r` because a table is called drive."""
    options = {"dbtable": "drive", "password": "p4ss", "user": "p4ss-and-more"}
    sink = SparkWriter.model_validate({"format": "jdbc", "options": options})

    text = sink._masked(RuntimeError("Exception: no driver for drive, xp4ssx, p4ss-and-more"))

    assert text == "Exception: no driver for ***, x***x, ***"


def test_a_secret_is_masked_wherever_it_stands() -> None:
    """Without it a password of letters is readable behind an escape in a URL."""
    sink = SparkWriter.model_validate({"format": "jdbc", "options": {"dbtable": "wins", "Password": "hunter"}})

    text = sink._masked(RuntimeError("Exception: jdbc:x?p%3Dhunter&wins of bigwins hunters"))

    assert text == "Exception: jdbc:x?p%3D***&*** of bigwins ***s"

    short = SparkWriter.model_validate({"format": "jdbc", "options": {"pwd": "p/w", "token": "", "mode": "w"}})
    assert short._masked(RuntimeError("Exception: jdbc:x?p=p/w")) == "Exception: jdbc:x?p=***"
