"""The targets of `make fuzz`: functions that read bytes and may raise only `GateError`.

Each target covers one reader of untrusted bytes. `seeds` gives the inputs that are mutated.
"""

from __future__ import annotations

import io
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
from attestation_cases import sealed_in
from fuzzed_runs import (
    event_seeds,
    harness_seeds,
    metric_seeds,
    output_seeds,
    read_any_events,
    read_any_harness_file,
    read_any_metrics,
    read_any_output,
    read_any_trackio,
    read_any_wandb,
    trackio_seeds,
    wandb_seeds,
)
from hostile_archives import without_checksums

from gate.baseline.entry import entry_name
from gate.baseline.folder import read_entries, read_entry
from gate.checkpoint.digest import digest_state
from gate.checkpoint.formats.formats import open_state
from gate.checkpoint.formats.safetensors_reader import read_safetensors
from gate.checkpoint.formats.torch_files import read_torch_archive
from gate.checkpoint.formats.zip_archives import read_zip_records
from gate.checkpoint.pickle.calls import StorageNode, TensorNode
from gate.checkpoint.pickle.reader import read_pickle
from gate.checkpoint.state_tree import leaves, value_leaf
from gate.checkpoint.untrusted_files import UntrustedFile, open_untrusted
from gate.data.data_sets import PointerFile
from gate.data.pointers import read_pointers
from gate.data.statistics import FORMATS, data_statistics
from gate.data.tables import ReadingBudget, ReadingLimits
from gate.errors import AttestationError, DataError, GateError, SettingsError
from gate.evidence.lock_readers import read_lock
from gate.evidence.pinned_packages import read_pinned
from gate.isolation.modes import IsolationMode, IsolationSettings
from gate.package.archive import read_archive
from gate.package.envelope import read_envelope
from gate.package.keyless import read_identity_bundle
from gate.package.model_signing import ModelFolder, check_model_statement
from gate.package.provenance import read_provenance
from gate.package.seal_opening import KEPT_MEMBERS, opened_seal
from gate.package.seal_records import PAYLOAD_TYPE, SealFile, StatementKind
from gate.package.statement import read_statement
from gate.pipelines.policy_changes import (
    baseline_changes,
    key_changes,
    root_changes,
    settings_changes,
)
from gate.settings.data import DataKind, FetchSettings
from gate.settings.delivery_sections import PublishSettings, SigningSettings
from gate.settings.load import MINIMAL_FILE, parse_settings
from gate.settings.reach import refuse_reach
from gate.system.files.files import LocalFiles
from gate.text.strict_json import parse_json

MAX_FILE_BYTES = 2**20
MAX_STATE_BYTES = 64 * 2**20
SUFFIXES = {
    "pickle": (".pt",),
    "archive": (".pt",),
    "safetensors": (".safetensors",),
    "json": (".safetensors",),
    "state": (".pt", ".safetensors"),
}
VECTORS = Path(__file__).resolve().parents[1] / "vectors"
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
Target = Callable[[bytes], object]


def read_any_pickle(data: bytes) -> None:
    """Interpret a pickle, walk over the result, and take the bytes of each plain value."""
    for path, node in leaves(read_pickle(data)):
        if not isinstance(node, TensorNode | StorageNode):
            value_leaf(path, node)


def read_any_archive(data: bytes) -> None:
    """Read zip records and the torch archive in them, and digest it."""
    with _opened(data) as file:
        digest_state(
            read_torch_archive(file, read_zip_records(file)), threads=1, max_bytes=MAX_STATE_BYTES
        )


def read_any_safetensors(data: bytes) -> None:
    """Read a safetensors header, and digest what it describes."""
    with _opened(data) as file:
        digest_state(read_safetensors(file), threads=1, max_bytes=MAX_STATE_BYTES)


def read_any_json(data: bytes) -> None:
    """Parse JSON with the strict parser that headers and documents use."""
    parse_json(data, "fuzz")


def read_any_state(data: bytes) -> None:
    """Read a file whose format is detected from its content, and digest it."""
    with (
        _written(data) as path,
        open_state(LocalFiles(), path, "fuzz", max_bytes=MAX_FILE_BYTES) as content,
    ):
        digest_state(content, threads=1, max_bytes=MAX_STATE_BYTES)


def read_any_settings(data: bytes) -> None:
    """Read the settings of a pull request, and compare them with the base's."""
    settings_changes("fuzz", MINIMAL_FILE.encode(), data)
    parse_settings(data, "fuzz")


def read_brought_settings(data: bytes) -> None:
    """Read the settings of a pull request whose base has none.

    Settings that are accepted must reach nothing outside of the checkout.
    """
    settings = parse_settings(data, "fuzz")
    try:
        refuse_reach(settings, "fuzz")
    except SettingsError:
        return
    # listed here again instead of using the table that refuses, which may itself lack an entry
    apart, plain = settings.isolation, IsolationSettings()
    assert not (*settings.train.pass_env, *settings.data, *settings.policy.images)
    assert settings.fetch == FetchSettings()
    assert (settings.signing, settings.publish) == (SigningSettings(), PublishSettings())
    assert not settings.report.history
    assert apart.mode is not IsolationMode.NONE
    update = {"mode": plain.mode, "minimum": plain.minimum}
    assert apart.model_copy(update=update) == plain


def read_any_baseline(data: bytes) -> None:
    """Read an entry that a pull request adds to the baseline, and compare it with the base's."""
    # under its right name, since a wrong one is refused before anything is compared
    folder = {entry_name(read_entry(data, "fuzz")): data}
    baseline_changes("fuzz", {}, folder)
    read_entries(folder, "fuzz")


def read_any_keys(data: bytes) -> None:
    """Read the trusted keys and the trusted root of a pull request, and compare them."""
    key_changes("fuzz", None, data)
    root_changes("fuzz", None, data)


def read_any_lock(data: bytes) -> None:
    """Read a lock file of each kind; an invalid one must give a printable problem, not an error."""
    for name in LOCK_NAMES:
        lock = read_lock(name, data)
        assert lock.problem.isprintable()


def read_any_requirements(data: bytes) -> None:
    """Read a pull request's requirements, and check each line that pip would get.

    Lines are rebuilt from parsed words, so no option, path or URL of the input may be left.
    """
    for package in read_pinned("fuzz", data):
        words = package.line.split(" ")
        assert package.line.isprintable()
        assert package.line.isascii()
        assert not any(word.startswith("-") and not word.startswith("--hash=sha") for word in words)
        assert not set(package.line) & set("/\\@$#%?&{}")
        assert (package,) == read_pinned("again", package.line.encode())


def read_any_data(data: bytes) -> None:
    """Read a file as each data format in turn; a file of another format gives no statistics."""
    with _written(data) as path:
        for suffix in FORMATS:
            data_statistics(
                LocalFiles(), path, f"x{suffix}", ReadingBudget(ReadingLimits(), time.monotonic)
            )


def read_any_pointer(data: bytes) -> None:
    """Read the bytes as each kind of pointer: a `.dvc` file, a `dvc.lock`, Git LFS."""
    for file in POINTER_FILES:
        # suppressed separately: bytes that are no valid `.dvc` file may be a valid LFS pointer
        with suppress(DataError):
            read_pointers((file,), lambda _: data)


def read_any_seal(data: bytes) -> None:
    """Read a seal of either kind, and its statement as if the signature were valid."""
    seal = SealFile(name="fuzz", content=data)
    # a seal of the other kind is refused here, and is read below
    with suppress(AttestationError):
        read_identity_bundle(seal)
    read_any_statement(read_envelope(seal).payload)


def read_any_statement(data: bytes) -> None:
    """Read a payload, as a trusted key may have signed it, with the reader for its kind."""
    kind = opened_seal(SealFile(name="fuzz", content=b""), PAYLOAD_TYPE, data, "").kind
    if kind is StatementKind.VERDICT:
        read_statement(data)
    elif kind is StatementKind.PROVENANCE:
        read_provenance(data)
    else:
        # the files of the statement are in no package, so the check always refuses it in the end
        with suppress(AttestationError):
            check_model_statement(data, ModelFolder(name="model", files=()))


def read_any_package(data: bytes) -> None:
    """Read a package's archive, before any digest is checked."""
    read_archive(io.BytesIO(data), size_bytes=len(data), keep=KEPT_MEMBERS)


def write_any_way(data: bytes) -> None:
    """Write through symbolic links of a hostile commit; nothing outside the clone may change.

    The input has a line `name=destination` for each link, and then the path to write to.
    """
    *links, way = data.decode("utf-8", "surrogateescape").split("\n")[:20]
    with tempfile.TemporaryDirectory() as name:
        top, home = Path(name) / "clone", Path(name) / "home"
        (top / ".git").mkdir(parents=True)
        (home / "below").mkdir(parents=True)
        (home / "kept").write_text("mine")
        for line in links:
            place, _, destination = line.partition("=")
            made = top / _below(place)
            # absolute links lead into the test's folder, never to a folder of this machine
            begin = name if destination[:1] == "/" else made.parent
            leads = Path(os.path.normpath(f"{begin}/{destination}"))
            # git cannot commit a link without a name or below another link, so these are skipped
            with suppress(OSError, ValueError):
                if leads.is_relative_to(name) and made.parent.resolve().is_relative_to(top):
                    made.parent.mkdir(parents=True, exist_ok=True)
                    made.symlink_to(leads if destination[:1] == "/" else destination)
        try:
            for change in (
                lambda path: LocalFiles().write_bytes(path, b"x"),
                LocalFiles().remove_tree,
                LocalFiles().fresh_folder,
                lambda path: LocalFiles().append_bytes(path / "kept", b"x"),
            ):
                with suppress(GateError):
                    change(top / _below(way))
        finally:
            outside = [path.name for path in Path(name).rglob("*") if top not in path.parents]
            assert sorted(outside) == ["below", "clone", "home", "kept"]
            assert (home / "kept").read_text() == "mine"


def _below(path: str) -> str:
    """Return the path without `..` and empty parts, so that only links can lead outside."""
    parts = [part for part in path.replace("\0", "").split("/") if part not in {"", ".", ".."}]
    return "/".join(parts) or "out"


TARGETS: dict[str, Target] = {
    "links": write_any_way,
    "pickle": read_any_pickle,
    "archive": read_any_archive,
    "safetensors": read_any_safetensors,
    "json": read_any_json,
    "state": read_any_state,
    "settings": read_any_settings,
    "brought-settings": read_brought_settings,
    "baseline": read_any_baseline,
    "keys": read_any_keys,
    "locks": read_any_lock,
    "requirements": read_any_requirements,
    "data": read_any_data,
    "pointers": read_any_pointer,
    "seals": read_any_seal,
    "statements": read_any_statement,
    "packages": read_any_package,
    "events": read_any_events,
    "trackio": read_any_trackio,
    "wandb": read_any_wandb,
    "metrics": read_any_metrics,
    "output": read_any_output,
    "harness": read_any_harness_file,
}
POINTER_FILES = (
    PointerFile(name="x", kind=DataKind.DVC, path="data/x.dvc"),
    PointerFile(name="x", kind=DataKind.DVC, path="dvc.lock"),
    PointerFile(name="x", kind=DataKind.LFS, path="data/x.bin"),
)
MD5 = b"a" * 32
POINTERS = (
    b"wdir: ..\nouts:\n- md5: " + MD5 + b".dir\n  size: 6\n  nfiles: 2\n  hash: md5\n  path: x\n",
    b"schema: '2.0'\nstages:\n  a:\n    outs:\n    - {path: x, md5: " + MD5 + b", size: 1}\n",
    b"version https://git-lfs.github.com/spec/v1\noid sha256:" + 2 * MD5 + b"\nsize 12\n",
)
LOCK_NAMES = ("uv.lock", "poetry.lock", "Pipfile.lock", "requirements.txt", "conda-explicit.txt")
LOCKS = (
    (
        b'version = 1\n[[package]]\nname = "a"\nversion = "1"\nsource = {git = "https://x/y#00"}\n'
        b'sdist = {url = "https://x/a.tar.gz", hash = "sha256:00"}\nwheels = [{hash = "md5:00"}]\n'
    ),
    b'[[package]]\nname = "a"\nversion = "1"\nfiles = [{file = "a.whl", hash = "sha256:00"}]\n',
    b'{"default": {"a": {"hashes": ["sha256:00"], "version": "==1"}}, "develop": {}}',
    b"a==1 \\\n  --hash=sha256:00\nb[x] @ https://x/b.whl#sha256=00 ; python_version < '4'\n",
    b"@EXPLICIT\nhttps://x/linux-64/a-1-0.conda#00\n",
)
SHA256 = b"--hash=sha256:" + b"0f" * 32
REQUIREMENTS = (
    b"# c\na==1.0rc1 \\\n  " + SHA256 + b" \\\n  --hash=sha512:" + b"0f" * 64 + b"\n",
    b"a[b, c]===1!1.0.post1+x.1 ; python_version < '3.12' and (os_name == \"nt\" or "
    b"sys_platform not in 'linux') " + SHA256 + b"\n",
)
# Every key that reaches outside, in YAML's flow style, in which a mutation easily moves it.
BROUGHT = (
    MINIMAL_FILE.encode(),
    (
        b"version: 1\ntrain: {command: x, max_steps: 1, pass_env: [A], device: cuda}\n"
        b"data: [{path: /srv/x, as: y, at: z}]\nfetch: {cache: /srv/x}\n"
    ),
    (
        b"version: 1\ntrain: {command: x, max_steps: 1}\nisolation: {mode: uid, network: true}\n"
        b"signing: {trusted_keys: x}\npublish: {mlflow: {uri: 'https://x'}}\n"
        b"policy: {images: [x]}\nreport: {history: true, gate_id: x}\n"
    ),
)
WAYS = (
    b"out=../home\nout",
    b"out=../home\nout/kept",
    b"out=/home\na=out\na/below",
    b"a=b\nb=a\na/x",
    b"a/b=../..\na/b/home/kept",
    b"out=.git\nout/config",
)
WRITTEN_HERE = {
    "links": WAYS,
    "locks": LOCKS,
    "requirements": REQUIREMENTS,
    "pointers": POINTERS,
    "brought-settings": BROUGHT,
}
DOCUMENTS = {
    "settings": ("**/repro-gate.yml", MINIMAL_FILE.encode()),
    # there is no small valid entry, so the examples' entries are the only seeds
    "baseline": ("**/baseline/*.json", b""),
    "keys": (
        "**/trusted-keys.json",
        b'{"keys": [], "schema_version": "repro-gate.trusted-keys/1"}',
    ),
}


@contextmanager
def _written(data: bytes) -> Iterator[Path]:
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        yield Path(file.name)


@contextmanager
def _opened(data: bytes) -> Iterator[UntrustedFile]:
    with (
        _written(data) as path,
        open_untrusted(LocalFiles(), path, "fuzz", max_bytes=MAX_FILE_BYTES) as file,
    ):
        yield file


def seeds(target: str) -> Iterator[bytes]:
    """Return the inputs that are mutated for a target.

    For checkpoints these are the test vectors, or the part that the target reads. For documents
    they are the files of the examples.
    """
    if target in WRITTEN_HERE:
        yield from WRITTEN_HERE[target]
        return
    if target in MADE_HERE:
        yield from MADE_HERE[target]()
        return
    if target in DOCUMENTS:
        pattern, smallest = DOCUMENTS[target]
        if smallest:
            yield smallest
        yield from (path.read_bytes() for path in sorted(EXAMPLES.glob(pattern)))
        return
    for path in sorted(VECTORS.iterdir()):
        if path.suffix not in SUFFIXES[target]:
            continue
        data = path.read_bytes()
        if target == "json":
            yield data[8 : 8 + int.from_bytes(data[:8], "little")]
        else:
            # without checksums, or a mutation would be refused before the reader sees it
            yield _pickle_in(path) if target == "pickle" else without_checksums(data)


def _pickle_in(path: Path) -> bytes:
    with open_untrusted(LocalFiles(), path, path.name, max_bytes=MAX_FILE_BYTES) as file:
        records = read_zip_records(file)
        record = next(row for name, row in records.items() if name.endswith("/data.pkl"))
        return file.read_at(record.start, record.size_bytes)


def _data_files() -> Iterator[bytes]:
    yield b'x,label\n1.5,"a"\n,b\n'
    yield b'{"x": 1.5, "label": "a"}\n{"x": null}\n'
    numbers, labels = np.arange(6.0).reshape(2, 3), np.array([1, 0])
    for array in (numbers, labels):
        file = io.BytesIO()
        np.save(file, array)
        yield file.getvalue()
    file = io.BytesIO()
    np.savez_compressed(file, x=numbers, y=labels)
    yield file.getvalue()


def _sealed_files(target: str) -> Iterator[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        sealed = sealed_in(Path(folder))
        if target == "packages":
            yield sealed.path.read_bytes()
            return
        for seal in sealed.seals:
            yield seal.content if target == "seals" else read_envelope(seal).payload


MADE_HERE: dict[str, Callable[[], Iterator[bytes]]] = {
    "data": _data_files,
    "seals": lambda: _sealed_files("seals"),
    "statements": lambda: _sealed_files("statements"),
    "packages": lambda: _sealed_files("packages"),
    "events": event_seeds,
    "trackio": trackio_seeds,
    "wandb": wandb_seeds,
    "metrics": metric_seeds,
    "output": output_seeds,
    "harness": harness_seeds,
}
