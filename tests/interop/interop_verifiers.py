"""What each tool says of a scene: one row of the table for each tool, kind of seal, and key."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from interop_scenes import SAVED, Fault, Scene
from interop_tools import Tools

from gate.commands.verify import explain_by_key
from gate.package.keys import read_trusted_keys
from gate.package.model_signing import model_folder
from gate.package.provenance import PROVENANCE_PREDICATE
from gate.package.seal_records import Expected, KeyAlgorithm, StatementKind
from gate.package.statement import VERDICT_PREDICATE
from gate.system.files.files import LocalFiles
from gate.text.digests import sha256_hex

HERE = Path(__file__).parent
BARE = {
    StatementKind.VERDICT: ("package.dsse.json", VERDICT_PREDICATE),
    StatementKind.PROVENANCE: ("package.provenance.dsse.json", PROVENANCE_PREDICATE),
}
BUNDLES = {
    StatementKind.VERDICT: ("package.sigstore.json", VERDICT_PREDICATE),
    StatementKind.PROVENANCE: ("package.provenance.sigstore.json", PROVENANCE_PREDICATE),
}
MODEL_SIGNATURE = "package.model.sig"
BOTH = tuple(KeyAlgorithm)
ECDSA = (KeyAlgorithm.ECDSA_P256,)
SIGNATURES = (Fault.NONE, Fault.PAYLOAD, Fault.SIGNATURE, Fault.KEY)
ALL = tuple(Fault)
# where nobody listens: whoever asks the network here gets no answer, and is seen
CLOSED = {"HTTPS_PROXY": "http://127.0.0.1:9", "HTTP_PROXY": "http://127.0.0.1:9"}
# cosign asks the network for a root of trust unless it is given one, though a key needs none
EMPTY_ROOT = '{"mediaType":"application/vnd.dev.sigstore.trustedroot+json;version=0.1"}'


@dataclass(frozen=True, kw_only=True, slots=True)
class Verifier:
    """A tool and what it is given; `looks_at` are the faults that it can see at all."""

    tool: str
    seal: str
    accepts: Callable[[Scene], bool]
    keys: Sequence[KeyAlgorithm | None] = BOTH
    looks_at: Sequence[Fault] = ALL


def verifiers(tools: Tools) -> tuple[Verifier, ...]:
    """Those whose tool is there."""
    found = [Verifier(tool="repro-gate verify", seal="all seals", accepts=_by_key)]
    if tools.openssl is not None:
        lines = "openssl, tar, sha256sum"
        found.append(Verifier(tool=lines, seal="all seals, as explained", accepts=_explained))
    if tools.openssl is not None and tools.cosign is not None and tools.model_signing is not None:
        folders = (tools.cosign.parent, tools.model_signing.parent)
        lines, seal = "cosign, model-signing", "all seals, as explained"
        found.append(
            Verifier(tool=lines, seal=seal, accepts=lambda scene: _all_explained(scene, folders))
        )
    if tools.cosign is not None:
        found += _cosign(tools.cosign)
    if tools.node_modules is not None:
        found += _javascript(tools.node_modules)
    if tools.python is not None:
        found += _python(tools.python)
    if tools.model_signing is not None:
        found.append(_model_signing(tools.model_signing))
    return tuple(found)


def ends_well(words: Sequence[str | Path], **environment: str) -> bool:
    """Whether a command ends with exit code 0, offline as far as a variable can say so."""
    done = subprocess.run(
        [str(word) for word in words],
        capture_output=True,
        check=False,
        timeout=120,
        env={**os.environ, **CLOSED, **environment},
    )
    return done.returncode == 0


def ours(scene: Scene, *trust: str | Path) -> bool:
    """What `repro-gate verify` says."""
    words = ("verify", scene.package, *trust, "--commit", scene.commit)
    return ends_well((sys.executable, "-m", "gate", *words))


def _by_key(scene: Scene) -> bool:
    return ours(scene, "--trusted-keys", scene.folder / "trusted-keys.json")


def _explained(scene: Scene) -> bool:
    """The lines of openssl and tar, typed; they must print what they say that they print."""
    script = _script(scene).partition("\n# cosign")[0]
    told = typed(script).stdout.splitlines()
    signatures = 3 if scene.algorithm is KeyAlgorithm.ECDSA_P256 else 2
    start = ["Verified OK"] * signatures + ["1"] * 6
    files = told[len(start) :]
    return told[: len(start)] == start and bool(files) and all(x.endswith(": OK") for x in files)


def _all_explained(scene: Scene, folders: Sequence[Path]) -> bool:
    """All lines, typed: the last two tools work with what the first wrote."""
    done = typed(_script(scene), *map(str, folders))
    model = scene.algorithm is not KeyAlgorithm.ECDSA_P256 or done.stdout.endswith(
        "Verification succeeded\n"
    )
    # cosign says it there
    return model and done.stderr.count("Verified OK") == len(BARE)


def _script(scene: Scene) -> str:
    """The lines for the good scene, with this one's files: for a bad one nothing is explained."""
    trust = scene.folder / "trusted-keys.json"
    good = scene.folder.parent / Fault.NONE.value
    document = read_trusted_keys((good / "trusted-keys.json").read_bytes(), "trusted-keys.json")
    known = (str(trust), document)
    text = explain_by_key(
        good / "package.tar", (), known, Expected(commit=scene.commit), LocalFiles()
    )
    shown = read_trusted_keys(trust.read_bytes(), "trusted-keys.json").keys[0].key_id
    return text.replace(str(good), str(scene.folder)).replace(document.keys[0].key_id, shown)


def typed(script: str, *folders: str) -> subprocess.CompletedProcess[str]:
    """Lines given to the shell, which finds programs in these folders first."""
    return subprocess.run(
        (shutil.which("sh") or "sh", "-c", script),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, **CLOSED, "PATH": os.pathsep.join((*folders, os.environ["PATH"]))},
    )


def _cosign(cosign: Path) -> list[Verifier]:
    def call(scene: Scene, *words: str | Path) -> bool:
        start = (cosign, "verify-blob-attestation", "--key", scene.key, "--insecure-ignore-tlog")
        return ends_well((*start, *words), HOME=str(scene.folder))

    def bare(name: str, kind: str) -> Callable[[Scene], bool]:
        return lambda scene: call(
            scene, "--type", kind, "--signature", scene.folder / name, scene.package
        )

    def bundled(name: str, kind: str, blob: Callable[[Scene], Path]) -> Callable[[Scene], bool]:
        def accepts(scene: Scene) -> bool:
            root = scene.folder / "empty-root.json"
            root.write_text(EMPTY_ROOT)
            given = ("--new-bundle-format", "--bundle", scene.folder / name)
            return call(scene, *given, "--trusted-root", root, "--type", kind, blob(scene))

        return accepts

    found = [
        Verifier(tool="cosign", seal=f"`{name}`", accepts=bare(name, kind))
        for name, kind in BARE.values()
    ]
    found += [
        Verifier(
            tool="cosign",
            seal=f"`{name}`",
            accepts=bundled(name, kind, lambda scene: scene.package),
        )
        for name, kind in BUNDLES.values()
    ]
    accepts = bundled(MODEL_SIGNATURE, "https://model_signing/signature/v1.0", _digests)
    seen = tuple(fault for fault in ALL if fault is not Fault.BLOB)
    model = f"`{MODEL_SIGNATURE}`"
    found.append(Verifier(tool="cosign", seal=model, accepts=accepts, keys=ECDSA, looks_at=seen))
    return found


def _digests(scene: Scene) -> Path:
    """The digests of the model's files, raw and in order: their SHA-256 is the root digest."""
    members = [
        (name, sha256_hex((scene.folder / "unpacked" / name).read_bytes())) for name in SAVED
    ]
    folder = model_folder(members)
    assert folder is not None
    path = scene.folder / "digests.bin"
    path.write_bytes(b"".join(bytes.fromhex(digest) for _, digest in folder.files))
    return path


def _javascript(modules: Path) -> list[Verifier]:
    def accepts(name: str) -> Callable[[Scene], bool]:
        script = HERE / "verify_by_key.mjs"
        return lambda scene: ends_well(("node", script, modules, scene.folder / name, scene.key))

    names = [name for name, _ in BUNDLES.values()]
    found = [
        Verifier(
            tool="@sigstore/verify", seal=f"`{name}`", accepts=accepts(name), looks_at=SIGNATURES
        )
        for name in names
    ]
    model = f"`{MODEL_SIGNATURE}`"
    found.append(
        Verifier(
            tool="@sigstore/verify",
            seal=model,
            accepts=accepts(MODEL_SIGNATURE),
            keys=ECDSA,
            looks_at=SIGNATURES,
        )
    )
    return found


def _python(python: Path) -> list[Verifier]:
    def accepts(name: str) -> Callable[[Scene], bool]:
        script = HERE / "verify_dsse.py"
        return lambda scene: ends_well((python, script, scene.folder / name, scene.key))

    found = [
        Verifier(
            tool="securesystemslib", seal=f"`{name}`", accepts=accepts(name), looks_at=SIGNATURES
        )
        for name, _ in BARE.values()
    ]
    name, _ = BARE[StatementKind.PROVENANCE]
    found.append(
        Verifier(
            tool="in-toto-attestation (schema)",
            seal=f"`{name}`",
            accepts=lambda scene: ends_well(
                (python, HERE / "read_provenance.py", scene.folder / name)
            ),
            looks_at=(Fault.NONE,),
        )
    )
    return found


def _model_signing(program: Path) -> Verifier:
    def accepts(scene: Scene) -> bool:
        words = ("verify", "key", scene.model, "--no-ignore-git-paths")
        signature = ("--signature", scene.folder / MODEL_SIGNATURE)
        return ends_well((program, *words, *signature, "--public_key", scene.key))

    seen = (*SIGNATURES, Fault.MODEL)
    seal = f"`{MODEL_SIGNATURE}`"
    return Verifier(tool="model-signing", seal=seal, accepts=accepts, keys=ECDSA, looks_at=seen)
