"""A broker with SASL_SSL and a registry with a login, as managed services have: docs/how-to/cloud-sources.md."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import requests
from confluent_kafka import Producer

from router import StartError
from router.config.loader import load_config
from router.delta.lake import Lake
from router.engine.stream import run
from router.registry import load_registry
from router_demo.embedded import HOST, find_java, free_ports
from router_demo.registry import subject_in
from router_schemas.wire_format import pack_value
from tests.conftest import LightKafka

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from router_demo.registry import EmbeddedRegistry

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "cloud-sources.md"
PASSWORD = "trusted"
LOGINS = {"key": "secret", "$ConnectionString": "Endpoint=sb://x/;SharedAccessKey=abc=", "guest": "let-me-in"}
ADMINS = ("ANONYMOUS", "key", "$ConnectionString")
"""Who may do anything; a guest may log in and no more."""
SCHEMA = '{"type": "record", "name": "Event", "fields": [{"name": "game", "type": "string"}]}'


class SecuredKafka(LightKafka):
    """A broker with one more listener, over TLS, for which clients need a user and a password."""

    def _prepare(self, folder: Path) -> None:
        super()._prepare(folder)
        (self.secured,) = free_ports(1)
        self.store = folder / "broker.p12"
        keytool = find_java().with_name("keytool")
        about = ["-alias", "broker", "-keyalg", "RSA", "-dname", "CN=localhost", "-ext", f"SAN=ip:{HOST},dns:localhost"]
        command = [str(keytool), "-genkeypair", *about, "-keystore", str(self.store), "-storetype", "PKCS12"]
        subprocess.run([*command, "-storepass", PASSWORD], check=True, capture_output=True)
        pem = [str(keytool), "-exportcert", "-rfc", "-alias", "broker", "-keystore", str(self.store)]
        found = subprocess.run([*pem, "-storepass", PASSWORD], check=True, capture_output=True)
        (folder / "broker.pem").write_bytes(found.stdout)
        self.pem = folder / "broker.pem"
        users = " ".join(f'user_{name}="{password}"' for name, password in LOGINS.items())
        file = folder / "server.properties"
        text = re.sub(
            r"((?:advertised\.)?listeners=PLAINTEXT://[^,\n]+)",
            rf"\1,SASL_SSL://{HOST}:{self.secured}",
            file.read_text(),
        )
        text = text.replace("protocol.map=", "protocol.map=SASL_SSL:SASL_SSL,")
        login = "org.apache.kafka.common.security.plain.PlainLoginModule required"
        text += (
            "inter.broker.listener.name=PLAINTEXT\nsasl.enabled.mechanisms=PLAIN\n"
            f"ssl.keystore.location={self.store}\nssl.keystore.password={PASSWORD}\nssl.keystore.type=PKCS12\n"
            f"listener.name.sasl_ssl.plain.sasl.jaas.config={login} {users};\n"
            "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer\n"
            f"super.users={';'.join(f'User:{name}' for name in ADMINS)}\n"
        )
        file.write_text(text)


@pytest.fixture(scope="module")
def secured() -> Iterator[SecuredKafka]:
    with SecuredKafka() as kafka:
        yield kafka


@pytest.fixture
def locked(schema_registry: EmbeddedRegistry) -> Iterator[tuple[str, list[bool]]]:
    """Put a login before the registry; yield its URL, and for each request whether it had the login."""
    said: list[bool] = []
    wanted = f"Basic {base64.b64encode(b'reader:hush').decode()}"
    behind = schema_registry.url.partition("/apis")[0]

    class Door(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            said.append(self.headers.get("Authorization") == wanted)
            if not said[-1]:
                self.send_response(401)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            with requests.Session() as session:
                session.trust_env = False
                found = session.get(f"{behind}{self.path}", timeout=20)
            self.send_response(found.status_code)
            self.send_header("Content-Type", found.headers["Content-Type"])
            self.send_header("Content-Length", str(len(found.content)))
            self.end_headers()
            self.wfile.write(found.content)

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    with ThreadingHTTPServer((HOST, 0), Door) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://{HOST}:{server.server_port}/apis/ccompat/v7", said
        server.shutdown()


def page(number: int) -> str:
    found: list[str] = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return found[number]


def secured_text(text: str, kafka: SecuredKafka, topic: str) -> str:
    """Return a configuration of the page with the broker's address and the authority of this test."""
    trust = f"kafka.ssl.truststore.location: {kafka.store}\n      kafka.ssl.truststore.password: {PASSWORD}\n      "
    text = text.replace("kafka.security.protocol:", f"{trust}kafka.security.protocol:", 1)
    text = re.sub(r"servers: \S+", f"servers: {HOST}:{kafka.secured}", text)
    return text.replace("game-events", topic)


def send(kafka: SecuredKafka, topic: str, value: bytes) -> None:
    kafka.create_topic(topic)
    secure = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "ssl.ca.location": str(kafka.pem)}
    login = {"sasl.username": "key", "sasl.password": "secret"}
    producer = Producer({"bootstrap.servers": f"{HOST}:{kafka.secured}", **secure, **login})
    producer.produce(topic, value)
    assert producer.flush(30) == 0


@pytest.mark.slow
def test_confluent_cloud(
    spark: SparkSession,
    secured: SecuredKafka,
    locked: tuple[str, list[bool]],
    schema_registry: EmbeddedRegistry,
    tmp_path: Path,
) -> None:
    """Without it a managed cluster cannot be read, and nobody knows which of ten settings is wrong."""
    url, said = locked
    with subject_in(schema_registry.url, "secured-value") as subject:
        number = subject.register("AVRO", SCHEMA)
    send(secured, "secured", pack_value(number, None, b"\x06uno"))
    text = secured_text(page(0), secured, "secured").replace("s3://lake/games", str(tmp_path / "lake"))
    environ = {"BOOTSTRAP": "-", "API_KEY": "key", "API_SECRET": "secret", "REGISTRY": url}
    environ |= {"REGISTRY_KEY": "reader", "REGISTRY_SECRET": "hush"}
    registry = load_registry()
    loaded = load_config(tmp_path / "games.yaml", registry, environ=environ, text=f"{text}trigger: {{once: true}}\n")
    (report,) = run(loaded, registry, spark)
    table = Lake.at(str(tmp_path / "lake")).open("silver.uno")
    assert (report.read, report.failed) == (1, 0)
    assert table is not None
    assert table.to_pyarrow_table().to_pylist() == [{"game": "uno"}]
    assert said
    assert all(said)


@pytest.mark.slow
def test_event_hubs(spark: SparkSession, secured: SecuredKafka, tmp_path: Path) -> None:
    """Without it `$ConnectionString` is taken for a variable, or a connection string is cut at its = signs."""
    send(secured, "hub", b"anything")
    text = secured_text(page(1), secured, "hub")
    text += f"name: hub\nlake: {tmp_path}/lake\ndecode: {{none: {{}}}}\nbronze: bronze.all\ndead_letters: ops.dead\n"
    environ = {"NAMESPACE": "-", "CONNECTION_STRING": LOGINS["$ConnectionString"]}
    registry = load_registry()
    loaded = load_config(tmp_path / "hub.yaml", registry, environ=environ, text=f"{text}trigger: {{once: true}}\n")
    (report,) = run(loaded, registry, spark)
    assert report.read == 1


@pytest.mark.slow
@pytest.mark.parametrize("json_logs", [False, True], ids=["text", "JSON"])
def test_a_refused_login_is_one_sentence_and_needs_a_person(
    secured: SecuredKafka, tmp_path: Path, *, json_logs: bool
) -> None:
    """Without it a supervisor repeats for ever a run whose password is wrong, and its reason is in a stack."""
    topic = f"refused-{json_logs}"
    secured.create_topic(topic)
    text = secured_text(page(1), secured, topic)
    text += "name: hub\nlake: ./lake\ndecode: {none: {}}\nbronze: bronze.all\ndead_letters: ops.dead\n"
    (tmp_path / "hub.yaml").write_text(text)
    environ = {**os.environ, "NAMESPACE": "-", "CONNECTION_STRING": "Endpoint=sb://x/;SharedAccessKey=wrong"}
    command = [sys.executable, "-m", "router", "run", "--once", "hub.yaml", *(["--json-logs"] if json_logs else [])]
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert "SharedAccessKey" not in done.stderr
    message = json.loads(last)["message"] if json_logs else last.removeprefix("router: ")
    assert message.startswith(f"hub: the broker at {HOST}:{secured.secured} refuses the login")


@pytest.mark.slow
def test_missing_rights_are_named(spark: SparkSession, secured: SecuredKafka, tmp_path: Path) -> None:
    """Without it a user who may not read a topic looks like a topic that is missing, and is waited for."""
    secured.create_topic("private")
    connection, _, _ = secured_text(page(0), secured, "private").partition("decode:")
    text = connection.replace("s3://lake/games", str(tmp_path / "lake"))
    text += "decode: {none: {}}\nbronze: bronze.all\ndead_letters: ops.dead\ntrigger: {once: true}\n"
    environ = {"BOOTSTRAP": "-", "API_KEY": "guest", "API_SECRET": LOGINS["guest"]}
    registry = load_registry()
    loaded = load_config(tmp_path / "games.yaml", registry, environ=environ, text=text)
    with pytest.raises(
        StartError, match=r"the user of the source read private: .*; give this user Read and Describe"
    ) as refused:
        run(loaded, registry, spark)
    assert refused.value.exit_code == 2


def test_the_pages_load(tmp_path: Path) -> None:
    """Without it what somebody copies from the page does not even start."""
    rest = "name: x\nlake: x\ndecode: {none: {}}\nbronze: bronze.all\ndead_letters: ops.dead\n"
    names = ("BOOTSTRAP", "API_KEY", "API_SECRET", "REGISTRY_KEY", "REGISTRY_SECRET", "NAMESPACE", "CONNECTION_STRING")
    environ = {**dict.fromkeys(names, "x"), "REGISTRY": "http://127.0.0.1:1"}
    for number, more in ((0, ""), (1, rest), (2, rest)):
        loaded = load_config(tmp_path / "x.yaml", load_registry(), environ=environ, text=page(number) + more)
        assert "SharedAccessKey" not in repr(loaded.config)
