"""What a pull request changes in the rules gains nothing in its own run, and is shown."""

from __future__ import annotations

import pytest
from action_scene import Scene
from played_training import SETTINGS

from gate.errors import ExitCode
from gate.isolation.modes import IsolationMode, IsolationSettings
from gate.package.keys import generate_private_key, private_pem, trusted_key
from gate.package.seal_records import TrustedKeys
from gate.text.documents import write_document

PLAIN = "version: 1\ntrain: {command: python3 train.py, max_steps: 3%s}\n"
WISHES = PLAIN % ", pass_env: [HF_TOKEN]" + "isolation: {network: true}\n"
MOVED = {"losses": ["2.5", "2.25", "9.0"]}
KEYS = ".repro-gate/trusted-keys.json"


def comment(scene: Scene) -> str:
    return scene.comment.replace("\\", "").replace("\u200b", "")


@pytest.mark.parametrize(
    ("extra", "row"),
    [
        (
            "compare: {tolerances: [{metric: '*', absolute: 100}]}\n",
            "| `repro-gate.yml` | `compare.tolerances` | `[]` |",
        ),
        (
            "baseline: {path: mine}\n",
            "| `baseline.path` | `.repro-gate/baseline` | `mine` |",
        ),
        ("policy: {require_bitwise: true}\n", "| `policy.require_bitwise` | `false` | `true` |"),
    ],
)
def test_settings_are_the_base_commits(scene: Scene, extra: str, row: str) -> None:
    scene.with_baseline()
    scene.project.play(**MOVED)
    scene.project.settings(extra)
    assert scene.run() == ExitCode.FAIL
    assert scene.output("verdict") == "code-drift"
    assert "This pull request changes policy files (1)" in comment(scene)
    assert row in comment(scene)
    assert "This pull request changes policy files (1)" in (scene.folder / "summary").read_text()


def test_the_isolation_is_the_base_commits(scene: Scene) -> None:
    scene.project.write("repro-gate.yml", SETTINGS.replace("mode: none", "mode: uid, minimum: uid"))
    scene.project.commit()
    scene.base = scene.project.git("rev-parse", "HEAD")
    scene.project.write("repro-gate.yml", SETTINGS.replace("mode: none", "network: true"))
    scene.project.commit()
    assert scene.run() == ExitCode.FAIL
    # the process that reads what the pull request brings is isolated as well as can be, plainly
    reading, asked = scene.asked
    assert reading == IsolationSettings()
    assert asked == IsolationSettings(mode=IsolationMode.UID, minimum=IsolationMode.UID)
    for row in (
        "| `isolation.mode` | `uid` | `auto` |",
        "| `isolation.network` | `false` | `true` |",
    ):
        assert row in comment(scene)


def test_a_key_that_the_pull_request_brings_is_shown_and_not_trusted(scene: Scene) -> None:
    scene.with_baseline()
    old, new = generate_private_key(), generate_private_key()
    for number, key in enumerate((old, new)):
        entry = trusted_key(key.public_key(), added_at="2026-01-01T00:00:00+00:00", comment="")
        scene.project.write(KEYS, write_document(TrustedKeys(keys=(entry,))))
        commit = scene.project.commit()
        scene.base = scene.base if number else commit
    pem = private_pem(new, b"a pass phrase of some length").decode()
    phrase = {"INPUT_SIGNING_KEY_PASSPHRASE": "a pass phrase of some length"}
    assert scene.run({"INPUT_SIGNING_KEY": pem, **phrase}) == ExitCode.PASS
    shown = comment(scene)
    assert shown.count(f"| `{KEYS}` | `key ") == 4
    assert f"changes {KEYS}; the base commit's version was used" in shown


def test_hostile_text_in_the_rules_shows_as_itself(scene: Scene) -> None:
    scene.with_baseline()
    evil = "@octocat <img src=x> `|` [a](javascript:x) #12 \\u202e"
    scene.project.settings(f'train_note: x\nreport: {{gate_id: "{evil}"}}\n')
    assert scene.run() == ExitCode.PASS
    assert "cannot be read: repro-gate.yml: 2 errors" in comment(scene)
    scene.project.settings(f'compare: {{tolerances: [{{metric: "{evil}", ulp: 1}}]}}\n')
    assert scene.run() == ExitCode.PASS
    for forbidden in ("@octocat", "<img", "](javascript", " #12", "\u202e"):
        assert forbidden not in scene.comment


def without_settings_in_the_base(scene: Scene, text: str) -> None:
    """The base branch has no settings file, and the pull request brings one."""
    (scene.project.path / "repro-gate.yml").unlink()
    scene.base = scene.project.commit()
    scene.project.write("repro-gate.yml", text)
    scene.project.commit()


@pytest.mark.parametrize(
    "changed",
    [{}, {"GITHUB_EVENT_NAME": "merge_group"}, {"INPUT_MODE": "run"}, {"INPUT_MODE": "judge"}],
    ids=["pull_request", "merge_group", "mode-run", "mode-judge"],
)
def test_settings_that_come_with_the_change_are_a_wish(
    scene: Scene, changed: dict[str, str]
) -> None:
    without_settings_in_the_base(scene, WISHES)
    assert scene.run(changed) == ExitCode.USAGE
    said = "\n".join(scene.said)
    assert "train.pass_env: hands variables of the gate's own environment to the training" in said
    assert "isolation.network: opens the network to the training" in said
    assert "Merge the settings file first, in a pull request without the workflow" in said
    # the process that reads settings, and no training
    assert scene.asked == [IsolationSettings()]


def test_the_comment_says_which_keys_and_what_to_do(scene: Scene) -> None:
    without_settings_in_the_base(scene, WISHES)
    assert scene.run() == ExitCode.USAGE
    shown = comment(scene)
    assert "train.pass_env, isolation.network" in shown
    assert "isolation.network: opens the network to the training" in shown
    assert "Merge the settings file first" in shown


def test_a_first_pull_request_with_plain_settings_is_judged(scene: Scene) -> None:
    without_settings_in_the_base(scene, PLAIN % "")
    assert scene.run() == ExitCode.FAIL
    assert scene.output("verdict") == "no-baseline"
    assert "the base commit has no settings file" in comment(scene)
