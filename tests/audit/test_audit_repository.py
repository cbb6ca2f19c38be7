"""From what was found in a repository to its answers, and the laws that hold of them."""

from __future__ import annotations

from dataclasses import replace

from audit_cases import BASELINE
from each_row import each_row
from evidence_cases import settings_of
from hypothesis import given
from hypothesis import strategies as st

from gate.audit.items import (
    AuditedPart,
    AuditItem,
    AuditReport,
    AuditResult,
    LineKind,
    RepositoryFacts,
    ScriptLine,
    WishList,
    part_answers,
)
from gate.audit.repository_answers import audit_repository
from gate.evidence.lock_files import LockFile, LockKind
from gate.settings.knobs import Profile

LOCK = LockFile(path="uv.lock", sha256="0" * 64, kind=LockKind.UV)
NAMES = frozenset({"train.py", "data", "data/x.npy"})
WHOLE = RepositoryFacts(
    place="/project",
    commit="a" * 40,
    names=NAMES,
    settings=settings_of(),
    baseline=BASELINE,
    active_keys=1,
    workflow=".github/workflows/gate.yml",
    locks=(LOCK,),
    scripts=1,
)
BARE = RepositoryFacts(place="/project", git_problem="no repository")


def line(kind: LineKind, what: str = "call", subject: str = "", number: int = 3) -> ScriptLine:
    return ScriptLine(file="train.py", line=number, kind=kind, what=what, subject=subject)


def results(facts: RepositoryFacts) -> dict[AuditedPart, AuditResult]:
    return {answer.part: answer.result for answer in audit_repository(facts).parts}


def item(facts: RepositoryFacts, code: str) -> AuditItem:
    (found,) = [one for one in audit_repository(facts).items if one.code == code]
    return found


def test_nothing_passes_in_a_bare_folder_and_all_has_risk_and_remedy() -> None:
    report = audit_repository(BARE)
    assert [answer.part for answer in report.parts] == list(AuditedPart)
    assert AuditResult.PASS not in results(BARE).values()
    for one in report.items:
        assert one.risk
        assert one.remedy
        assert one.command
    assert report.exit_code == 1


def test_a_whole_repository_fails_in_nothing_and_what_cannot_be_seen_is_unknown() -> None:
    found = results(WHOLE)
    assert found.pop(AuditedPart.DATA) is AuditResult.UNKNOWN
    assert set(found.values()) == {AuditResult.PASS}
    assert audit_repository(WHOLE).exit_code == 0


@each_row(
    ("change", "code", "found"),
    [
        ({"changed": ("a.py", "b.py", "c.py", "d.py")}, "clean-tree", "4 uncommitted: a.py, b.py"),
        ({"script_missing": "gone.py"}, "training-script", "train.command names gone.py"),
        (
            {"locks": (), "wishes": (WishList(path="r.txt", packages=2, unpinned=("torch",)),)},
            "lock-file",
            "there is no lock file, and r.txt names no version of torch",
        ),
        (
            {"locks": (LockFile(path="uv.lock", problem="is a link"),)},
            "lock-file",
            "uv.lock cannot be read: is a link",
        ),
        ({"images": ("python:3.11",)}, "image-digest", "base image without a digest: python:3.11"),
        ({"settings": None}, "settings", "there is no repro-gate.yml"),
        ({"baseline": None}, "baseline", "no baseline is committed"),
        ({"baseline": None, "baseline_problem": "x.json: broken"}, "baseline", "x.json: broken"),
        ({"active_keys": 0}, "trusted-keys", "no key is trusted"),
        (
            {"settings": settings_of(determinism={"profile": Profile.DEFAULT})},
            "strict-mode",
            "strict mode is weakened: profile: default",
        ),
        (
            {"lines": (line(LineKind.FLAG, "x.benchmark = True"),)},
            "nondeterministic-flags",
            "turned against determinism: train.py:3 x.benchmark = True",
        ),
        (
            {"lines": (line(LineKind.UNSEEDED, "random.seed()"),)},
            "unseeded-generator",
            "a different seed in each run: train.py:3 random.seed()",
        ),
        (
            {"lines": (line(LineKind.DOWNLOADS, "load_dataset", "imdb"),)},
            "downloads",
            "downloads without a digest: train.py:3 load_dataset(imdb)",
        ),
        (
            {"lines": (line(LineKind.READS, "open", "/srv/x.npy"),)},
            "undeclared-data",
            "reads from outside the commit: train.py:3 open(/srv/x.npy)",
        ),
    ],
)
def test_what_is_missing_is_named(change: dict[str, object], code: str, found: str) -> None:
    one = item(replace(WHOLE, **change), code)  # type: ignore[arg-type]
    assert one.result is AuditResult.FAIL
    assert one.found.startswith(found)
    assert one.risk
    assert one.remedy


def test_what_lies_in_the_repository_is_no_undeclared_data() -> None:
    read = line(LineKind.READS, "open", "data/x.npy")
    assert results(replace(WHOLE, lines=(read,)))[AuditedPart.DATA] is AuditResult.UNKNOWN


def test_declared_data_passes_and_covers_what_scripts_read() -> None:
    settings = settings_of(data=({"path": "/srv/x", "as": "x"},))
    lines = (line(LineKind.READS, "open", "/srv/x/1"), line(LineKind.DOWNLOADS, "load", "y"))
    one = item(replace(WHOLE, settings=settings, lines=lines), "declared-data")
    assert (one.result, one.found) == (AuditResult.PASS, "1 declared: x")


def test_without_a_gate_seeds_of_a_script_are_unknown_and_missing_ones_fail() -> None:
    bare = replace(WHOLE, settings=None)
    draws = line(LineKind.DRAWS, "torch.rand", "torch")
    seeds = line(LineKind.SEEDS, "torch.manual_seed", "torch")
    assert item(replace(bare, lines=(draws,)), "seeds").found == ("used and never seeded: torch")
    both = item(replace(bare, lines=(draws, seeds)), "seeds")
    assert both.result is AuditResult.UNKNOWN
    assert "static analysis cannot tell whether this runs before the first draw" in both.found
    assert item(bare, "seeds").found == "no script sets a seed"
    assert item(replace(bare, scripts=0), "seeds").result is AuditResult.UNKNOWN


def test_the_next_command_goes_on_from_what_there_is() -> None:
    assert item(BARE, "not-set-up").command == "repro-gate init"
    broken = replace(BARE, settings_problem="repro-gate.yml: 1 error")
    assert item(broken, "settings").command == "repro-gate doctor"
    no_baseline = item(replace(WHOLE, baseline=None), "baseline")
    assert no_baseline.command == (
        'repro-gate baseline record --reason "first baseline" && git add .repro-gate/baseline && '
        'git commit -m "first baseline"'
    )


def test_a_repository_without_a_gate_has_one_row_about_it() -> None:
    codes = {one.code for one in audit_repository(BARE).items}
    assert "not-set-up" in codes
    assert not codes & {"settings", "baseline", "workflow", "machine", "trusted-keys"}
    assert "workflow" in {one.code for one in audit_repository(replace(BARE, workflow="x")).items}


def test_what_is_read_from_a_computed_name_cannot_be_told() -> None:
    inside = line(LineKind.READS, "open", "data/x.npy")
    computed = line(LineKind.READS, "numpy.memmap", "", number=4)
    alone = line(LineKind.READS, "torch.load", "weights.pt", number=5)
    one = item(replace(WHOLE, lines=(inside, computed, alone)), "declared-data")
    assert one.result is AuditResult.UNKNOWN
    assert one.found == (
        "no data is declared, and only running it shows where this reads from: "
        "train.py:4 numpy.memmap, train.py:5 torch.load(weights.pt)"
    )


def test_a_lock_without_what_the_scripts_import_locks_too_little() -> None:
    one = item(replace(WHOLE, modules=frozenset({"torch", "os"})), "lock-file")
    assert one.result is AuditResult.FAIL
    assert one.found == "uv.lock locks no torch, which the scripts import"
    assert one.command.endswith(
        "printf '%s\\n' torch | uv pip compile --generate-hashes - -o requirements-more.txt"
    )


def test_an_image_of_somebody_else_cannot_end_the_command_that_names_it() -> None:
    one = item(replace(WHOLE, images=("x;touch${IFS}/tmp/y",)), "image-digest")
    assert one.command == "docker buildx imagetools inspect 'x;touch${IFS}/tmp/y'"


def test_a_part_of_which_nothing_is_known_is_no_pass() -> None:
    assert {answer.result for answer in part_answers(())} == {AuditResult.UNKNOWN}


LINES = st.builds(
    line,
    st.sampled_from(LineKind),
    subject=st.sampled_from(("", "torch", "random", "/srv/x", "data/x.npy", "data/y.npy")),
    number=st.integers(1, 9),
)
MISSING = {
    "commit": "",
    "settings": None,
    "baseline": None,
    "active_keys": 0,
    "workflow": "",
    "locks": (),
}


@given(st.lists(LINES, max_size=6), st.randoms())
def test_no_answer_depends_on_the_order_of_files(lines: list[ScriptLine], random: object) -> None:
    shuffled = list(lines)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    locks = (LOCK, LockFile(path="a.lock", problem="is broken"))
    first = replace(WHOLE, lines=tuple(lines), locks=locks)
    other = replace(WHOLE, lines=tuple(shuffled), locks=locks[::-1])
    assert results(first) == results(other)
    assert items_of(audit_repository(first)) == items_of(audit_repository(other))


def items_of(report: AuditReport) -> set[str]:
    return {one.model_dump_json() for one in report.items}


@given(
    st.lists(LINES, max_size=4),
    st.sets(st.sampled_from(sorted(MISSING))),
    st.sampled_from(sorted(MISSING)),
)
def test_what_is_taken_away_turns_no_failure_into_a_pass(
    lines: list[ScriptLine], gone: set[str], taken: str
) -> None:
    before = replace(WHOLE, lines=tuple(lines), **{name: MISSING[name] for name in gone})  # type: ignore[arg-type]
    after = replace(before, **{taken: MISSING[taken]})  # type: ignore[arg-type]
    for part, result in results(after).items():
        assert result is not AuditResult.PASS or results(before)[part] is AuditResult.PASS


@given(st.lists(st.tuples(st.sampled_from(AuditedPart), st.sampled_from(AuditResult)), max_size=9))
def test_one_more_item_never_makes_a_part_better_than_its_worst(
    pairs: list[tuple[AuditedPart, AuditResult]],
) -> None:
    items = tuple(
        AuditItem(code="x", part=part, result=result, found="f") for part, result in pairs
    )
    for answer in part_answers(items):
        own = {one.result for one in items if one.part is answer.part}
        if AuditResult.FAIL in own:
            assert answer.result is AuditResult.FAIL
        assert (answer.result is AuditResult.PASS) == (own == {AuditResult.PASS})


def test_texts_of_a_repository_are_masked_and_cut() -> None:
    hostile = "x\x1b[31m::error::\u202e" + "y" * 5000
    facts = replace(
        BARE, settings_problem=hostile, git_problem=hostile, keys_problem=hostile, images=(hostile,)
    )
    for one in audit_repository(facts).items:
        for text in (one.found, one.command):
            assert len(text) <= 1000
            assert text.isprintable()
            assert "::" not in text
