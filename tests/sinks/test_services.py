"""Sinks for services in a run of their own: a real PostgreSQL by SQLAlchemy and by JDBC, a queue, and files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from moto.server import ThreadedMotoServer

from router.delta.lake import Lake
from tests.sinks import postgres

sa = pytest.importorskip("sqlalchemy")

if TYPE_CHECKING:
    from pathlib import Path

YAML = """\
name: games
lake: {folder}/lake
source: {{files: {{path: {folder}/in}}}}
decode: {{json: "n int, name string, amount decimal(9,2), at timestamp, cards array<string>"}}
routes:
  - name: wins
    match: {{sql: "event.n IS NOT NULL"}}
    sinks:
      - sql: {{url: "${{DATABASE}}", table: "wins_{{event.name}}", key: [n]}}
      - spark:
          format: jdbc
          options: {{url: "{jdbc}", dbtable: by_jdbc, user: postgres, password: "${{WORD}}"}}
          without: [cards]
      - spark: {{format: parquet, path: {folder}/files, partition_by: [name]}}
      - boto3:
          {{service: sqs, to: "{queue}", endpoint: "{endpoint}", region: eu-west-1, access_key_id: a,
            secret_access_key: b}}
trigger: {{once: true}}
spark: {{spark.jars.packages: "org.postgresql:postgresql:42.7.4"}}
dead_letters: ops.dead
"""


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.skipif(not postgres.THERE, reason="PostgreSQL is not installed here")
def test_events_reach_each_service(tmp_path: Path) -> None:
    """Without it a sink works in its tests, and not in a task of Spark."""
    for place in (tmp_path, *tmp_path.parents[:3]):
        place.chmod(0o755)  # PostgreSQL runs as another user
    server, moto = postgres.Postgres(tmp_path / "server"), ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.make()
    server.start()
    moto.start()
    try:
        host, port = moto.get_host_and_port()
        _play(tmp_path, server, f"http://{host}:{port}")
    finally:
        moto.stop()
        server.stop()


def _play(folder: Path, server: postgres.Postgres, endpoint: str) -> None:
    import boto3

    about: Any = {"region_name": "eu-west-1", "endpoint_url": endpoint}
    client = boto3.client("sqs", aws_access_key_id="a", aws_secret_access_key="b", **about)
    queue = client.create_queue(QueueName="wins")["QueueUrl"]
    engine = sa.create_engine(server.url, poolclass=sa.NullPool)
    columns = "n BIGINT PRIMARY KEY CHECK (n <> 13), name TEXT, amount NUMERIC(9,2), at TIMESTAMPTZ, cards JSONB"
    with engine.begin() as connection:
        for name in ("uno", "poker"):
            connection.execute(sa.text(f"CREATE TABLE wins_{name} ({columns})"))
    jdbc = f"jdbc:postgresql://127.0.0.1:{server.port}/postgres"
    text = YAML.format(folder=folder, jdbc=jdbc, queue=queue, endpoint=endpoint)
    (folder / "games.yaml").write_text(text)
    (folder / "in").mkdir()
    events = [
        {"n": n, "name": ("uno", "poker", "rummy")[n % 3], "amount": 1.25, "at": "2026-01-01T12:00:00Z", "cards": ["a"]}
        for n in range(30)
    ]
    (folder / "in" / "1.json").write_text("".join(json.dumps(event) + "\n" for event in events))
    environment = {**os.environ, "DATABASE": server.url, "WORD": "secret-word"}
    command = [sys.executable, "-m", "router", "run", str(folder / "games.yaml")]

    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    told = done.stdout + done.stderr
    assert done.returncode == 0, told
    assert "secret-word" not in told
    with engine.connect() as connection:
        found = {name: connection.execute(sa.text(f"SELECT n FROM {name}")).scalars().all() for name in TABLES}
        cards = connection.execute(sa.text("SELECT cards FROM wins_uno LIMIT 1")).scalar()
    assert sorted(found["wins_uno"]) == list(range(0, 30, 3)), told
    assert sorted(found["wins_poker"]) == sorted({*range(1, 30, 3)} - {13})
    assert sorted(found["by_jdbc"]) == list(range(30)), told
    assert cards == ["a"]
    assert len(list((folder / "files" / "name=uno").glob("*.parquet"))) == 1
    messages = client.get_queue_attributes(QueueUrl=queue, AttributeNames=["ApproximateNumberOfMessages"])
    assert messages["Attributes"]["ApproximateNumberOfMessages"] == "30"
    table = Lake.at(f"{folder}/lake").open("ops.dead")
    assert table is not None
    dead = table.to_pyarrow_table().to_pylist()
    assert Counter((row["sink"], row["reason"].split(" ")[0]) for row in dead) == {
        ("sql", "there"): 10,
        ("sql", "new"): 1,
    }


TABLES = ("wins_uno", "wins_poker", "by_jdbc")
