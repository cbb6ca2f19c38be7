"""Answer an audit of a package, from the documents in it."""

from __future__ import annotations

import shlex
from collections import Counter
from typing import Final

from gate.audit.items import (
    NOTHING_TO_TYPE,
    RUN,
    WEAKENED,
    AuditedPart,
    AuditFact,
    AuditItem,
    AuditReport,
    AuditSubject,
    PackageFacts,
    SealCheck,
    fact,
    failed_item,
    first,
    missing_document,
    part_answers,
    passed_item,
    unknown,
    weakened,
)
from gate.data.data_sets import REPEAT_PREPROCESSING, DataSet, unrepeated_data
from gate.evidence.context_documents import ProcessSeeds
from gate.evidence.observations import OverrideKind
from gate.system.version import VERSION
from gate.text.phrases import count
from gate.verdict.verdict import (
    FAULT,
    Answer,
    ClusterSource,
    FailureMode,
    Severity,
    SourceStatus,
    Verdict,
    judged_words,
)


def configuration(facts: PackageFacts) -> tuple[AuditItem, ...]:
    """Check that the packed settings are the verdict's, and that a baseline judged."""
    part, verdict, settings = AuditedPart.CONFIGURATION, facts.verdict, facts.settings
    if verdict is None or settings is None:
        name = "verdict.json" if verdict is None else "repro-gate.yml"
        return (
            missing_document(facts.problems, part, name, "under which settings the runs were made"),
        )
    items = [_settings(facts, verdict)]
    weak = weakened(settings)
    if weak:
        items.append(
            failed_item(
                part,
                "strict-mode",
                f"strict mode is weakened: {first(weak)}",
                risk=WEAKENED,
                remedy="Remove it from determinism in repro-gate.yml and run the gate again.",
                command=RUN,
            )
        )
    if verdict.baseline_facts is None:
        items.append(
            failed_item(
                part,
                "baseline",
                "no baseline judged the runs",
                risk="The number was compared with nothing.",
                remedy="Record a baseline, commit it and run the gate again.",
                command='repro-gate baseline record --reason "first baseline" && '
                "git add .repro-gate/baseline && "
                f'git commit -m "first baseline" && {RUN}',
            )
        )
    else:
        items.append(_baseline(verdict, verdict.baseline_facts.commit[:12]))
    return tuple(items)


def _baseline(verdict: Verdict, commit: str) -> AuditItem:
    part, outcome = AuditedPart.CONFIGURATION, judged_words(verdict.outcome, passes=verdict.passes)
    # runs that differ, or a number that is not finite, are compared with no baseline
    if verdict.answers.baseline is Answer.NOT_COMPARED and verdict.unaffected is None:
        return failed_item(
            part,
            "baseline",
            f"nothing was compared with the baseline of commit {commit}: {outcome}",
            risk="The number was compared with nothing.",
            remedy="Fix what the verdict names and run the gate again.",
            command=RUN,
        )
    return passed_item(part, "baseline", f"judged by the baseline of commit {commit}: {outcome}")


def _settings(facts: PackageFacts, verdict: Verdict) -> AuditItem:
    part, code = AuditedPart.CONFIGURATION, "settings"
    if facts.settings_digest != verdict.settings_digest:
        # The digest covers defaults too, and those may differ between versions.
        if facts.call is None or facts.call.gate_version != VERSION:
            return unknown(
                part,
                code,
                "another version made the package, and it may know other settings",
                risk="The runs may have used settings other than those written down.",
                remedy="Run the gate again with this version, or audit it with the version that "
                "made it.",
                command=RUN,
            )
        return failed_item(
            part,
            code,
            "the packed repro-gate.yml has another digest than the settings of the verdict",
            risk="The runs used settings other than those written down.",
            remedy=NOTHING_TO_TYPE,
        )
    return passed_item(part, code, f"repro-gate.yml, SHA-256 {facts.settings_digest[:12]}")


def seeds(facts: PackageFacts) -> tuple[AuditItem, ...]:
    """Check the seeds of every process, seeds by the script, and whether the runs are equal."""
    part, document = AuditedPart.SEEDS, facts.seeds
    items: list[AuditItem] = []
    if document is None:
        items.append(
            missing_document(
                facts.problems, part, "seeds.json", "from which seeds the number comes"
            )
        )
    else:
        bare = [process for process in document.processes if not _seeded(process)]
        if bare or not document.processes:
            items.append(
                failed_item(
                    part,
                    "seeds",
                    f"{len(bare)} of {len(document.processes)} processes name no seed",
                    risk="Each run draws different numbers, so it is a different experiment.",
                    remedy="Run the gate again with this version.",
                    command=RUN,
                )
            )
        else:
            words = first(sorted({_words(process) for process in document.processes}))
            items.append(passed_item(part, "seeds", words))
        entropy = [place.place for place in document.by_the_script if _by_entropy(place.kind)]
        if entropy:
            items.append(
                failed_item(
                    part,
                    "unseeded-generator",
                    f"a different seed in each run: {first(entropy)}",
                    risk="Each run draws different numbers, so it is a different experiment.",
                    remedy="Give each a fixed seed and run the gate again.",
                    command=RUN,
                )
            )
    return (*items, _repeat(facts))


def _by_entropy(kind: OverrideKind) -> bool:
    return kind is OverrideKind.ENTROPY


def _seeded(process: ProcessSeeds) -> bool:
    """Return whether torch and Python's hashes were seeded; unused generators have no seed."""
    return process.generators.get("torch", "").isdecimal() and process.hash_seed.isdecimal()


def _words(process: ProcessSeeds) -> str:
    named = {name: seed for name, seed in process.generators.items() if seed.isdecimal()}
    every = {**named, "PYTHONHASHSEED": process.hash_seed}
    return ", ".join(f"{name} {seed[:20]}" for name, seed in sorted(every.items()))


def _repeat(facts: PackageFacts) -> AuditItem:
    part, code, verdict = AuditedPart.SEEDS, "repeat", facts.verdict
    if verdict is None:
        return missing_document(facts.problems, part, "verdict.json", "whether the runs were equal")
    if verdict.unrepeated is not None:
        return failed_item(
            part,
            code,
            unrepeated_data(verdict.unrepeated),
            risk="The number depends on which of its outputs a training was given.",
            remedy=f"{REPEAT_PREPROCESSING} Then run the gate again.",
            command=RUN,
        )
    if verdict.answers.repeat is Answer.EQUAL:
        return passed_item(part, code, f"{verdict.strict_runs} runs with these seeds are equal")
    if verdict.one_run is not None:
        return passed_item(part, code, verdict.one_run.described)
    if verdict.answers.repeat is Answer.NOT_COMPARED:
        return unknown(
            part,
            code,
            "no two runs were compared",
            risk="A number that was produced only once may be luck.",
            remedy="Run the gate again: it runs the training twice and compares.",
            command=RUN,
        )
    return failed_item(
        part,
        code,
        "two runs with the same seeds differ",
        risk="The number is one of several that this training produces.",
        remedy="Find the first divergence with this command, fix it and run the gate again.",
        command=f"repro-gate diagnose {shlex.quote(facts.place)}",
    )


def hardware(facts: PackageFacts) -> tuple[AuditItem, ...]:
    """Check that the machine is named, and the sources of nonreproducibility that it has."""
    part, document = AuditedPart.HARDWARE, facts.cluster
    items: list[AuditItem] = []
    if document is None:
        items.append(
            missing_document(
                facts.problems, part, "cluster.json", "on which machine the number was made"
            )
        )
    elif not document.host.cpu and not document.accelerators:
        items.append(
            failed_item(
                part,
                "machine",
                "neither CPU nor GPU is named",
                risk="Another device changes the last digits, or more.",
                remedy="Run the gate again with this version.",
                command=RUN,
            )
        )
    else:
        gpus = [f"{gpu.count} x {gpu.name}" for gpu in document.accelerators]
        host = document.host.cpu or "CPU not named"
        answer = f"{count(document.ranks, 'rank')}, {first(gpus) or 'no GPU'}, {host}"
        items.append(passed_item(part, "machine", answer))
    return (*items, _budget(facts))


def _budget(facts: PackageFacts) -> AuditItem:
    """Check the determinism budget; ranks on different hardware fail.

    Their common result is not reproducible on either kind of hardware alone.
    """
    part, code = AuditedPart.HARDWARE, "determinism-budget"
    budget = facts.verdict.determinism_budget if facts.verdict is not None else ()
    if not budget:
        return unknown(
            part,
            code,
            "the verdict does not report the sources of nonreproducibility on a cluster",
            risk="The order of reductions, other work on the machine or mixed hardware may change "
            "the number.",
            remedy="Run the gate again with this version.",
            command=RUN,
        )
    unlike = [
        source
        for source in budget
        if source.kind is ClusterSource.HARDWARE and source.state is SourceStatus.RECORDED
    ]
    if unlike:
        return failed_item(
            part,
            code,
            f"unlike hardware: {unlike[0].because}",
            risk="Different hardware rounds differently, so the ranks can disagree.",
            remedy="Give all ranks, and the baseline, one kind of machine and run the gate again.",
            command=RUN,
        )
    counts = Counter(source.state for source in budget)
    words = ", ".join(f"{counts[s]} {s.value.replace('-', ' ')}" for s in SourceStatus if counts[s])
    return passed_item(part, code, f"sources of nonreproducibility: {words}")


SOURCE_MEMBER: Final = "source.pack"
DIFF_MEMBER: Final = "uncommitted.diff"
LOCK_AND_RUN: Final = (
    "python -m pip freeze --all > requirements-installed.txt && python -m pip install uv && "
    "uv pip compile --generate-hashes requirements-installed.txt -o requirements-lock.txt && "
    "git add requirements-installed.txt requirements-lock.txt && "
    f'git commit -m "lock file" && {RUN}'
)
# findings of the verdict that make a part fail
FINDINGS: Final = {
    "unverified-evidence": AuditedPart.CODE,
    "lock-not-installed": AuditedPart.ENVIRONMENT,
    "lock-unreadable": AuditedPart.ENVIRONMENT,
    "ranks-unlike": AuditedPart.ENVIRONMENT,
    "undeclared-read": AuditedPart.DATA,
    "data-moved": AuditedPart.DATA,
    "split-by-listing": AuditedPart.DATA,
    "weaker-level": AuditedPart.CONFIGURATION,
    "settings-overridden": AuditedPart.CONFIGURATION,
    "settings-from-head": AuditedPart.CONFIGURATION,
    "uninstrumented-subprocess": AuditedPart.CONFIGURATION,
    "subprocess-without-variable": AuditedPart.CONFIGURATION,
    "seed-differs": AuditedPart.SEEDS,
    "entropy-drawn": AuditedPart.SEEDS,
    "gpu-unused": AuditedPart.HARDWARE,
}
RISKS: Final = {
    AuditedPart.CODE: "Nobody observed the runs behind the number here.",
    AuditedPart.ENVIRONMENT: "The number was produced with libraries other than those the files "
    "list.",
    AuditedPart.DATA: "A data change would look like a code change.",
    AuditedPart.CONFIGURATION: "The runs used settings other than those written down.",
    AuditedPart.SEEDS: "Each run draws different numbers, so it is a different experiment.",
    AuditedPart.HARDWARE: "The number was produced on a device other than the intended one.",
}
NOT_KNOWN: Final = (
    "Whether the training was honest: a package repeats what its runs reported.",
    "Whether it gives the same numbers elsewhere: only another run shows that.",
)


def audit_package(facts: PackageFacts) -> AuditReport:
    """Return the report with all seven parts."""
    items = (
        *_code(facts),
        *_environment(facts),
        *_data(facts),
        *configuration(facts),
        *seeds(facts),
        *hardware(facts),
        *_findings(facts.verdict),
        _seal(facts),
    )
    return AuditReport(
        version=VERSION,
        subject=AuditSubject.PACKAGE,
        place=facts.place,
        parts=part_answers(items),
        items=items,
        facts=_facts(facts),
        determinism_budget=facts.verdict.determinism_budget if facts.verdict else (),
        not_known=NOT_KNOWN,
    )


def _code(facts: PackageFacts) -> tuple[AuditItem, ...]:
    part, verdict = AuditedPart.CODE, facts.verdict
    if verdict is None:
        return (
            missing_document(
                facts.problems, part, "verdict.json", "which code produced the number"
            ),
        )
    if facts.call is not None and facts.call.commit != verdict.commit:
        answer = f"verdict.json is about {verdict.commit[:12]}, call.json about another commit"
        risk = "The two come from different runs."
        return (failed_item(part, "commit", answer, risk=risk, remedy=NOTHING_TO_TYPE),)
    items = [passed_item(part, "commit", f"commit {verdict.commit[:12]}")]
    if verdict.changed_files:
        packed = "; the package holds the diff" if DIFF_MEMBER in facts.members else ""
        items.append(
            failed_item(
                part,
                "clean-tree",
                f"{len(verdict.changed_files):,} uncommitted: {first(verdict.changed_files)}"
                f"{packed}",
                risk="The number belongs to no commit, so it cannot be run again from one.",
                remedy="Commit them and run the gate again.",
                command=f'git add --all && git commit -m "what the numbers rest on" && {RUN}',
            )
        )
    return (*items, _source(facts))


def _source(facts: PackageFacts) -> AuditItem:
    part, code = AuditedPart.CODE, "source"
    if SOURCE_MEMBER in facts.members:
        return passed_item(part, code, "the commit's files are packed")
    if facts.call is not None and facts.call.repository:
        return passed_item(part, code, f"repository {facts.call.repository}")
    return unknown(
        part,
        code,
        "the package neither contains the code nor says where it is",
        risk="Nobody can run it again from the package alone.",
        remedy="Set package.source: true in repro-gate.yml, or make the package in a GitHub job.",
        command=RUN,
    )


def _environment(facts: PackageFacts) -> tuple[AuditItem, ...]:
    part, document = AuditedPart.ENVIRONMENT, facts.environment
    if document is None:
        return (
            missing_document(
                facts.problems, part, "environment.json", "which libraries produced the number"
            ),
        )
    risk = "Nobody can reinstall what the number was produced with."
    if not document.packages:
        return (
            failed_item(
                part,
                "packages",
                "no package is listed",
                risk=risk,
                remedy="Run the gate again with this version.",
                command=RUN,
            ),
        )
    words = ", ".join(
        f"{name} {document.parts[name]}" for name in ("python", "torch") if name in document.parts
    )
    installed = f"{count(len(document.packages), 'package')} with version ({words})"
    items = [passed_item(part, "packages", installed)]
    locks = [lock.path for lock in document.locks if not lock.problem]
    if locks:
        items.append(passed_item(part, "lock-file", f"lock files: {first(locks)}"))
    else:
        items.append(
            failed_item(
                part,
                "lock-file",
                "no lock file was part of the commit",
                risk="The versions are known, the files behind them are not: an index may serve "
                "different files under the same version.",
                remedy="Commit a lock file with hashes, which this command creates, and run the "
                "gate "
                "again.",
                command=LOCK_AND_RUN,
            )
        )
    return tuple(items)


def _data(facts: PackageFacts) -> tuple[AuditItem, ...]:
    part, code, document = AuditedPart.DATA, "declared-data", facts.data
    if document is None:
        return (
            missing_document(facts.problems, part, "data.json", "which data produced the number"),
        )
    if document.sets:
        names = first([_described(data_set) for data_set in document.sets])
        return (passed_item(part, code, f"{count(len(document.sets), 'data set')}: {names}"),)
    verdict = facts.verdict
    # Outside an image, an undeclared read would be a finding of the verdict (`undeclared-read`).
    if verdict is not None and verdict.runs and not verdict.isolation.image:
        return (passed_item(part, code, "no data is declared, and the runs read none"),)
    return (
        unknown(
            part,
            code,
            "none is declared, and data inside the image was not checked",
            risk=RISKS[part],
            remedy="Declare what the training reads under data in repro-gate.yml and run the gate "
            "again.",
            command=RUN,
        ),
    )


def _described(data_set: DataSet) -> str:
    sampled = " over some files only" if data_set.sampled else ""
    files = count(data_set.files, "file")
    return f"{data_set.name} ({files}, SHA-256 {data_set.sha256[:12]}{sampled})"


def _findings(verdict: Verdict | None) -> tuple[AuditItem, ...]:
    """Return the gate's own findings as items, one for each code."""
    items: dict[str, AuditItem] = {}
    for finding in verdict.findings if verdict is not None else ():
        part = FINDINGS.get(finding.code)
        if part is not None and finding.code not in items and finding.code != FAULT:
            items[finding.code] = failed_item(
                part,
                finding.code,
                finding.message,
                risk=RISKS[part],
                remedy=finding.remedy,
                command=RUN if finding.severity is not Severity.ERROR else "",
            )
    return tuple(items.values())


def _seal(facts: PackageFacts) -> AuditItem:
    part, code = AuditedPart.SEALS, "seal"
    if facts.seal is SealCheck.VALID:
        return passed_item(part, code, facts.seal_words)
    commit = facts.verdict.commit if facts.verdict is not None else "COMMIT"
    verify = (
        f"repro-gate audit --package {shlex.quote(facts.place)} --trusted-keys trusted-keys.json "
        f"--commit {shlex.quote(commit)}"
    )
    risk = "Anyone who handled the package since the run may have changed it."
    if facts.seal is SealCheck.NOT_ASKED:
        return unknown(
            part,
            code,
            "the seal was not checked",
            risk=risk,
            remedy="Give a trust file from a source that you trust, and the commit.",
            command=verify,
        )
    if facts.seal is SealCheck.REFUSED:
        return failed_item(part, code, facts.seal_words, risk=risk, remedy=NOTHING_TO_TYPE)
    return failed_item(
        part,
        code,
        "there is no seal next to the package",
        risk=risk,
        remedy="Run the gate again with a signing key: only a pass is sealed, and the seals are "
        "next to the package.",
        command="read -rs REPRO_GATE_PASSPHRASE && export REPRO_GATE_PASSPHRASE && "
        f"repro-gate keys generate --out ../gate-keys && {RUN} --signing-key "
        "../gate-keys/signing-key.pem",
    )


def _facts(facts: PackageFacts) -> tuple[AuditFact, ...]:
    known: list[tuple[str, object]] = [("package_sha256", facts.sha256)]
    verdict, settings, cluster = facts.verdict, facts.settings, facts.cluster
    if verdict is not None:
        known += [
            ("commit", verdict.commit),
            ("outcome", verdict.outcome.value),
            ("level", verdict.level.value if verdict.level else ""),
            # A single run was compared bit for bit with the recorded ones, so count those too.
            (
                "strict_runs",
                verdict.strict_runs + (verdict.one_run.runs if verdict.one_run else 0),
            ),
            ("run_seconds", f"{sum(run.wall_seconds for run in verdict.runs):,.0f}"),
            ("runs", len(verdict.runs)),
            ("isolation", verdict.isolation.mode.value),
            ("resume", verdict.resume.state.value if verdict.resume else ""),
        ]
        if verdict.failure_mode is not FailureMode.NONE:
            known += [("failure_mode", verdict.failure_mode)]
            # without the anchor, because the heading is the mode itself
            known.append(("runbook", verdict.runbook.partition("#")[0]))
    if settings is not None:
        known += [
            ("command", " ".join(settings.train.command)),
            ("max_steps", settings.train.max_steps),
            ("seed", settings.train.seed),
        ]
    if facts.call is not None:
        known += [("repository", facts.call.repository), ("config", facts.call.config)]
    if facts.environment is not None:
        known += [
            ("packages", len(facts.environment.packages)),
            *((name, facts.environment.parts.get(name, "")) for name in ("python", "torch")),
            ("locks", first([lock.path for lock in facts.environment.locks if not lock.problem])),
        ]
    if facts.data is not None:
        known.append(("data", first([_described(data_set) for data_set in facts.data.sets])))
    if facts.seeds is not None:
        known.append(("seeds_run", len({result.seed for result in facts.seeds.further})))
    if cluster is not None:
        gpus = [f"{gpu.count} x {gpu.name}" for gpu in cluster.accelerators]
        memory = cluster.host.memory_bytes
        known += [
            ("device", first(gpus) or "cpu"),
            ("cpu", cluster.host.cpu),
            ("os", cluster.host.os),
            ("ranks", cluster.ranks),
            ("memory_gib", f"{memory / 2**30:,.1f}" if memory else ""),
        ]
    return tuple(fact(name, value) for name, value in known if value not in ("", 0))
