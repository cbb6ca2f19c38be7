"""Gets the tools of others into one folder; what cannot be had is told and left out.

Debian, PyPI and npm are asked as the machine is set up to ask them. cosign is a Debian package
since the release `trixie`; on an older one its file is unpacked from there, and nothing installed.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

RELEASE = "trixie"
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
# the second is imported by the first, which does not ask for it
MODEL_PACKAGES = ("model-signing", "pyopenssl")
PYTHON_PACKAGES = ("securesystemslib", "cryptography", "in-toto-attestation")
NPM_PACKAGES = (
    "@sigstore/bundle@4.0.0",
    "@sigstore/protobuf-specs@0.5.2",
    "@sigstore/verify@3.1.1",
)
INDEX_FORMAT = "$(ORIGIN) $(LABEL) $(COMPONENT) $(REPO_URI)"


class CannotBeHadError(Exception):
    """Why a tool is not here."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tools:
    """Where each tool lies, None for one that cannot be had; `missing` says why."""

    openssl: Path | None
    cosign: Path | None
    model_signing: Path | None
    python: Path | None
    node_modules: Path | None
    versions: tuple[str, ...]
    missing: tuple[str, ...]


def output(words: Sequence[str | Path], cwd: Path | None = None) -> str:
    """What a command prints; `CannotBeHadError` with its last line where it fails."""
    try:
        done = subprocess.run(
            [str(word) for word in words],
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
            cwd=cwd,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotBeHadError(str(error)) from error
    if done.returncode:
        told = (done.stderr or done.stdout).strip().splitlines() or ["no word"]
        raise CannotBeHadError(f"{words[0]}: {told[-1][:200]}")
    return done.stdout


def installed(folder: Path) -> Tools:
    """Everything that can be had, in `folder`, which is kept between calls."""
    folder.mkdir(parents=True, exist_ok=True)
    versions: list[str] = []
    missing: list[str] = []

    def tried(name: str, get: Callable[[Path], tuple[Path, str]]) -> Path | None:
        try:
            place, version = get(folder / name)
        except CannotBeHadError as error:
            missing.append(f"{name}: {error}")
            return None
        versions.append(version)
        return place

    return Tools(
        openssl=tried("openssl", _openssl),
        cosign=tried("cosign", _cosign),
        model_signing=tried("model-signing", _model_signing),
        python=tried("python", _python),
        node_modules=tried("npm", _npm),
        versions=tuple(versions),
        missing=tuple(missing),
    )


def _openssl(_folder: Path) -> tuple[Path, str]:
    place = shutil.which("openssl")
    if place is None:
        raise CannotBeHadError("no openssl command here")
    return Path(place), " ".join(output((place, "version")).split()[:2])


def _model_signing(folder: Path) -> tuple[Path, str]:
    environment = _environment(folder, MODEL_PACKAGES)
    return environment / "bin" / "model_signing", _pip_versions(environment, MODEL_PACKAGES[:1])


def _python(folder: Path) -> tuple[Path, str]:
    environment = _environment(folder, PYTHON_PACKAGES)
    versions = _pip_versions(environment, ("securesystemslib", "in-toto-attestation"))
    return environment / "bin" / "python", versions


def _environment(folder: Path, packages: Sequence[str]) -> Path:
    if not (folder / "bin" / "python").exists():
        output((sys.executable, "-m", "venv", folder))
    pip = folder / "bin" / "pip"
    output((pip, "install", "--quiet", "--disable-pip-version-check", *packages))
    return folder


def _pip_versions(environment: Path, packages: Sequence[str]) -> str:
    code = "import importlib.metadata as m, sys; print(*map(m.version, sys.argv[1:]))"
    versions = output((environment / "bin" / "python", "-c", code, *packages)).split()
    return ", ".join(map(" ".join, zip(packages, versions, strict=True)))


def _npm(folder: Path) -> tuple[Path, str]:
    if shutil.which("node") is None or shutil.which("npm") is None:
        raise CannotBeHadError("no node and npm here")
    quiet = ("--silent", "--no-audit", "--no-fund", "--no-package-lock")
    output(("npm", "install", *quiet, "--prefix", folder, *NPM_PACKAGES))
    return folder / "node_modules", ", ".join(" ".join(one.rsplit("@", 1)) for one in NPM_PACKAGES)


def _cosign(folder: Path) -> tuple[Path, str]:
    place = shutil.which("cosign")
    if place is None:
        unpacked = _unpacked_cosign(folder)
        # Debian's build does not know its own version
        package = max(folder.glob("cosign_*.deb"))
        version = output(("dpkg-deb", "--field", package, "Version")).strip()
        return unpacked, f"cosign {version} (Debian)"
    told = output((place, "version")).splitlines()
    known = (line.split()[-1] for line in told if line.startswith("GitVersion"))
    return Path(place), f"cosign {next(known, '(unknown version)')}"


def _unpacked_cosign(folder: Path) -> Path:
    """The program out of Debian's package, which is fetched and not installed."""
    place = folder / "root" / "usr" / "bin" / "cosign"
    if place.exists():
        return place
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        raise CannotBeHadError("no cosign command, and no apt-get to get it with")
    folder.mkdir(parents=True, exist_ok=True)
    try:
        output(("apt-get", "-q", "download", "cosign"), cwd=folder)
    except CannotBeHadError:
        _download_from_newer(folder)
    package = max(folder.glob("cosign_*.deb"), default=None)
    if package is None:
        raise CannotBeHadError("apt-get downloaded no package")
    output(("dpkg", "-x", package, folder / "root"))
    return place


def _download_from_newer(folder: Path) -> None:
    """From a newer release at the mirror that this machine uses, by a list of its own."""
    told = output(("apt-get", "indextargets", "--format", INDEX_FORMAT, "Created-By: Packages"))
    mirrors = [
        line.split()[3] for line in told.splitlines() if line.startswith("Debian Debian main ")
    ]
    if not mirrors or not KEYRING.exists():
        raise CannotBeHadError(f"not in this release, and no mirror of Debian to ask for {RELEASE}")
    (folder / "lists" / "partial").mkdir(parents=True, exist_ok=True)
    (folder / "archives" / "partial").mkdir(parents=True, exist_ok=True)
    sources = folder / "sources.list"
    sources.write_text(f"deb [signed-by={KEYRING}] {mirrors[0]} {RELEASE} main\n")
    options = (
        f"Dir::Etc::SourceList={sources.resolve()}",
        "Dir::Etc::SourceParts=/dev/null",
        f"Dir::State::Lists={(folder / 'lists').resolve()}",
        f"Dir::Cache={folder.resolve()}",
    )
    asked = [word for option in options for word in ("-o", option)]
    output(("apt-get", "-q", *asked, "update"))
    output(("apt-get", "-q", *asked, "download", "cosign"), cwd=folder)
