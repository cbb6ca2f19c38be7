from __future__ import annotations

import pytest
from evidence_cases import evidence_of, settings_of

from gate.data.declared import data_names, entries_for
from gate.diagnosis.diagnosis import CodePlace
from gate.evidence.observations import Source, SourceKind
from gate.evidence.run_evidence import RunEvidence
from gate.settings.data import DataSource
from gate.settings.gate_settings import GateSettings
from gate.verdict.sources import (
    saved_and_asked,
    splits_by_listing,
    suspected_sources,
    undeclared_reads,
)
from gate.verdict.verdict import Finding, Severity


def read(path: str = "/srv/x.npy", stamp: str = "96 1", **changes: object) -> Source:
    plain = Source(
        rank=0,
        step=1,
        kind=SourceKind.READ,
        call=path,
        before="",
        after=stamp,
        file="train.py",
        line=12,
        stack=(),
        worker=False,
        thread=False,
    )
    return plain.model_copy(update=changes)


def many(folder: str, count: str) -> Source:
    return read(folder, "", before=count)


def run(*sources: Source) -> RunEvidence:
    return evidence_of().model_copy(update={"sources": sources})


def found(*sources: Source, settings: GateSettings | None = None) -> tuple[Finding, ...]:
    return undeclared_reads((run(*sources), run(*sources)), settings or settings_of())


def test_a_file_is_told_once_with_its_line_and_the_entry_that_declares_it() -> None:
    (finding,) = found(read(), read(line=40), read(rank=1))
    assert (finding.code, finding.severity) == ("undeclared-read", Severity.NOTICE)
    assert finding.message == "read and not declared: /srv/x.npy (train.py:12)"
    assert finding.remedy == (
        "Declare it in repro-gate.yml: `data: [{path: /srv/x.npy, as: x.npy}]`, and read it from "
        "$REPRO_GATE_DATA/x.npy. Until then a change to it looks like a code change."
    )
    assert finding.code_place == CodePlace.known("train.py", 12)
    assert found() == ()


def test_several_are_counted_and_declared_together() -> None:
    (finding,) = found(*(read(f"/srv/{name}/rows.csv") for name in "abcdefg"))
    assert finding.message == "read and not declared: /srv/a/rows.csv (train.py:12), and 6 more"
    assert "as: rows.csv}, {path: /srv/b/rows.csv, as: rows.csv-2}" in finding.remedy
    assert "/srv/f/" not in finding.remedy


def test_files_of_one_folder_are_told_as_the_folder() -> None:
    files = [read(f"/srv/images/{number}.png") for number in range(8)]
    (finding,) = found(*files, many("/srv/images/", "16"), many("/srv/images/", "1024"))
    assert finding.message == (
        "read and not declared: /srv/images/, 1,024 files or more (train.py:12)"
    )
    assert "{path: /srv/images, as: images}" in finding.remedy
    (finding,) = found(*files[:3], read("/srv/y.npy"))
    assert finding.message == (
        "read and not declared: /srv/images/, 3 files or more (train.py:12), and 1 more"
    )
    (finding,) = found(*(read(f"/{name}") for name in "abcd"))
    assert finding.message == "read and not declared: /a (train.py:12), and 3 more"


def test_what_is_declared_is_told_by_nobody() -> None:
    entries = (DataSource(path="/srv/mini"), DataSource(path="/srv/x.npy"))
    settings = settings_of().model_copy(update={"data": entries})
    assert found(read("/srv/mini/a.npy"), read("/srv/x.npy"), settings=settings) == ()
    (finding,) = found(read("/srv/mini2/a.npy"), settings=settings)
    assert finding.message.startswith("read and not declared: /srv/mini2/a.npy")


def test_what_lies_in_a_container_came_with_its_image() -> None:
    evidence = run(read())
    isolation = evidence.run.isolation.model_copy(update={"image": "sha256:0"})
    record = evidence.run.model_copy(update={"isolation": isolation})
    held = evidence.model_copy(update={"run": record})
    assert undeclared_reads((held, held), settings_of()) == ()


def test_odd_paths_make_an_entry_that_yaml_reads_as_it_is_meant() -> None:
    assert entries_for(data_names(["/srv/a b/ü: x}.csv"])) == (
        'data: [{path: "/srv/a b/\\u00fc: x}.csv", as: x-.csv}]'
    )
    names = data_names(["/srv/Mini", "/srv2/mini", "/srv/...", "/"])
    assert list(names.values()) == ["Mini", "mini-2", "data", "data-2"]
    for path, name in list(names.items())[:3]:
        assert DataSource.model_validate({"path": path, "as": name}).label == name


@pytest.mark.parametrize(
    ("second", "words"),
    [
        (read(stamp="96 2"), ("96 1", "96 2")),
        (read(stamp="97 1"), ("96 1", "97 1")),
        (read("/srv/y.npy"), ("96 1", "")),
    ],
)
def test_a_file_that_is_another_in_the_second_run_is_suspected(
    second: Source, words: tuple[str, str]
) -> None:
    sources = suspected_sources((run(read()), run(second)))
    assert (sources[0].before, sources[0].after) == words
    assert {source.kind for source in sources} == {SourceKind.READ}


def test_files_that_did_not_change_or_were_not_all_told_are_not_suspected() -> None:
    assert suspected_sources((run(read(), read(line=3)), run(read()))) == ()
    capped = many("/srv/images/", "16")
    assert suspected_sources((run(read(), capped), run(read("/srv/y.npy"), capped))) == ()
    full = [read(f"/srv/{number}/x") for number in range(40)]
    assert suspected_sources((run(*full), run())) == ()
    odd = read(stamp="later")
    assert suspected_sources((run(odd), run(odd))) == ()


def split(line: int = 9, after: str = "") -> Source:
    return read("random.shuffle", after, kind=SourceKind.SPLIT, before="os.listdir", line=line)


def test_a_split_by_a_listing_is_a_notice_with_its_line() -> None:
    (finding,) = splits_by_listing(run(split(), split()))
    assert (finding.code, finding.severity) == ("split-by-listing", Severity.NOTICE)
    assert finding.message == (
        "train.py:9 gives random.shuffle() what os.listdir() lists: adding one file reshuffles the "
        "split; unsorted, the order of a different disk does too"
    )
    assert "docs/data.md" in finding.remedy
    (finding,) = splits_by_listing(run(split(after="sorted")))
    assert finding.message.endswith("reshuffles the split")
    (finding,) = splits_by_listing(run(*map(split, range(1, 6))))
    assert "; and 2 more: adding one file" in finding.message
    assert splits_by_listing(run(read())) == ()


def test_what_the_script_saves_and_nobody_compares_is_not_exercised() -> None:
    saved = [read(path, "", kind=SourceKind.SAVED) for path in ("p/half.pth", "p/out/ema.pt")]
    assert saved_and_asked(run(*saved), settings_of(), "p") == (
        "what the script saves in p/half.pth, p/out/ema.pt: train.checkpoint is not set",
    )
    train = {"command": ("python", "t.py"), "max_steps": 3, "checkpoint": "out"}
    assert saved_and_asked(run(*saved), settings_of(train=train), "p") == (
        "what the script saves in p/half.pth: train.checkpoint names another file",
    )
    assert not saved_and_asked(run(saved[1]), settings_of(train=train), "p")


def test_a_variable_that_is_not_set_is_not_exercised_and_explains_no_difference() -> None:
    names = ("TRAIN_LR", "WORLD_SIZE", *(f"V{number}" for number in range(6)))
    asked = [read(name, "", kind=SourceKind.VARIABLE) for name in names]
    (sentence,) = saved_and_asked(run(*asked[:2]), settings_of(), ".")
    assert sentence == (
        "any value of TRAIN_LR: the script asks for it, and neither train.env nor train.pass_env "
        "sets it"
    )
    (sentence,) = saved_and_asked(run(*asked), settings_of(), ".")
    assert sentence.startswith("any value of TRAIN_LR, V0, V1, V2, V3 and 2 more: the script asks")
    assert not suspected_sources((run(*asked), run()))
