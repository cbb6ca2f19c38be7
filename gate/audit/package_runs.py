"""What a package says of its runs: their settings, their seeds and the machine."""

from __future__ import annotations

import shlex
from collections import Counter

from gate.audit.audit import AuditedPart, AuditItem
from gate.audit.audit_items import (
    NOTHING_TO_TYPE,
    RUN,
    counted,
    failed,
    first,
    missing_document,
    passed,
    unknown,
)
from gate.audit.items import PackageFacts
from gate.evidence.documents_seeds import ProcessSeeds
from gate.evidence.overrides import OverrideKind
from gate.settings.knobs import Profile
from gate.system.version import VERSION
from gate.verdict.measured_determinism_budget import ClusterSource, SourceStatus
from gate.verdict.verdict import Answer, Verdict


def configuration(facts: PackageFacts) -> tuple[AuditItem, ...]:
    """Settings that are those of the verdict, and a baseline that judged."""
    part, verdict, settings = AuditedPart.CONFIGURATION, facts.verdict, facts.settings
    if verdict is None or settings is None:
        name = "verdict.json" if verdict is None else "repro-gate.yml"
        return (
            missing_document(facts.problems, part, name, "under which settings the runs were made"),
        )
    items = [_settings(facts, verdict)]
    weak = [f"allow_operators: {name}" for name in settings.determinism.allow_operators]
    if settings.determinism.profile is not Profile.STRICT:
        weak.append(f"profile: {settings.determinism.profile.value}")
    if weak:
        items.append(
            failed(
                part,
                "strict-mode",
                f"strict mode is weakened: {first(weak)}",
                risk="Two runs may differ although nothing changed, or be equal by luck.",
                remedy="Remove it from determinism in repro-gate.yml and run the gate again.",
                command=RUN,
            )
        )
    if verdict.baseline_facts is None:
        items.append(
            failed(
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
        found = f"judged by the baseline of commit {verdict.baseline_facts.commit[:12]}"
        items.append(passed(part, "baseline", f"{found}: {verdict.outcome.value}"))
    return tuple(items)


def _settings(facts: PackageFacts, verdict: Verdict) -> AuditItem:
    part, code = AuditedPart.CONFIGURATION, "settings"
    if facts.settings_digest != verdict.settings_digest:
        if facts.call is None or facts.call.gate_version != VERSION:
            return unknown(
                part,
                code,
                "the package is of another version: it may know other settings",
                risk="The runs may have had other settings than the ones that are written down.",
                remedy="Run the gate again with this version, or audit it with the version that "
                "made it.",
                command=RUN,
            )
        return failed(
            part,
            code,
            "the packed repro-gate.yml has another digest than the settings of the verdict",
            risk="The runs had other settings than the ones that are written down.",
            remedy=NOTHING_TO_TYPE,
        )
    return passed(part, code, f"repro-gate.yml, SHA-256 {facts.settings_digest[:12]}")


def seeds(facts: PackageFacts) -> tuple[AuditItem, ...]:
    """Seeds of every process, what the script did after it, and whether the runs repeat."""
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
                failed(
                    part,
                    "seeds",
                    f"{len(bare)} of {len(document.processes)} processes name no seed",
                    risk="Each run draws other numbers, so it is another experiment.",
                    remedy="Run the gate again with this version.",
                    command=RUN,
                )
            )
        else:
            words = first(sorted({_words(process) for process in document.processes}))
            items.append(passed(part, "seeds", words))
        entropy = [one.place for one in document.by_the_script if _by_entropy(one.kind)]
        if entropy:
            items.append(
                failed(
                    part,
                    "unseeded-generator",
                    f"another seed in each run: {first(entropy)}",
                    risk="Each run draws other numbers, so it is another experiment.",
                    remedy="Give each a fixed seed and run the gate again.",
                    command=RUN,
                )
            )
    return (*items, _repeat(facts))


def _by_entropy(kind: OverrideKind) -> bool:
    return kind is OverrideKind.ENTROPY


def _seeded(process: ProcessSeeds) -> bool:
    """Whether torch and Python's hashes had a seed; a generator that was not started has none."""
    return process.generators.get("torch", "").isdecimal() and process.hash_seed.isdecimal()


def _words(process: ProcessSeeds) -> str:
    named = {name: seed for name, seed in process.generators.items() if seed.isdecimal()}
    every = {**named, "PYTHONHASHSEED": process.hash_seed}
    return ", ".join(f"{name} {seed[:20]}" for name, seed in sorted(every.items()))


def _repeat(facts: PackageFacts) -> AuditItem:
    part, code, verdict = AuditedPart.SEEDS, "repeat", facts.verdict
    if verdict is None:
        return missing_document(facts.problems, part, "verdict.json", "whether the runs were equal")
    if verdict.answers.repeat is Answer.EQUAL:
        return passed(part, code, f"{verdict.strict_runs} runs with these seeds are equal")
    if verdict.answers.repeat is Answer.NOT_COMPARED:
        return unknown(
            part,
            code,
            "no two runs were compared",
            risk="A number that nobody got twice may be luck.",
            remedy="Run the gate again: it runs the training twice and compares.",
            command=RUN,
        )
    return failed(
        part,
        code,
        "two runs with the same seeds differ",
        risk="The number is one of many that this training gives.",
        remedy="Find the first divergence with this command, fix it and run the gate again.",
        command=f"repro-gate diagnose {shlex.quote(facts.place)}",
    )


def hardware(facts: PackageFacts) -> tuple[AuditItem, ...]:
    """The machine, and the sources of nonreproducibility that it brings."""
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
            failed(
                part,
                "machine",
                "neither CPU nor GPU is named",
                risk="Another device gives other last digits, or more.",
                remedy="Run the gate again with this version.",
                command=RUN,
            )
        )
    else:
        gpus = [f"{gpu.count} x {gpu.name}" for gpu in document.accelerators]
        host = document.host.cpu or "CPU not named"
        found = f"{counted(document.ranks, 'rank')}, {first(gpus) or 'no GPU'}, {host}"
        items.append(passed(part, "machine", found))
    return (*items, _budget(facts))


def _budget(facts: PackageFacts) -> AuditItem:
    """Ranks on unlike hardware fail: a result that they make together is none of either's."""
    part, code = AuditedPart.HARDWARE, "determinism-budget"
    budget = facts.verdict.determinism_budget if facts.verdict is not None else ()
    if not budget:
        return unknown(
            part,
            code,
            "the verdict says nothing of the sources of nonreproducibility of a cluster",
            risk="Order of reductions, neighbours or unlike machines may move the number.",
            remedy="Run the gate again with this version.",
            command=RUN,
        )
    unlike = [
        source
        for source in budget
        if source.kind is ClusterSource.HARDWARE and source.state is SourceStatus.RECORDED
    ]
    if unlike:
        return failed(
            part,
            code,
            f"unlike hardware: {unlike[0].because}",
            risk="What one part of the machine rounds differs from what another one does.",
            remedy="Give all ranks, and the baseline, one kind of machine and run the gate again.",
            command=RUN,
        )
    counts = Counter(source.state for source in budget)
    words = ", ".join(f"{counts[s]} {s.value.replace('-', ' ')}" for s in SourceStatus if counts[s])
    return passed(part, code, f"sources of nonreproducibility: {words}")
