"""Changed lines of a training for tests, and what reports show of them."""

from __future__ import annotations

from gate.comparison.differences import EventKind, OptimizerSettingChange
from gate.diagnosis.diagnosis import CodePlace, Diagnosis, Suspect, SuspectKind
from gate.diagnosis.touched_lines import shown_change
from gate.evidence.trace import Claim, ShownChange, TraceFinding
from gate.system.git.changes import Change, ChangedLines
from gate.verdict.next_step import ReaderPlace


def hunk(file: str, line: int, before: str = "", after: str = "") -> ChangedLines:
    return ChangedLines(file=file, first=line, last=line, gone=1, before=(before,), after=(after,))


RATE = hunk("train.py", 11, "learning_rate = 1e-3", "learning_rate = 2e-3")
MODEL = hunk("model.py", 40, "x = F.relu(x)", "x = F.gelu(x)")
ADAM = hunk("train.py", 12, "o = Adam(p, lr=0.01)", "o = Adam(p, lr=0.02, betas=(0.9, 0.98))")
DATA = hunk("data.csv", 7, "1.0,2.0", "1.0,2.1")
CONF = hunk("conf.yaml", 1, "scale: 1.0", "scale: 1.5")
README = hunk("README.md", 1)
PLACE = ReaderPlace(config="", out="", baseline="", base_commit="", on_runner=False)
PLAIN = Diagnosis(first_step=1, kind=EventKind.LOSS, subject="loss", cause="it differs", remedy="")
AT_MODEL = Suspect(
    place="model.py:40",
    kind=SuspectKind.UNSEEDED,
    call="random.Random",
    step=1,
    code_place=CodePlace(file="model.py", line=40),
)


LOSS = hunk("loss.py", 5, "return a", "return (a)")
HERE = (("train.py", 11, 0),)


def found(
    *hunks: ChangedLines, drift: bool = True, complete: bool = True, **fields: object
) -> ShownChange | None:
    change = Change(hunks=hunks, complete=complete)
    diagnosis = PLAIN.model_copy(update=fields)
    return shown_change(change, diagnosis, (), ".", drift=drift)


# a value that a data worker computed, at a line that the change did not touch
TAKEN = TraceFinding(
    claim=Claim.OUTSIDE_VALUE,
    sentence="by a worker",
    file="train.py",
    line=30,
    elsewhere=True,
    changed=(RATE,),
)


def setting(before: str, after: str) -> tuple[OptimizerSettingChange, ...]:
    return (OptimizerSettingChange(optimizer=0, name="lr", before=before, after=after),)
