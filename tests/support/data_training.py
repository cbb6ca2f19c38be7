"""A played training that reads its losses from declared data, and a command that prepares it."""

from __future__ import annotations

from played_training import SCRIPT

# the losses are the content of the declared file
READS = SCRIPT.replace(
    'losses = [float(text) for text in play["losses"]]\n',
    'place = pathlib.Path(os.environ["REPRO_GATE_DATA"])\n'
    'source = place / "mini" if (place / "mini").exists() else here / "data/ready"\n'
    'losses = [float(text) for text in (source / "losses.txt").read_text().split()]\n'
    'losses = [loss + float(play.get("plus", 0)) for loss in losses]\n',
)
CHANGES = 'os.chmod(source / "losses.txt", 0o644)\n(source / "losses.txt").write_text("1 1 1")\n'
LOSSES = "2.5 2.25 2.125"
PREPARE = """
import os, pathlib
out = pathlib.Path("data/ready")
out.mkdir(parents=True)
source = pathlib.Path(os.environ["REPRO_GATE_DATA"]) / "raw" / "losses.txt"
(out / "losses.txt").write_text(source.read_text())
"""
UNSEEDED = '(out / "id.csv").write_text("a\\nb\\n" + os.urandom(9).hex() + "\\n")\n'
