"""What tasks on nodes print reaches the gate whole, however their files grow."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from gate.isolation.node_steps import CHUNK_BYTES
from gate.isolation.own_programs import CLIENT

LINES = [f"rank {{}} line {number}\n".encode() for number in range(200)]


def test_lines_that_are_written_in_pieces_are_handed_on_once_and_whole(tmp_path: Path) -> None:
    code = f"import sys; sys.path += sys.argv[1:-4]; {CLIENT}(*sys.argv[-4:])"
    words = (sys.executable, "-c", code, *sys.path, str(tmp_path), "2", "1", "train")
    with subprocess.Popen(words, stdout=subprocess.PIPE) as client:
        while not (tmp_path / "step-1").exists():
            time.sleep(0.01)
        texts = [b"".join(LINES).replace(b"{}", b"%d" % rank) for rank in range(2)]
        # longer than one reading, and without an end of line
        texts[1] += CHUNK_BYTES * b"x"
        with (
            (tmp_path / "step-1.0.out").open("wb") as one,
            (tmp_path / "step-1.1.out").open("wb") as other,
        ):
            for start in range(0, len(texts[1]), 1999):
                for file, text in ((one, texts[0]), (other, texts[1])):
                    file.write(text[start : start + 1999])
                    file.flush()
                time.sleep(0.003)
        for rank in range(2):
            (tmp_path / f"step-1.{rank}.exit").write_text("0")
        assert client.stdout is not None
        printed = client.stdout.read()
        assert client.wait() == 0
    of_rank = [line for line in printed.splitlines(keepends=True) if line.startswith(b"rank 0")]
    assert b"".join(of_rank) == texts[0]
    assert printed.replace(texts[0], b"").count(b"x") == CHUNK_BYTES
    assert sorted(printed) == sorted(b"".join(texts))
    assert (tmp_path / "step-1.end").exists()
