"""Files that a training reads outside its commit are told by path and line, once and bounded."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from gate.harness.sources.outside import MAX_KNOWN, OutsideReads

if TYPE_CHECKING:
    from tests.harness.conftest import Harness, Outcome

pytestmark = pytest.mark.torch

TRAINING = """
import os, torch
{read}
weight = torch.nn.Parameter(torch.ones(2))
optimizer = torch.optim.SGD([weight], lr=0.1)
for _ in range(3):
    weight.square().sum().backward()
    optimizer.step()
"""
POINTER = (
    "version https://git-lfs.github.com/spec/v1\n"
    "oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n"
)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "srv"
    folder.mkdir()
    (folder / "x.csv").write_text("1,2\n", encoding="utf-8")
    return folder


def reads(harness: Harness, code: str, **variables: str) -> list[dict[str, Any]]:
    return told(harness.run(TRAINING.format(read=code), **variables))


def told(outcome: Outcome) -> list[dict[str, Any]]:
    assert outcome.code == 0, outcome.stderr
    lines = outcome.lines("sources") if "sources" in outcome.names() else []
    return [line for line in lines if line["kind"] == "read"]


def test_a_file_is_told_with_its_line_its_size_and_its_time(harness: Harness, data: Path) -> None:
    path = data / "x.csv"
    (line,) = reads(harness, f"for _ in range(3): open({str(path)!r}).read()")
    assert (line["call"], line["file"], line["line"]) == (str(path), "script.py", 3)
    assert line["after"] == f"4 {path.stat().st_mtime_ns}"
    assert line["stack"] == ["script.py:3 <module>"]


WAYS = (
    "numpy.loadtxt({path!r}, delimiter=',')",
    "numpy.memmap({path!r}, mode='r')",
    "numpy.fromfile({path!r})",
    "pathlib.Path({path!r}).read_bytes()",
    "os.close(os.open({path!r}, os.O_RDONLY))",
    "open({path!r}, 'r+b').close()",
    "open(os.fsencode({path!r}))",
    "open(os.path.relpath({path!r}))",
    "os.symlink({path!r}, 'link'); open('link')",
    "os.symlink(os.path.dirname({path!r}), 'folder'); open('folder/' + os.path.basename({path!r}))",
)


def test_it_is_seen_however_it_is_opened(harness: Harness, data: Path) -> None:
    paths = [data / str(number) / "x.csv" for number, _ in enumerate(WAYS)]
    for path in paths:
        path.parent.mkdir()
        path.write_text("1,2\n", encoding="utf-8")
    lines = [way.format(path=str(path)) for way, path in zip(WAYS, paths, strict=True)]
    found = reads(harness, "\n".join(("import numpy, pathlib", *lines)))
    assert [line["call"] for line in found] == list(map(str, paths))
    assert [line["line"] for line in found] == list(range(4, 4 + len(WAYS)))


# a mapping, a number that is kept, and one that a program in C has opened; all without a hook
HELD = """
import ctypes
libc = ctypes.CDLL(None)
rows = torch.from_file({mapped!r}, size=1)
number = libc.open({kept!r}.encode(), os.O_RDONLY)
written = libc.open({written!r}.encode(), os.O_RDWR | os.O_CREAT, 0o600)
gone = libc.open({gone!r}.encode(), os.O_RDONLY)
os.remove({gone!r})
"""


def test_what_c_code_holds_open_is_told_without_a_line(harness: Harness, data: Path) -> None:
    names = {name: str(data / name) for name in ("mapped", "kept", "written", "gone")}
    for path in names.values():
        Path(path).write_bytes(b"12345678")
    found = reads(harness, HELD.format(**names))
    assert [(line["call"], line["file"], line["line"]) for line in found] == [
        (names["kept"], "", 0),
        (names["mapped"], "", 0),
    ]


def test_a_worker_of_a_loader_tells_the_line_in_the_dataset(harness: Harness, data: Path) -> None:
    code = f"""
class Rows(torch.utils.data.Dataset):
    def __len__(self): return 4
    def __getitem__(self, index): return len(open({str(data / "x.csv")!r}).read())
list(torch.utils.data.DataLoader(Rows(), num_workers=1))
"""
    outcome = harness.run(TRAINING.format(read=code))
    (file,) = outcome.out.glob("sources-*")
    assert '"line": 6' in file.read_text("utf-8")
    assert '"worker": true' in file.read_text("utf-8")


# each reads something outside the commit, and no file of data is opened before a hook
OUT_OF_SIGHT = (
    "exec(open({folder!r} + '/code.py').read())",
    "runpy.run_path({folder!r} + '/code.py')",
    "sqlite3.connect({folder!r} + '/rows.db').close()",
    "os.listdir({folder!r})",
    "sorted(pathlib.Path({folder!r}).glob('*'))",
    "os.close(os.open({folder!r}, os.O_RDONLY | os.O_DIRECTORY))",
    "os.link({folder!r} + '/code.py', {folder!r} + '/code.txt')",
    "open('/etc/hostname').read()",
    "open('/sys/kernel/mm/transparent_hugepage/enabled').read()",
    "open('/proc/self/cwd/script.py').read()",
)


def unseen(harness: Harness, code: str, **variables: str) -> set[tuple[str, int]]:
    outcome = harness.run(TRAINING.format(read=code), **variables)
    assert outcome.code == 0, outcome.stderr
    lines = outcome.lines("sources") if "sources" in outcome.names() else []
    return {(line["call"], line["line"]) for line in lines if line["kind"] == "unseen"}


def test_a_line_that_no_hook_follows_is_told(harness: Harness, data: Path) -> None:
    (data / "code.py").write_text("1", encoding="utf-8")
    lines = [way.format(folder=str(data)) for way in OUT_OF_SIGHT]
    found = unseen(harness, "\n".join(("import pathlib, runpy, sqlite3", *lines)))
    assert {line for _, line in found} == set(range(4, 4 + len(OUT_OF_SIGHT)))


def test_a_module_of_neither_the_commit_nor_a_package_is_told(harness: Harness, data: Path) -> None:
    (data / "elsewhere.py").write_text("rate = 1", encoding="utf-8")
    search = f"import sys; sys.path.append({str(data)!r})"
    assert unseen(harness, "import json, numpy") == set()
    told = {("import", 0)}
    assert unseen(harness, f"{search}; import elsewhere; sys.path.pop()") == told
    # what is only searched may hold it the next time
    assert unseen(harness, search) == told
    # a compiled one reads what it likes
    compiled = "import json; json.__file__ = os.path.abspath('fast.cpython-311.so')"
    assert unseen(harness, compiled) == told


def test_weights_are_data_whatever_their_name_ends_in(harness: Harness, data: Path) -> None:
    torch.save(torch.ones(1), data / "pretrained.pth")
    (line,) = reads(harness, f"torch.load({str(data / 'pretrained.pth')!r})")
    assert line["call"] == str(data / "pretrained.pth")


UNTOLD = """
import email, json, sqlite3, wave
for name in ("script.py", "/etc/hostname", "/proc/cpuinfo", json.__file__, torch.__file__):
    open(name).read()
for new in (os.environ["REPRO_GATE_OUT"] + "/mine", {folder!r} + "/new"):
    open(new, "w").write("1")
    open(new).read()
try: open("/srv/nothing-there.npy")
except FileNotFoundError: pass
open(os.environ["REPRO_GATE_DATA"] + "/x.csv")
os.close(os.open({folder!r}, os.O_RDONLY))
os.listdir({folder!r})
"""


def test_what_is_declared_the_systems_or_the_runs_own_is_not(harness: Harness, data: Path) -> None:
    declared = data.parent / "data"
    declared.symlink_to(data)
    assert reads(harness, UNTOLD.format(folder=str(data)), REPRO_GATE_DATA=str(declared)) == []


def test_data_that_is_reached_by_a_link_is_declared_where_it_lies(
    harness: Harness, data: Path
) -> None:
    other = data.parent / "srv2"
    other.mkdir()
    (other / "y.csv").write_text("1", encoding="utf-8")
    code = (
        f"os.symlink({str(data / 'x.csv')!r}, 'x.csv'); os.symlink({str(other)!r}, 'folder')\n"
        "open('x.csv'); open('folder/y.csv')"
    )
    (line,) = reads(harness, code, REPRO_GATE_DECLARED=str(data))
    assert line["call"] == str(other / "y.csv")
    assert reads(harness, code, REPRO_GATE_DECLARED=f"{data / 'x.csv'}:{other}") == []


def test_thousands_of_files_are_told_as_their_folders(harness: Harness, data: Path) -> None:
    for number in range(300):
        folder = data / "images" / str(number % 3)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number}.txt").write_text("1", encoding="utf-8")
    code = (
        f"import pathlib\nfor p in sorted(pathlib.Path({str(data)!r}).rglob('*.*')): p.read_text()"
    )
    found = reads(harness, code)
    assert len(found) < 40
    counts = {line["call"]: line["before"] for line in found if line["before"]}
    assert counts[f"{data}/images/"] == "256"
    assert any(line["call"] == f"{data}/x.csv" for line in found)


def test_after_so_many_files_no_more_is_looked_at(tmp_path: Path) -> None:
    outside = OutsideReads(str(tmp_path / "tree"), {})
    for number in range(MAX_KNOWN + 1):
        outside.opened((f"/nowhere/{number}", "w", os.O_WRONLY | os.O_TRUNC))
    # what is no path would raise, if it were looked at
    outside.opened((object(), "r", 0))


def test_a_pointer_of_git_lfs_that_is_read_as_data_is_named(harness: Harness) -> None:
    texts = {"rows.bin": POINTER, "long.bin": POINTER + "x" * 2000, "other.bin": "x" * 130}
    code = "".join(
        f"open('new', 'w').write({text!r}); os.rename('new', {name!r}); open({name!r}).read()\n"
        for name, text in texts.items()
    )
    outcome = harness.run(f"import os\n{code}")
    assert outcome.stderr == "repro-gate: 'rows.bin' is a Git LFS pointer, not its content\n"


def test_what_a_script_raises_and_gets_is_what_it_was(harness: Harness) -> None:
    """Odd arguments, other hooks and events of one's own pass as without the harness."""
    outcome = harness.run(
        "import os, sys\n"
        "seen = []\n"
        "sys.addaudithook(lambda event, args: seen.append(event))\n"
        "for odd in ('/srv/none', 'a\\0b', 10**6, 3.5, None):\n"
        "    try: open(odd)\n"
        "    except Exception as error: print(type(error).__name__, error)\n"
        "sys.audit('open'); sys.audit('open', 1, 2, 3); sys.audit('open', object(), 'r', 'x')\n"
        "print('open' in seen)\n"
    )
    plain = harness.run("print()", PYTHONPATH="")
    assert (outcome.code, outcome.stderr, plain.code) == (0, "", 0)
    assert outcome.stdout.splitlines() == [
        "FileNotFoundError [Errno 2] No such file or directory: '/srv/none'",
        "ValueError embedded null byte",
        "OSError [Errno 9] Bad file descriptor",
        "TypeError expected str, bytes or os.PathLike object, not float",
        "TypeError expected str, bytes or os.PathLike object, not NoneType",
        "True",
    ]


def test_the_folders_of_the_interpreter_are_no_data() -> None:
    outside = OutsideReads("/nowhere", {"HOME": "/", "TMPDIR": ""})
    passed = outside._passed
    assert "/" not in passed
    assert f"{os.path.realpath(sys.prefix)}/" in passed or sys.prefix in {"/usr", "/usr/local"}
    for data in ("/usr/share/nltk_data/x", "/opt/data/x", "/var/lib/rows/x", "/srv/x", "/home/x"):
        assert not data.startswith(passed)
    assert "/usr/local/cuda-13.0/version.json".startswith(passed)
    for own in ("/usr/lib/x", "/usr/share/zoneinfo/UTC", "/dev/x", "/etc/x", "/lib64/x"):
        assert own.startswith(passed)
