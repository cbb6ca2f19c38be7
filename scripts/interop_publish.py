"""Check publishing with third-party programs: a registry, skopeo and an MLflow server.

`make interop-publish` installs them and runs this script. It prints one row per check and ends with
exit code 1 if a check fails. A missing program is named, and its checks are skipped.
"""

from __future__ import annotations

import argparse
import datetime as dt
import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

ROOT: Final = Path(__file__).resolve().parents[1]
GATE: Final = Path(sys.executable).with_name("repro-gate")
PASSPHRASE: Final = "a pass phrase of some length"  # noqa: S105 - of keys that this script makes
START_SECONDS: Final = 90
READ_BACK: Final = Path(__file__).with_name("mlflow_read_back.py")
# report.gate_id in the settings of examples/digits
GATE_ID: Final = "digits"
MISSING: Final = "not here (Debian has a package of that name): its checks are left out"


def say(line: str) -> None:
    """Print a line and flush it, because a check may take a minute."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


class Checks:
    """Prints one row per check as it ends, and counts those that failed."""

    def __init__(self) -> None:
        self.failed = 0

    def row(self, tool: str, what: str, *, holds: bool, told: str = "") -> None:
        """Print the row of a check; `told` is printed below it if the check failed."""
        self.failed += not holds
        say(f"{'ok  ' if holds else 'FAIL'}  {tool:<16} {what}")
        if not holds and told:
            say(f"      {told.strip()[-2000:]}")


def run(
    *words: str | Path, folder: Path | None = None, more: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end with `more` variables; the caller judges its exit code."""
    environment = {**os.environ, "REPRO_GATE_PASSPHRASE": PASSPHRASE, **(more or {})}
    return subprocess.run(
        [str(word) for word in words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def well(*words: str | Path, folder: Path | None = None) -> str:
    """Run a program that must succeed and return its output; ends the script if it fails."""
    done = run(*words, folder=folder)
    if done.returncode:
        raise SystemExit(f"{words[0]} ended with {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout.strip()


def free_port() -> int:
    """Return a free port on loopback; another process may take it before it is used."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextmanager
def server(port: int, *words: str | Path, log: Path) -> Iterator[None]:
    """Run a program for the length of the block, once it listens on `port`."""
    variables = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true"}
    with log.open("wb") as file:
        started = subprocess.Popen(
            [str(word) for word in words], stdout=file, stderr=file, env=variables
        )
    try:
        until = time.monotonic() + START_SECONDS
        while started.poll() is None and time.monotonic() < until:
            with socket.socket() as knocking:
                if knocking.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        else:
            raise SystemExit(f"{words[0]} did not start:\n{log.read_text()[-3000:]}")
        yield
    finally:
        started.terminate()
        started.wait(30)


@contextmanager
def registry(folder: Path, name: str, **more: object) -> Iterator[str]:
    """Run a separate registry with its own storage; yield its address.

    `more` adds sections to its configuration.
    """
    port = free_port()
    config: dict[str, Any] = {
        "version": "0.1",
        "log": {"level": "error", "accesslog": {"disabled": True}},
        "storage": {"filesystem": {"rootdirectory": str(folder / name)}},
        **more,
    }
    config["http"] = {"addr": f"127.0.0.1:{port}", **config.get("http", {})}
    path = folder / f"{name}.json"
    path.write_text(json.dumps(config))
    with server(port, "docker-registry", "serve", path, log=folder / f"{name}.log"):
        yield f"127.0.0.1:{port}"


def project(folder: Path, oci: str, mlflow: str) -> str:
    """Create a repository with examples/digits and a baseline of this machine; return its commit.

    `oci` and `mlflow` are the places to publish to; empty for a service that is not running.
    """
    shutil.copytree(ROOT / "examples" / "digits", folder)
    shutil.copytree(ROOT / "examples" / "data", folder.parent / "data")
    settings = folder / "repro-gate.yml"
    publish = f"  oci: {oci}\n" if oci else ""
    publish += (
        f"  mlflow: {{uri: '{mlflow}', experiment: interop, registered_model: digits}}\n"
        if mlflow
        else ""
    )
    settings.write_text(f"{settings.read_text()}\npublish:\n{publish}isolation: {{mode: none}}\n")
    top = folder.parent
    well("git", "init", "-q", top)
    well("git", "config", "user.email", "interop@example.org", folder=top)
    well("git", "config", "user.name", "interop", folder=top)
    well("git", "add", ".", folder=top)
    well("git", "commit", "-qm", "the example", folder=top)
    well(GATE, "baseline", "record", "-q", folder=folder)
    well("git", "add", ".", folder=top)
    well("git", "commit", "-qm", "the baseline", folder=top)
    return well("git", "rev-parse", "HEAD", folder=top)


def verify(package: Path, keys: Path, commit: str) -> subprocess.CompletedProcess[str]:
    """Run `repro-gate verify` on a package with its seals."""
    trust = keys / "trusted-keys.json"
    return run(GATE, "verify", package, "--trusted-keys", trust, "--commit", commit)


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def skopeo_copy(reference: str, folder: Path) -> None:
    """Copy an artifact with skopeo, and rename its layers to the names in their annotations."""
    raw = folder / "raw"
    well("skopeo", "copy", "-q", "--src-tls-verify=false", f"docker://{reference}", f"dir:{raw}")
    manifest = json.loads((raw / "manifest.json").read_text())
    for layer in manifest["layers"]:
        name = layer["annotations"]["org.opencontainers.image.title"]
        shutil.move(raw / layer["digest"].removeprefix("sha256:"), folder / name)
    shutil.rmtree(raw)


def check_skopeo(checks: Checks, place: str, commit: str, out: Path, keys: Path) -> None:
    """Copy package and seals with skopeo; the gate must verify them, and refuse a flipped bit."""
    folder = out.parent / "skopeo"
    folder.mkdir()
    shown = ("skopeo", "inspect", "--raw", "--tls-verify=false")
    raw = run(*shown, f"docker://{place}:{tag_of(commit)}").stdout.encode()
    digest = hashlib.sha256(raw).hexdigest()
    comment = (out / "comment.md").read_text()
    checks.row("skopeo inspect", "the tag has the comment's digest", holds=digest in comment)
    skopeo_copy(f"{place}:{tag_of(commit)}", folder)
    index = json.loads(well(*shown, f"docker://{place}:sha256-{digest}"))
    for row in index["manifests"]:
        skopeo_copy(f"{place}@{row['digest']}", folder)
    names = sorted(path.name for path in folder.iterdir())
    same = all(digest_of(folder / name) == digest_of(out / name) for name in names)
    sealed = {"package.tar", "package.dsse.json", "package.sigstore.json"} <= set(names)
    checks.row("skopeo copy", "package and seals, byte for byte", holds=same and sealed)
    found = verify(folder / "package.tar", keys, commit)
    checks.row("skopeo copy", "verify takes them", holds=not found.returncode, told=found.stderr)
    package = folder / "package.tar"
    content = bytearray(package.read_bytes())
    content[len(content) // 2] ^= 1
    package.write_bytes(content)
    found = verify(package, keys, commit)
    checks.row("skopeo copy", "verify refuses a flipped bit", holds=found.returncode == 1)


def check_fetch(checks: Checks, place: str, commit: str, keys: Path, project: Path) -> None:
    """Check `repro-gate fetch`: by name, verified, into an existing folder, and another commit."""
    folder = keys.parent / "fetched"
    found = run(GATE, "fetch", "HEAD", "--out", folder, folder=project)
    checks.row("docker-registry", "fetch HEAD", holds=not found.returncode, told=found.stderr)
    found = verify(folder / "package.tar", keys, commit)
    checks.row("docker-registry", "verify takes it", holds=not found.returncode, told=found.stderr)
    found = run(GATE, "fetch", commit, "--gate-id", GATE_ID, "--from", place, "--out", folder)
    checks.row("docker-registry", "fetch replaces nothing", holds="there already" in found.stderr)
    found = run(GATE, "fetch", "0" * 40, "--from", place, "--out", keys.parent / "none")
    checks.row("docker-registry", "fetch of another commit ends", holds=found.returncode == 3)  # noqa: PLR2004 - an error


def check_copy(checks: Checks, place: str, commit: str, folder: Path) -> None:
    """Copy the package to a registry with TLS and a login; `fetch` must need both to get it."""
    try:
        import crypt  # noqa: PLC0415 - not in each Python that this project supports
    except ImportError:
        say("-     docker-registry  a login: this Python makes no such hash")
        return
    coded = crypt.crypt("hush-hush", crypt.mksalt(crypt.METHOD_BLOWFISH))  # noqa: S324 - bcrypt
    (folder / "htpasswd").write_text(f"robot:{coded}\n")
    host = socket.gethostname()
    certificate(folder, host)
    tls = {"certificate": str(folder / "tls.pem"), "key": str(folder / "tls-key.pem")}
    auth = {"htpasswd": {"realm": "interop", "path": str(folder / "htpasswd")}}
    with registry(folder, "copy", auth=auth, http={"tls": tls}) as address:
        copy = f"{address}/copied/runs"
        tags = (tag_of(commit), seals_tag(place, commit))
        for tag in tags:
            options = ("-q", "--all", "--src-tls-verify=false", "--dest-tls-verify=false")
            words = ("--dest-creds", "robot:hush-hush", f"docker://{place}:{tag}")
            well("skopeo", "copy", *options, *words, f"docker://{copy}:{tag}")
        named = f"{host}:{address.partition(':')[2]}/copied/runs"
        login = {
            "REPRO_GATE_REGISTRY_USER": "robot",
            "REPRO_GATE_REGISTRY_PASSWORD": "hush-hush",
            "REQUESTS_CA_BUNDLE": str(folder / "tls.pem"),
        }
        for what, changes, told in (
            ("TLS and a login: fetch", {}, ""),
            ("a wrong password is refused", {"REPRO_GATE_REGISTRY_PASSWORD": "x"}, "answered 401"),
            ("so is an unknown certificate", {"REQUESTS_CA_BUNDLE": ""}, "not trusted here"),
        ):
            out = folder / f"copied-{len(told)}"
            asked = ("fetch", commit, "--gate-id", GATE_ID, "--from", named, "--out", out)
            found = run(GATE, *asked, more={**login, **changes})
            right = told in found.stderr and bool(found.returncode) == bool(told)
            checks.row("docker-registry", what, holds=right, told=found.stderr)


def tag_of(commit: str) -> str:
    """Return the tag of the example's package."""
    return f"commit-{commit}-{GATE_ID}"


def seals_tag(place: str, commit: str) -> str:
    """Return the tag that lists a package's seals in a registry without the referrers API.

    The OCI distribution specification calls it the referrers tag: `sha256-` and the digest of the
    package's manifest.
    """
    asked = ("inspect", "--raw", "--tls-verify=false", f"docker://{place}:{tag_of(commit)}")
    return f"sha256-{hashlib.sha256(run('skopeo', *asked).stdout.encode()).hexdigest()}"


def certificate(folder: Path, host: str) -> None:
    """Write a self-signed certificate for `host`, and its key, to `folder`."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    form = serialization
    (folder / "tls.pem").write_bytes(made.public_bytes(form.Encoding.PEM))
    (folder / "tls-key.pem").write_bytes(
        key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())
    )


def check_mlflow(checks: Checks, python: Path, uri: str, commit: str, out: Path) -> None:
    """Read the run back with MLflow's client; compare numbers bit by bit and files by digest."""
    evidence = json.loads((out / "evidence" / "strict-1" / "evidence.json").read_text())
    expected = {
        "commit": commit,
        "metrics": {
            series["name"]: {str(point["step"]): point["hex"] for point in series["points"]}
            for series in evidence["metrics"]
        },
        "files": {path.name: digest_of(path) for path in out.glob("package.*")},
    }
    done = run(python, READ_BACK, uri, json.dumps(expected))
    if done.returncode:
        checks.row("mlflow client", "reads the run back", holds=False, told=done.stderr)
        return
    for what, holds in json.loads(done.stdout.splitlines()[-1]).items():
        checks.row("mlflow client", what, holds=holds)


def started(mlflow: Path, folder: Path, stack: ExitStack) -> tuple[str, str]:
    """Start registry and tracking server; return the registry's place and the server's address.

    Either is empty if its program is not installed.
    """
    place = uri = ""
    if shutil.which("docker-registry"):
        place = f"{stack.enter_context(registry(folder, 'first'))}/team/runs"
    else:
        say(f"-     docker-registry  {MISSING}")
    if (mlflow / "mlflow").exists():
        port = free_port()
        words = ("server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1")
        store = (
            *("--backend-store-uri", f"sqlite:///{folder}/mlflow.db"),
            *("--artifacts-destination", folder / "artifacts"),
        )
        running = server(port, mlflow / "mlflow", *words, *store, log=folder / "mlflow.log")
        stack.enter_context(running)
        uri = f"http://127.0.0.1:{port}"
    else:
        say("-     mlflow           could not be installed: its checks are left out")
    return place, uri


def main() -> int:
    """Run all checks and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mlflow", type=Path, required=True, help="programs of MLflow's own venv")
    mlflow = parser.parse_args().mlflow.absolute()
    checks = Checks()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="interop-")))
        place, uri = started(mlflow, folder, stack)
        if not place and not uri:
            return 0
        work = folder / "repository" / "digits"
        commit = project(work, place, uri)
        keys, out = folder / "keys", folder / "out"
        well(GATE, "keys", "generate", "--out", keys)
        sealed = ("--signing-key", keys / "signing-key.pem", "--out", out)
        done = run(GATE, "gate", *sealed, folder=work)
        checks.row(
            "gate", "a sealed pass", holds=not done.returncode, told=done.stdout + done.stderr
        )
        checks.row(
            "gate", "nothing failed", holds="not-published" not in done.stdout, told=done.stdout
        )
        if place:
            check_fetch(checks, place, commit, keys, work)
        if place and shutil.which("skopeo"):
            check_skopeo(checks, place, commit, out, keys)
            check_copy(checks, place, commit, folder)
        elif place:
            say(f"-     skopeo           {MISSING}")
        if uri:
            check_mlflow(checks, mlflow / "python", uri, commit, out)
    say(f"{checks.failed} failed" if checks.failed else "all held")
    return 1 if checks.failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
