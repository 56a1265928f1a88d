"""Credentials of a lake: by options, environment, profile, role, web identity and the machine, for tables and files."""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import sys
import threading
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING
from urllib.request import Request, urlopen

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from benchmarks.s3_server import S3Server

USE = """
import json, os, sys
import pyarrow as pa
from deltalake import write_deltalake
from router.delta.lake import Lake
lake = Lake.at(sys.argv[1], json.loads(sys.argv[2]))
assert lake.create("notes/x", b"1")
write_deltalake(lake.address("silver.uno"), pa.table({"n": [1]}), storage_options=lake.delta_options("silver.uno"))
assert lake.open("silver.uno").version() == 0
assert lake.table_names("silver") == ["silver.uno"]
"""
ROLE = "arn:aws:iam::123456789012:role/lake"


class Machine(BaseHTTPRequestHandler):
    """The metadata of a machine with a role, as EC2 has them."""

    def do_PUT(self) -> None:
        self._answer("a token")

    def do_GET(self) -> None:
        ends = datetime.now(timezone.utc) + timedelta(hours=1)
        keys = {"AccessKeyId": "MACHINE", "SecretAccessKey": "hush-hush", "Token": "of-the-machine"}
        more = {"Code": "Success", "Type": "AWS-HMAC", "Expiration": f"{ends:%Y-%m-%dT%H:%M:%SZ}"}
        more["LastUpdated"] = f"{datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%SZ}"
        role = self.path.rstrip("/").endswith("security-credentials")
        self._answer("lake" if role else json.dumps({**keys, **more}))

    def _answer(self, text: str) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.send_header("x-aws-ec2-metadata-token-ttl-seconds", "600")
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def machine() -> Iterator[str]:
    """Return the address of a machine's metadata."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Machine)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def sts(server: S3Server, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """Return the https address of a token service, which asks moto, and the file of the certificate to trust."""

    class Forwarding(Machine):
        def do_POST(self) -> None:
            asked = self.rfile.read(int(self.headers["Content-Length"] or 0)) or self.path.partition("?")[2].encode()
            headers = {"Content-Type": "application/x-www-form-urlencoded"}
            if signed := self.headers["Authorization"]:
                headers["Authorization"] = signed
            with urlopen(Request(server.url, data=asked, headers=headers), timeout=60) as answer:
                self._answer(answer.read().decode())

    certificate = tmp_path / "certificate.pem"
    making = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    making += [
        "-addext",
        "subjectAltName=DNS:localhost",
        "-addext",
        "basicConstraints=critical,CA:FALSE",
        "-keyout",
        str(tmp_path / "key.pem"),
        "-out",
        str(certificate),
    ]
    subprocess.run(making, check=True, capture_output=True)
    found = ThreadingHTTPServer(("127.0.0.1", 0), Forwarding)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, tmp_path / "key.pem")
    found.socket = context.wrap_socket(found.socket, server_side=True)
    threading.Thread(target=found.serve_forever, daemon=True).start()
    yield f"https://localhost:{found.server_port}", str(certificate)
    found.shutdown()
    found.server_close()


@pytest.mark.parametrize("way", ["options", "environment", "profile", "role", "web identity", "machine"])
def test_tables_and_files_are_reached_by(
    way: str, server: S3Server, machine: str, sts: tuple[str, str], tmp_path: Path
) -> None:
    """Without it a cluster without keys in its configuration has no lake."""
    plain = {"aws_region": "us-east-1", "aws_endpoint_url": server.url, "aws_allow_http": "true"}
    keys = {"AWS_ACCESS_KEY_ID": "OWNED", "AWS_SECRET_ACCESS_KEY": "hush-hush"}
    file = tmp_path / "credentials"
    file.write_text("[lake]\naws_access_key_id = PROFILE\naws_secret_access_key = hush-hush\n")
    token = tmp_path / "token"
    token.write_text("a token of the cluster")
    profile = {"AWS_SHARED_CREDENTIALS_FILE": str(file), "AWS_PROFILE": "lake"}
    tokens = {"AWS_ENDPOINT_URL_STS": sts[0], "AWS_REGION": "us-east-1"}
    tokens |= {"SSL_CERT_FILE": sts[1], "AWS_CA_BUNDLE": sts[1]}
    identity = {"AWS_WEB_IDENTITY_TOKEN_FILE": str(token), "AWS_ROLE_ARN": ROLE, "AWS_ROLE_SESSION_NAME": "lake"}
    options, environ = {
        "options": ({"aws_access_key_id": "OWNED", "aws_secret_access_key": "hush-hush"}, {}),
        "environment": ({}, keys),
        "profile": ({}, profile),
        "role": ({"aws_iam_role_arn": ROLE}, {**profile, **tokens}),
        "web identity": ({}, {**tokens, **identity}),
        "machine": ({"aws_metadata_endpoint": machine}, {"AWS_EC2_METADATA_SERVICE_ENDPOINT": machine}),
    }[way]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    begun = len(server.asked())

    place = f"s3://lake/{way.replace(' ', '-')}"
    command = [sys.executable, "-c", USE, place, json.dumps({**plain, **options})]
    done = subprocess.run(command, env={**clean, **environ}, capture_output=True, text=True, timeout=300, check=False)

    assert done.returncode == 0, done.stderr[-2000:]
    assert "hush-hush" not in done.stdout + done.stderr
    used = {one.key for one in server.asked(begun) if one.path.startswith("/lake")}
    owner = {"options": "OWNED", "environment": "OWNED", "profile": "PROFILE", "machine": "MACHINE"}.get(way)
    assert used == {owner} if owner else used.isdisjoint({"", "OWNED", "PROFILE", "MACHINE"}) and len(used) >= 1
