"""Measure packing and verifying a large state beside hashing it. `make bench-package`.

Every number is the fastest of several rounds. In each round all ways take turns, each as a whole
process on one machine. The program prints a Markdown page; `--out FILE` also writes it to a file.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from measured_processes import Arms, Taken, fastest, load, processor, program, run, write_page

ROUNDS = 5
QUIET_LOAD = 1.0
TOTAL_BYTES = 1_800_000_000
TENSORS = 300
HASHED = "two SHA-256 of the file, a thread each"
TELL = """
status = open('/proc/self/status').read()
print(time.perf_counter() - begun, status.partition('VmHWM:')[2].split()[0])
"""
BEGIN = """
import sys, time
from pathlib import Path
begun = time.perf_counter()
"""
TWO_HASHES = (
    BEGIN
    + """
import hashlib, threading
def digest():
    with open(sys.argv[1], 'rb', buffering=0) as file:
        hashlib.file_digest(file, 'sha256')
threads = [threading.Thread(target=digest) for _ in range(2)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""
    + TELL
)
# Remove the target first. Overwriting a file would wait until its old pages are written back, which
# a gate call never does, because it writes a new file.
NEW = "Path(sys.argv[2]).unlink(missing_ok=True)\n"
COPY = "import sys\nfrom pathlib import Path\n" + NEW + BEGIN
COPY += "import shutil; shutil.copyfile(sys.argv[1], sys.argv[2])" + TELL
PACK = """
import sys, time
from pathlib import Path
from gate.system.files.files import LocalFiles
from gate.package.packing import pack
from gate.text.package_names import STATE_MEMBER
from gate.package.seal_records import PackageMember
target = Path(sys.argv[2])
target.unlink(missing_ok=True)
begun = time.perf_counter()
state = Path(sys.argv[1])
files = LocalFiles()
with target.open('wb') as stream:
    pack([PackageMember(name=STATE_MEMBER, path=state)], path=target, target=stream, files=files)
"""
PACK += TELL
BYTES = """
import sys, time
from pathlib import Path
from gate.package.archive import read_archive
from gate.package.ustar import SUMS_NAME
{more}
begun = time.perf_counter()
package = Path(sys.argv[1])
with package.open('rb') as stream:
    read_archive(stream, size_bytes=package.stat().st_size, keep=frozenset({{SUMS_NAME}}))
{then}
"""
ROOTS = """
from gate.system.files.files import LocalFiles
from gate.checkpoint.digest import digest_state
from gate.package.saved_states import open_package
"""
RECOMPUTED = """
with open_package(LocalFiles(), package) as opened:
    digest_state(opened.captured(), exclusions=())
"""
KEY = """
import sys
from pathlib import Path
from gate.package.keys import generate_private_key, private_pem, public_pem
key = generate_private_key()
Path(sys.argv[1], 'key.pem').write_bytes(private_pem(key, None, allow_plain=True))
Path(sys.argv[1], 'public.pem').write_bytes(public_pem(key.public_key()))
"""


def make_state(path: Path, total_bytes: int) -> None:
    """Write a safetensors file of random float32 tensors, with the harness's metadata."""
    size_bytes = total_bytes // TENSORS // 4 * 4
    header: dict[str, object] = {"__metadata__": {"repro_gate_names": "paths"}}
    for number in range(TENSORS):
        header[f"model/layer.{number:03}.weight"] = {
            "dtype": "F32",
            "shape": [size_bytes // 4],
            "data_offsets": [number * size_bytes, (number + 1) * size_bytes],
        }
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _ in range(TENSORS):
            file.write(os.urandom(size_bytes))


def ways(folder: Path, signing: str | None) -> dict[str, tuple[str, ...]]:
    """Return each way that is installed here; `signing` is an interpreter with model-signing."""
    state, package = folder / "model" / "state.safetensors", folder / "package.tar"
    found = {
        HASHED: program(TWO_HASHES, state),
        "the file copied": program(COPY, state, folder / "copy"),
        "this gate: packed": program(PACK, state, package),
        "this gate: every byte of the package verified": program(
            BYTES.format(more="", then=TELL), package
        ),
        "this gate: and its content roots": program(
            BYTES.format(more=ROOTS, then=RECOMPUTED + TELL), package
        ),
    }
    if signing is not None:
        model, seal = str(folder / "model"), str(folder / "model.sig")
        how = (signing, "-m", "model_signing")
        key, public = str(folder / "key.pem"), str(folder / "public.pem")
        found["`model_signing sign`"] = (
            *(*how, "sign", "key", model, "--private_key", key, "--signature", seal),
        )
        found["`model_signing verify`"] = (
            *(*how, "verify", "key", model, "--public_key", public, "--signature", seal),
        )
    return found


def table(taken: Mapping[str, Taken]) -> Iterator[str]:
    """Return a table with a row per way, and its time as a multiple of hashing the file."""
    yield "| way | s | times hashing | memory MB |"
    yield "|---|---|---|---|"
    hashed = taken[HASHED].work_seconds
    for name, one in taken.items():
        memory = f"{int(one.told[0]) / 1000:.0f}" if one.told else ""
        ratio = one.work_seconds / hashed
        yield f"| {name} | {one.work_seconds:.2f} | {ratio:.2f} | {memory} |"


def page(folder: Path, rounds: int, scale: int, signing: str | None) -> Iterator[str]:
    """Return the whole page, line by line as it is measured."""
    total = TOTAL_BYTES // scale
    (folder / "model").mkdir()
    make_state(folder / "model" / "state.safetensors", total)
    run(program(KEY, folder))
    cores = len(os.sched_getaffinity(0))
    arms: Arms = ways(folder, signing)
    yield "# Packing and verifying a state, on a CPU\n"
    yield f"Written by `make bench-package`; the fastest of {rounds} rounds, in turns. A state of"
    yield f"{total / 1e9:g} GB in {TENSORS} tensors, in the page cache; none waits for the disk, as"
    yield "a gate call does at the end. What is written is a new file each time. Of this gate the"
    yield "time of its work is told, of others that of the whole process.\n"
    yield (
        f"{time.strftime('%Y-%m-%d')}. {processor()}, {cores} cores. Load at the start: {load()}."
    )
    if os.getloadavg()[0] > QUIET_LOAD:
        yield "Others used the machine too: its ratios say more than its seconds."
    yield ""
    yield from table(fastest(arms, rounds))
    yield (
        "\nA package needs two digests of each byte, the file's and its own: packing cannot take "
        f"less than these and the copy, shared by {cores} cores. Content roots are a third: on two "
        "cores verifying them too cannot take less than one and a half times the two."
    )
    yield f"\nLoad of the machine at the end (1, 5, 15 minutes): {load()}."


def main() -> None:
    """Measure, print the page, and write it to `--out` if that is given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--scale", type=int, default=1, help="the state so many times smaller")
    parser.add_argument("--signing", help="an interpreter that has model-signing")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        write_page(page(Path(name), options.rounds, options.scale, options.signing), options.out)


if __name__ == "__main__":
    main()
