"""How the API of Kubernetes is found and asked: files of kubectl's, a pod's account, TLS."""

from __future__ import annotations

import base64
import http.server
import json
import ssl
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from each_row import each_row
from pydantic import BaseModel

from gate.errors import PublishError, RunError
from gate.isolation.cluster_settings import PodSettings
from gate.isolation.kubernetes import Nodes, job_of
from gate.isolation.kubernetes_api import Access, KubernetesApi, access_by
from gate.system.http import RetryPolicy

ONCE = RetryPolicy(longest_wait_seconds=0.0)


class Named(BaseModel):
    metadata: dict[str, str]


def config_file(folder: Path, user: dict[str, object], **cluster: object) -> Path:
    config = {
        "current-context": "here",
        "contexts": [
            {"name": "other", "context": {"cluster": "x", "user": "y"}},
            {"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "team"}},
        ],
        "clusters": [{"name": "c", "cluster": {"server": "https://10.0.0.1:6443/", **cluster}}],
        "users": [{"name": "u", "user": user}],
    }
    file = folder / "config"
    file.write_text(json.dumps(config))
    return file


def test_the_current_context_of_kubectls_file_is_used(tmp_path: Path) -> None:
    pem = base64.b64encode(b"a certificate").decode()
    user: dict[str, object] = {"token": "secret"}
    file = config_file(tmp_path, user, **{"certificate-authority-data": pem})
    access = access_by({"KUBECONFIG": f"{file}:/elsewhere"})
    assert (access.server, access.namespace) == ("https://10.0.0.1:6443", "team")
    assert access.authorities == "a certificate"
    assert access.login().header == "Bearer secret"
    assert "secret" not in repr(access)


def test_the_account_of_a_pod_is_used_and_its_token_read_again(tmp_path: Path) -> None:
    for name, text in (("token", "first\n"), ("namespace", "team"), ("ca.crt", "a certificate")):
        (tmp_path / name).write_text(text)
    variables = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    access = access_by(variables, tmp_path)
    assert (access.server, access.namespace) == ("https://[fd00::1]:443", "team")
    assert access.login().header == "Bearer first"
    (tmp_path / "token").write_text("second")
    assert access.login().header == "Bearer second"


@each_row(
    ("user", "cluster", "told"),
    [
        ({"exec": {"command": "aws"}}, {}, "its current user has no token"),
        ({"client-certificate-data": "AA=="}, {}, "its current user has no token"),
        ({"token": "a"}, {"insecure-skip-tls-verify": True}, "insecure-skip-tls-verify is not"),
        ({"token": "a"}, {"certificate-authority-data": "?"}, "is no certificate in base64"),
        ({"token": "a"}, {"certificate-authority": "gone.pem"}, "gone.pem cannot be read"),
        ({"tokenFile": "gone"}, {}, "gone cannot be read"),
        ({"token": "a\r\nHost: b"}, {}, "is not a token"),
    ],
)
def test_what_gives_no_safe_access_is_told_with_the_way_out(
    tmp_path: Path, user: dict[str, object], cluster: dict[str, object], told: str
) -> None:
    file = config_file(tmp_path, user, **cluster)
    with pytest.raises(RunError, match=told) as caught:
        access_by({"KUBECONFIG": str(file)}).login()
    assert "engine: exec" in caught.value.hint


@each_row("text", ["", "[]", "{current-context: a}", "{contexts: 5}"])
def test_a_file_without_a_context_is_told(tmp_path: Path, text: str) -> None:
    (tmp_path / "config").write_text(text)
    with pytest.raises(RunError, match="no context of the current context"):
        access_by({"KUBECONFIG": str(tmp_path / "config")})


def test_where_there_is_nothing_both_ways_are_named(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no Kubernetes API is known here") as caught:
        access_by({"HOME": str(tmp_path)}, tmp_path)
    assert "KUBECONFIG" in caught.value.hint


class Answering(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = json.dumps({"metadata": {"name": self.path.rpartition("/")[2]}}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing."""


def certificate(folder: Path) -> tuple[Path, str]:
    """A key with its certificate in one file, and the certificate, which signs itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "cluster")])
    now = datetime.now(UTC)
    address = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(5)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(address, critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = made.public_bytes(serialization.Encoding.PEM)
    secret = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    file = folder / "server.pem"
    file.write_bytes(secret + pem)
    return file, pem.decode()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[str, str]]:
    file, pem = certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answering) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"https://127.0.0.1:{server.server_port}", pem
        server.shutdown()
        thread.join()


def test_only_the_clusters_own_authority_is_believed(
    served: tuple[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    server, pem = served
    access = Access(server=server, namespace="a b", authorities=pem, token="t")
    # what the environment says of certificates is about other services
    (tmp_path / "empty.pem").write_text(certificate(tmp_path)[1])
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "empty.pem"))
    with KubernetesApi(access) as api:
        found = api.read("apis/batch/v1/jobs", "one", Named)
    assert found is not None
    assert found.metadata == {"name": "one"}
    other = Access(server=server, namespace="a", authorities=certificate(tmp_path)[1], token="t")
    with KubernetesApi(other, policy=ONCE) as api, pytest.raises(PublishError, match="not trusted"):
        api.read("apis/batch/v1/jobs", "one", Named)


POD = PodSettings(image=f"a@sha256:{'0' * 64}", volume_claim="c")


def test_no_value_of_a_job_is_read_by_the_shell_of_a_pod() -> None:
    asked = Nodes(count=2, seconds=60, folder="/s", script='/s/a"; rm -rf /', left_out=("n1", "n2"))
    job: Any = job_of("repro-gate-1", POD, asked)
    spec = job["spec"]["template"]["spec"]
    shell, flag, start, script = spec["containers"][0]["command"]
    assert (shell, flag, script) == ("/bin/sh", "-c", asked.script)
    assert asked.script not in start
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    (term,) = spec["affinity"]["nodeAffinity"][required]["nodeSelectorTerms"]
    # the API takes one name for each of these
    assert [field["values"] for field in term["matchFields"]] == [["n1"], ["n2"]]
