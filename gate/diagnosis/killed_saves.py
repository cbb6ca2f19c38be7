"""Put into words what runs left that were killed inside the save of their checkpoint."""

from __future__ import annotations

from typing import Final

from gate.comparison.differences import EventKind
from gate.diagnosis.diagnosis import CauseClass, Diagnosis, ResumeResult
from gate.evidence.observations import KilledSave, LeftBy

WRITE_BESIDE: Final = (
    # os.replace is atomic within one file system. fsync makes the data durable before the rename.
    "Save under another name in the same folder, call os.fsync, and rename it with os.replace."
)


def diagnose_torn(result: ResumeResult, torn: KilledSave) -> Diagnosis:
    """Diagnose a save that leaves no complete checkpoint when it is killed."""
    details = "; ".join(kill_words(kill, result.checkpoint) for kill in result.kills)
    return Diagnosis(
        first_step=torn.step,
        kind=EventKind.STATE,
        subject=result.checkpoint,
        cause=torn_words(torn, result.checkpoint),
        remedy=WRITE_BESIDE,
        cause_class=CauseClass.RESUME,
        details=f"{details[:1].upper()}{details[1:]}.",
    )


def torn_words(torn: KilledSave, checkpoint: str) -> str:
    """Return a clause that names the saving line and what a kill inside it destroys."""
    who = f"{torn.file}:{torn.line}" if torn.line else "the training"
    if torn.left is LeftBy.LOST:
        return f"{who} writes {torn.path} when the old {checkpoint} is gone already"
    in_place = " in place" if torn.in_place else ""
    return (
        f"{who} writes {torn.path}{in_place}, and a kill inside torch.save leaves {checkpoint} torn"
    )


def kill_words(kill: KilledSave, checkpoint: str) -> str:
    """Return what one killed run left, as a clause."""
    when = f"killed after byte {kill.byte:,} of {kill.size_bytes:,}"
    words = {
        LeftBy.COMPLETE: f"{checkpoint} is complete",
        LeftBy.BESIDE: f"a complete checkpoint is beside {checkpoint}",
        LeftBy.TORN: kill.why,
        LeftBy.LOST: f"{checkpoint} is gone",
        LeftBy.NOTHING_YET: f"{checkpoint} had not been written before",
    }
    return kill.why if kill.left is LeftBy.NOT_CHECKED else f"{when}: {words[kill.left]}"
