"""Every fault that repro-gate reports: one root, each with a hint and an exit code.

A divergence between two runs is not a fault: it is a value (`gate.verdict.verdict.Verdict`).
"""

from __future__ import annotations

from enum import IntEnum

RAISED_CHARACTERS = 200
# a variable, which every verb obeys: not each has an option for it
TRACEBACK = "REPRO_GATE_TRACEBACK"


class ExitCode(IntEnum):
    """The exit code of the process; a required check depends on nothing else."""

    PASS = 0
    FAIL = 1
    USAGE = 2
    ERROR = 3
    CANCELLED = 4


class GateError(Exception):
    """A fault: something could not be done, so nothing can be said about reproducibility.

    `message` says what is wrong, `hint` what a person can do about it, `details` holds lines to
    show below (the faults of a file, the last output of a script).
    """

    exit_code = ExitCode.ERROR

    def __init__(self, message: str, *, hint: str = "", details: tuple[str, ...] = ()) -> None:
        """Keep the three parts apart, so that each report can lay them out in its own way."""
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.details = details

    def __str__(self) -> str:
        """Message, details and hint as the terminal shows them."""
        lines = [self.message, *(f"  {line}" for line in self.details)]
        if self.hint:
            lines.append(f"hint: {self.hint}")
        return "\n".join(lines)


class SettingsError(GateError):
    """`repro-gate.yml`, an action input or the command line asks for something impossible."""

    exit_code = ExitCode.USAGE


class DocumentError(GateError):
    """A file that should hold one of our documents does not."""


class RepositoryError(GateError):
    """Git could not give what was asked for: no repository, a dirty tree, an unknown commit."""

    exit_code = ExitCode.USAGE


class CommitError(RepositoryError):
    """The commit under test holds something that cannot be exported; the call is correct."""

    exit_code = ExitCode.ERROR


class RunError(GateError):
    """A training run failed, timed out or could not be started.

    `file` and `line` are the line of the training's own code that raised, where it is known; the
    file counts from the folder where the training began.
    """

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        details: tuple[str, ...] = (),
        file: str = "",
        line: int = 0,
    ) -> None:
        """As any fault, with the line that raised."""
        super().__init__(message, hint=hint, details=details)
        self.file = file
        self.line = line


class RunTimeoutError(RunError):
    """A training run was stopped because it took longer than it was given."""


class DataError(GateError):
    """Declared data is missing, wrong, out of reach, or changed while the gate ran."""


class EvidenceError(GateError):
    """A run left nothing usable, or something that must not be trusted."""


class OutputError(EvidenceError):
    """What the script wrote cannot be read as the settings say; the machine is not at fault."""


class MissingOutputError(OutputError):
    """What the settings name, a metric or a checkpoint, is not in what the script wrote."""


class BaselineError(GateError):
    """The baseline cannot be read, recorded or accepted."""


class AttestationError(GateError):
    """A key, signature or package is unusable or refused."""

    exit_code = ExitCode.FAIL


class KeyFileError(AttestationError):
    """A trust file, a trusted root or a public key is no such thing: nothing was checked by it."""

    exit_code = ExitCode.ERROR


class SealServiceError(AttestationError):
    """A service that a seal needs did not give it; the same call may succeed later."""


class KeyServiceDownError(SealServiceError):
    """A service did not answer: it says nothing of the key, which may be the right one."""


class PublishError(GateError):
    """Verdict or package could not be put where people look, or got from there; both stand."""


class StorageError(GateError):
    """A file could not be read or written (disk full, no permission, not a regular file)."""


class InternalError(GateError):
    """An unexpected exception: a bug in repro-gate itself.

    The text of what was raised may quote a pull request, so it is shown as ASCII and cut.
    """

    def __init__(self, raised: BaseException) -> None:
        """Keep what was raised as one harmless line."""
        # ASCII: it may quote a pull request, and goes to a log that obeys commands
        text = ascii(str(raised)[:RAISED_CHARACTERS])[1:-1]
        super().__init__(
            f"repro-gate itself failed: {type(raised).__name__}",
            hint="Nothing was judged. This is a bug in repro-gate, not in the change: please "
            f"report it with the output of the same command with {TRACEBACK}=1 in its "
            "environment, or on a runner with debug logging.",
            details=(text,) if text else (),
        )


class CancelledError(GateError):
    """A person or the runner asked to stop."""

    exit_code = ExitCode.CANCELLED


def as_gate_error(raised: Exception) -> GateError:
    """A fault that the gate knows as it is, and any other as a defect of the gate."""
    return raised if isinstance(raised, GateError) else InternalError(raised)
