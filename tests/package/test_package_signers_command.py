"""A key behind a program: what the program is given, what is taken, and what is refused."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from attestation_cases import CREATED_AT, gate_key

from gate.errors import AttestationError, SettingsError
from gate.package.envelope import sign, verify
from gate.package.keys import generate_private_key, private_pem, public_der, public_pem, trusted_key
from gate.package.seal_records import PAYLOAD_TYPE, KeyAlgorithm, TrustedKeys
from gate.package.signers import CommandSigner, check_place, refuse_programs_below
from gate.settings.signer_places import CommandPlace, read_signer_place
from gate.system.files.files import LocalFiles

OPENSSL = shutil.which("openssl")
SECRETS = {
    "INPUT_TOKEN": "CANARY",
    "REPRO_GATE_PASSPHRASE": "CANARY",
    "REPRO_GATE_PKCS11_PIN": "CANARY",
    "ACTIONS_ID_TOKEN_REQUEST_TOKEN": "CANARY",
    "MLFLOW_TRACKING_PASSWORD": "CANARY",
}
Made = Callable[[str], CommandSigner]


@pytest.fixture
def made(tmp_path: Path) -> Made:
    """A signer whose program is this script."""

    def make(script: str) -> CommandSigner:
        path = tmp_path / "signer"
        path.write_text(f"#!{sys.executable} -I\nimport os, sys, time\n{script}\n")
        path.chmod(0o755)
        place = CommandPlace(argv=(str(path), "--key", "gate"))
        return CommandSigner(place, {**os.environ, **SECRETS, "KMS_TOKEN": "hush!"}, seconds=120)

    return make


def fault_of(call: Callable[[], object]) -> AttestationError:
    with pytest.raises(AttestationError) as caught:
        call()
    assert caught.value.hint
    return caught.value


@pytest.mark.skipif(not OPENSSL, reason="no openssl command here")
@pytest.mark.parametrize("algorithm", KeyAlgorithm)
def test_openssl_signs_through_a_script_of_a_few_lines(
    tmp_path: Path, algorithm: KeyAlgorithm
) -> None:
    key = generate_private_key(algorithm)
    pem = tmp_path / "key.pem"
    pem.write_bytes(private_pem(key, None, allow_plain=True))
    # openssl wants a file for Ed25519, whose signature takes the message twice
    digest = "" if algorithm is KeyAlgorithm.ED25519 else "-digest sha256"
    script = tmp_path / "signer"
    script.write_text(
        f"""#!/bin/sh
case "$1" in
  public-key) exec {OPENSSL} pkey -in {pem} -pubout ;;
  sign) cat > {tmp_path}/message
        exec {OPENSSL} pkeyutl -sign -inkey {pem} -rawin {digest} -in {tmp_path}/message ;;
esac
"""
    )
    script.chmod(0o755)
    place = read_signer_place(f"exec:{shlex.quote(str(script))}")
    assert isinstance(place, CommandPlace)
    envelope = sign(b"x" * 300_000, PAYLOAD_TYPE, CommandSigner(place, os.environ))
    entry = trusted_key(key.public_key(), added_at=CREATED_AT)
    assert verify(envelope, TrustedKeys(keys=(entry,))) == entry


def test_it_is_called_for_one_thing_at_a_time_with_its_own_words_first(made: Made) -> None:
    signer = made("sys.stdout.write(' '.join(sys.argv[1:]))")
    assert signer.sign(b"x") == b"--key gate sign"
    pem = public_pem(gate_key().public_key()).decode()
    signer = made(f"sys.stdout.write({pem!r}) if sys.argv[3:] == ['public-key'] else 1 / 0")
    assert signer.public_key() == public_der(gate_key().public_key())


def test_it_gets_no_secret_of_the_gate_and_no_folder_of_the_commit(made: Made) -> None:
    signer = made("print(dict(os.environ), os.getcwd(), sys.argv)")
    told = signer.sign(b"x").decode()
    assert "CANARY" not in told
    assert "'KMS_TOKEN': 'hush!'" in told
    assert " / [" in told


def test_the_whole_message_arrives_and_ends(made: Made) -> None:
    signer = made("sys.stdout.write(str(len(sys.stdin.buffer.read())))")
    assert signer.sign(b"x" * 3_000_000) == b"3000000"


def test_it_may_answer_without_reading(made: Made) -> None:
    assert made("print('signature', end='')").sign(b"x" * 3_000_000) == b"signature"


def test_an_exit_code_is_told_with_its_last_lines_and_none_of_its_secrets(made: Made) -> None:
    script = "print('first\\x1b[2J', os.environ['KMS_TOKEN'], file=sys.stderr); sys.exit(3)"
    fault = fault_of(lambda: made(script).sign(b"x"))
    assert fault.message.endswith("/signer ended with exit code 3")
    assert fault.details == ("first ***",)


def test_what_it_says_is_bounded(made: Made) -> None:
    script = "sys.stderr.write('line\\n' * 100000); sys.exit(1)"
    assert fault_of(lambda: made(script).sign(b"x")).details == ("line",) * 5


def test_a_crash_is_told_by_its_signal(made: Made) -> None:
    fault = fault_of(lambda: made("os.kill(os.getpid(), 9)").sign(b"x"))
    assert fault.message.endswith("was ended by signal 9")


def test_an_answer_without_end_is_cut_off(made: Made) -> None:
    fault = fault_of(lambda: made("while True: os.write(1, b'x' * 65536)").sign(b"x"))
    assert fault.message.endswith("printed more than 64 KiB")


@pytest.mark.parametrize("last", ["wait", "exit 0"])
def test_one_that_never_answers_is_ended_with_all_that_it_started(
    tmp_path: Path, last: str
) -> None:
    script = tmp_path / "signer"
    script.write_text(f"#!/bin/sh\nsleep 600 & echo $! > {tmp_path}/child\n{last}\n")
    script.chmod(0o755)
    signer = CommandSigner(CommandPlace(argv=(str(script),)), os.environ, seconds=3)
    fault = fault_of(lambda: signer.sign(b"x"))
    assert fault.message.endswith("gave no answer within 3 s")
    child = Path("/proc") / (tmp_path / "child").read_text().strip()
    until = time.monotonic() + 60
    while child.exists() and "Z" not in (child / "stat").read_text().split()[2]:
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.mark.parametrize("printed", ["", "hello", "-----BEGIN PUBLIC KEY-----"])
def test_a_public_key_that_is_none_is_told(made: Made, printed: str) -> None:
    fault = fault_of(lambda: made(f"print({printed!r})").public_key())
    assert fault.message.endswith("/signer public-key gave no public key")


def test_nothing_is_no_signature(made: Made) -> None:
    assert fault_of(lambda: made("").sign(b"x")).message.endswith("sign printed nothing")


def test_a_program_that_cannot_run_is_told(tmp_path: Path) -> None:
    path = tmp_path / "signer"
    path.write_text("#!/nowhere/interpreter\n")
    path.chmod(0o755)
    signer = CommandSigner(CommandPlace(argv=(str(path),)), os.environ)
    assert "cannot be started: No such file" in fault_of(lambda: signer.sign(b"x")).message


def test_a_program_that_is_missing_is_told_early(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("")
    for name in ("no-such-program", str(tmp_path / "missing"), str(tmp_path / "text")):
        with pytest.raises(SettingsError, match="no such program"):
            check_place(read_signer_place(f"exec:{name}"), LocalFiles(), {"PATH": "/usr/bin"})


def test_a_relative_folder_of_the_search_path_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "signer"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingsError, match="exec:signer: no such program"):
        check_place(read_signer_place("exec:signer"), LocalFiles(), {"PATH": ".:"})


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
@pytest.mark.parametrize("what", ["folder", "file"])
def test_what_another_account_installed_is_never_started(tmp_path: Path, what: str) -> None:
    """As the packages of the training are: before all else on the search path."""
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    for folder in (theirs, ours):
        folder.mkdir()
        (folder / "signer").write_text("#!/bin/sh\necho $0 $PATH\n")
        (folder / "signer").chmod(0o755)
    given = theirs if what == "folder" else theirs / "signer"
    os.chown(given, 61000, 61000)
    variables = {"PATH": f"{theirs}:{ours}:/bin"}
    place = read_signer_place("exec:signer")
    assert isinstance(place, CommandPlace)
    if what == "folder":
        said = CommandSigner(place, variables).sign(b"x").decode()
        assert said == f"{ours}/signer {ours}:/bin\n"
        return
    for where in ("exec:signer", f"exec:{theirs}/signer"):
        with pytest.raises(SettingsError, match="no such program"):
            check_place(read_signer_place(where), LocalFiles(), variables)


def test_what_everybody_may_change_is_never_started(tmp_path: Path) -> None:
    (tmp_path / "signer").write_text("#!/bin/sh\n")
    (tmp_path / "signer").chmod(0o777)
    with pytest.raises(SettingsError, match="no such program") as caught:
        check_place(read_signer_place(f"exec:{tmp_path}/signer"), LocalFiles(), {})
    assert "others cannot write to it" in caught.value.hint


@pytest.mark.parametrize(
    "where", ["exec:{0}/sign", "exec:/bin/sh {0}/sign", "exec:/bin/sh {0}/../{1}/sign"]
)
def test_nothing_that_a_pull_request_brings_is_started_to_sign(tmp_path: Path, where: str) -> None:
    program = tmp_path / "sign"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    place = read_signer_place(where.format(tmp_path, tmp_path.name))
    with pytest.raises(SettingsError, match="is in the checkout, which the pull request controls"):
        refuse_programs_below(tmp_path, place, os.environ)
    refuse_programs_below(tmp_path / "elsewhere", place, os.environ)
    refuse_programs_below(tmp_path, None, os.environ)


def test_what_a_shell_would_obey_is_a_word_here() -> None:
    place = read_signer_place("exec:/bin/echo '; touch x' $HOME")
    assert isinstance(place, CommandPlace)
    signer = CommandSigner(place, os.environ)
    assert signer.sign(b"x") == b"; touch x $HOME sign\n"


PAGE = (Path(__file__).resolve().parents[2] / "docs" / "signing.md").read_text("utf-8")
AWS = """
import base64, sys
given = dict(zip(sys.argv[3::2], sys.argv[4::2]))
assert given["--key-id"] == "alias/gate"
if sys.argv[1:3] == ["kms", "get-public-key"]:
    print(base64.b64encode(der).decode())
else:
    assert sys.argv[1:3] == ["kms", "sign"] and given["--message-type"] == "DIGEST"
    digest = pathlib.Path(given["--message"].removeprefix("fileb://")).read_bytes()
    print(base64.b64encode(key.sign(digest, ec.ECDSA(Prehashed(SHA256())))).decode())
"""
GCLOUD = """
words = sys.argv[1:]
given = dict(zip(words[:-1], words[1:]))
assert (given["--key"], given["--keyring"], given["--location"]) == ("gate", "ring", "global")
if "get-public-key" in words:
    assert given["get-public-key"] == "1"
    pathlib.Path(given["--output-file"]).write_bytes(pem)
else:
    assert words[:2] == ["kms", "asymmetric-sign"] and given["--version"] == "1"
    message = pathlib.Path(given["--input-file"]).read_bytes()
    pathlib.Path(given["--signature-file"]).write_bytes(key.sign(message, ec.ECDSA(SHA256())))
"""
PLAYED = """#!{python} -I
import pathlib, sys
sys.path += {folders!r}
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import Prehashed
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from gate.package.keys import public_der, public_pem
key = load_pem_private_key(pathlib.Path({secret!r}).read_bytes(), None)
der, pem = public_der(key.public_key()), public_pem(key.public_key())
"""


@pytest.mark.skipif(not OPENSSL or not shutil.which("bash"), reason="needs bash and openssl")
@pytest.mark.parametrize(
    ("script", "service", "played", "words"),
    [(0, "aws", AWS, "alias/gate"), (1, "gcloud", GCLOUD, "gate ring global 1")],
    ids=["aws", "gcloud"],
)
def test_the_scripts_of_the_page_sign_as_the_gate_expects(
    tmp_path: Path, script: int, service: str, played: str, words: str
) -> None:
    secret = tmp_path / "key.pem"
    secret.write_bytes(private_pem(gate_key(), None, allow_plain=True))
    told = {"python": sys.executable, "folders": sys.path, "secret": str(secret)}
    blocks = PAGE.split("```bash\n")[1:]
    for name, text in (
        ("signer", blocks[script].split("```")[0]),
        (service, PLAYED.format(**told) + played),
    ):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    place = read_signer_place(f"exec:signer {words}")
    assert isinstance(place, CommandPlace)
    variables = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    envelope = sign(b"x" * 10_000, PAYLOAD_TYPE, CommandSigner(place, variables))
    entry = trusted_key(gate_key().public_key(), added_at=CREATED_AT)
    assert verify(envelope, TrustedKeys(keys=(entry,))) == entry
