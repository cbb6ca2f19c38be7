"""Links, pipes, devices and odd names; text that is shown to people."""

from __future__ import annotations

from attempt import APART, EVERYWHERE, Attempt, Threat
from attempts_evidence import TWIN
from attempts_floods import REGULAR, metrics_attempt

from gate.isolation.modes import IsolationMode
from gate.verdict.verdict import Outcome

SAFE_TEXT = "text is escaped"
EVIL = (
    "@octocat #12 o/model#5 https://evil.example www.evil.example [a](javascript:x) <img src=x "
    "onerror=1> <!-- --> </details> ``` | \u202e\u2066\u200b\x1b[31m\x1b]0;t\x07 "
    "::add-mask::1 ##[error]no"
)


def _log(name: str, tries: str, script: str, *, fast: bool = False) -> Attempt:
    return Attempt(
        name=name,
        threat=Threat.TEXT,
        tries=tries,
        stopped_by=f"{SAFE_TEXT} and printed where the runner takes no commands",
        script=script,
        modes=EVERYWHERE,
        fast=fast,
    )


LINKS: tuple[Attempt, ...] = (
    metrics_attempt(
        "metrics-pipe",
        Threat.LINKS,
        "leaves a pipe that nobody writes to as its metrics",
        "a FIFO",
        "os.mkfifo(metrics)",
    ),
    metrics_attempt(
        "metrics-device",
        Threat.LINKS,
        "makes its metrics file a device that never ends",
        "a link|a device",
        'metrics.symlink_to("/dev/zero")',
    ),
    metrics_attempt(
        "metrics-folder",
        Threat.LINKS,
        "leaves a folder as its metrics",
        "a folder",
        "metrics.mkdir()",
    ),
    metrics_attempt(
        "metrics-socket",
        Threat.LINKS,
        "leaves a socket as its metrics",
        "a socket",
        'os.chdir(here); socket.socket(socket.AF_UNIX).bind("m.jsonl")',
    ),
    metrics_attempt(
        "metrics-link-to-the-key",
        Threat.LINKS,
        "makes its metrics file a link to the key",
        "a link",
        'metrics.symlink_to(root / "keys/gate.pem")',
    ),
    *(
        Attempt(
            name=f"output-folder-is-a-link-{where.replace(' ', '-')}",
            threat=Threat.LINKS,
            tries=f"makes the commit's output folder a link {where} the checkout",
            stopped_by="nothing is written or removed through a link of the checkout",
            script="",
            modes=(IsolationMode.NONE, IsolationMode.UID),
            outcome=Outcome.ERROR,
            cause="(?s)out.{0,20} is a link in the checkout|leads through .{0,200}, a link",
            committed_links={"out": destination},
            fast=where == "out of",
        )
        for where, destination in (("out of", "../home"), ("inside", ".github"))
    ),
    Attempt(
        name="checkpoint-below-a-link",
        threat=Threat.LINKS,
        tries="makes its checkpoint's folder a link to the key's folder",
        stopped_by=REGULAR,
        script='(here / "saved").symlink_to(root / "keys")',
        modes=APART,
        train=", checkpoint: saved/gate.pem",
        outcome=Outcome.ERROR,
        cause="Permission denied|a link of another account",
    ),
    Attempt(
        name="state-that-is-a-link",
        threat=Threat.LINKS,
        tries="makes the state a link to the key, so that the gate takes it as evidence",
        stopped_by=REGULAR,
        script="",
        after=TWIN + 'mine("state", "safetensors").unlink()\n'
        'mine("state", "safetensors").symlink_to(root / "keys/gate.pem")',
        modes=EVERYWHERE,
        outcome=Outcome.ERROR,
        cause="a link",
        fast=True,
    ),
    Attempt(
        name="hard-link-to-the-key",
        threat=Threat.LINKS,
        tries="gives the key a second name among its evidence",
        stopped_by="the kernel's protected_hardlinks, and a folder that is closed",
        script='trying(os.link, root / "keys/gate.pem", out / "state-r0-1.safetensors")',
        tells=1,
        together=True,
    ),
    Attempt(
        name="odd-names",
        threat=Threat.LINKS,
        tries="leaves names with line ends, escapes, commands and no UTF-8",
        stopped_by="only names of the protocol are looked at",
        script=f"""
for name in ("a\\n::error::b", "\\x1b[31mred", {EVIL!r}.replace("/", "-")[:200], "-rf", "..."):
    (out / name).touch(); (here / name).touch()
(out / os.fsdecode(b"\\xff\\xfe")).touch()
(out / "steps-r0-1.jsonl\\n").touch()
""",
        modes=EVERYWHERE,
    ),
)
TEXT: tuple[Attempt, ...] = (
    _log(
        "workflow-commands",
        "prints commands of the runner, after blanks and in the middle of a line",
        """
for name in ("error", "add-mask", "set-output name=verdict", "save-state name=a", "stop-commands"):
    print(f"::{name}::reproduced"); print(f" \\t ::{name}::x"); print(f"loss 1.5 ##[{name}]x")
""",
    ),
    _log(
        "commands-behind-carriage-returns",
        "hides commands behind carriage returns and invisible characters",
        'print("loss\\r::add-mask::1\\r##[error]x\\r\\n\\u200b::set-env::x\\u2028::error::y")',
    ),
    _log(
        "end-of-the-guard",
        "guesses the token that makes the runner accept commands again",
        'for number in range(50): print(f"::{number:032x}::"); print("::add-mask::1")',
    ),
    _log(
        "escape-sequences",
        "prints escape sequences, a title and bytes that are not text",
        'sys.stdout.buffer.write(b"\\x1b]0;title\\x07\\x1b[2J\\x9b31m\\x00\\xff\\xfe\\n" * 50)\n'
        "sys.stdout.flush()",
    ),
    Attempt(
        name="text-in-the-verdict",
        threat=Threat.TEXT,
        tries="puts mentions, links, HTML and commands into what the harness reports",
        stopped_by=SAFE_TEXT,
        script="",
        play={"environment": {"packages": EVIL}, "tensor": f"model/{EVIL[:90]}"},
        modes=EVERYWHERE,
        outcome=Outcome.NOT_COMPARABLE,
    ),
    *(
        Attempt(
            name=f"annotation-at-{name}",
            threat=Threat.TEXT,
            tries=f"names line {line} of {file} as the one that weakened determinism",
            stopped_by="annotations point only at lines of the commit's Python",
            script="",
            play={
                "overrides": {
                    "step": 2,
                    "kind": "switch",
                    "name": "cudnn_benchmark",
                    "before": "off",
                    "after": "on",
                    "file": file,
                    "line": line,
                    "closed": False,
                    "restored": False,
                }
            },
        )
        for name, file, line in (
            ("the-workflow", ".github/workflows/gate.yml", 1),
            ("another-file", "planted.py", 1),
            ("a-line-that-is-not-there", "train.py", 99_999),
        )
    ),
    Attempt(
        name="text-in-a-failure",
        threat=Threat.TEXT,
        tries="fails with mentions, links, HTML and commands as its last words",
        stopped_by=SAFE_TEXT,
        script=f"print({EVIL!r}); sys.exit(3)",
        modes=EVERYWHERE,
        outcome=Outcome.ERROR,
        cause="exited with 3",
    ),
)
