"""Write `aibom.cdx.json`: how the model was trained, in the terms of CycloneDX 1.6 (ECMA-424).

It is an ML-BOM with a formulation, which scanners and registries read. It lists the model, the data
sets with their digests, the packages that the training imported, its command, configuration and
last metrics. Everything in it comes from the package's other documents.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from typing import Final
from urllib.parse import quote

from gate.evidence.run_evidence import EvidenceSet
from gate.package.statement import utc_time
from gate.system.version import VERSION
from gate.text.digests import sha256_hex
from gate.text.json_text import canonical_json
from gate.text.package_names import STATE_MEMBER
from gate.training.runs import RunMode
from gate.verdict.request import GateRequest
from gate.verdict.verdict import Verdict

AIBOM_NAME: Final = "aibom.cdx.json"
SPEC_VERSION: Final = "1.6"
SCHEMA: Final = f"http://cyclonedx.org/schema/bom-{SPEC_VERSION}.schema.json"
MODEL: Final = "model"
WORKFLOW: Final = "training"
PREFIX: Final = "repro-gate:"
Part = dict[str, object]


def aibom(
    verdict: Verdict, evidence: EvidenceSet, request: GateRequest, state_sha256: str
) -> bytes:
    """Return the document; equal verdicts give equal bytes.

    `state_sha256` is the SHA-256 of the file with the captured state. An empty digest is left out
    of the document, together with its entry.
    """
    data = [_data(number, verdict) for number in range(len(verdict.data))]
    document: Part = {
        "$schema": SCHEMA,
        "bomFormat": "CycloneDX",
        "specVersion": SPEC_VERSION,
        "version": 1,
        "metadata": {
            "timestamp": utc_time(verdict.created_at),
            "tools": {
                "components": [{"type": "application", "name": "repro-gate", "version": VERSION}]
            },
            "component": _model(verdict, request, state_sha256),
        },
        "components": [*data, *_packages(evidence)],
        "dependencies": [
            {"ref": MODEL, "dependsOn": [str(part["bom-ref"]) for part in data]},
        ],
        "formulation": [_formula(verdict, request)],
    }
    # Derived from the content rather than drawn at random: the package of one verdict must have the
    # same bytes every time.
    name = sha256_hex(canonical_json(document))
    document["serialNumber"] = f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, f'{SCHEMA}#{name}')}"
    return json.dumps(document, indent=2, sort_keys=True).encode("ascii") + b"\n"


def _model(verdict: Verdict, request: GateRequest, state_sha256: str) -> Part:
    name = request.repository or request.top.name or "model"
    facts = {
        "outcome": verdict.outcome.value,
        "level": verdict.level.value if verdict.level else "",
        "strict_runs": str(verdict.strict_runs),
        "checkpoint_digest": verdict.checkpoint_digest,
        "snapshot_digest": verdict.snapshot_digest,
        "settings_digest": verdict.settings_digest,
        "configuration_digest": verdict.configuration.digest if verdict.configuration else "",
        "state_file": STATE_MEMBER if state_sha256 else "",
    }
    hashes = [{"alg": "SHA-256", "content": state_sha256}] if state_sha256 else []
    return {
        "type": "machine-learning-model",
        "bom-ref": MODEL,
        "name": name,
        "version": verdict.commit,
        **({"hashes": hashes} if hashes else {}),
        "properties": _properties(facts),
        "modelCard": {
            "modelParameters": {
                "datasets": [{"ref": _data_ref(number)} for number in range(len(verdict.data))]
            },
            "quantitativeAnalysis": {
                "performanceMetrics": [
                    {"type": series.name, "value": series.last_decimal, "slice": "last step"}
                    for series in verdict.series
                    if series.last_decimal
                ]
            },
        },
    }


def _data_ref(number: int) -> str:
    return f"data-{number}"


def _data(number: int, verdict: Verdict) -> Part:
    data_set = verdict.data[number]
    facts = {
        # A digest over the list of the data's files (docs/data.md), so not under `hashes`, where
        # tools expect a file's own SHA-256.
        "data_sha256": data_set.sha256,
        "kind": data_set.kind.value,
        "files": str(data_set.files),
        "size_bytes": str(data_set.size_bytes),
    }
    return {
        "type": "data",
        "bom-ref": _data_ref(number),
        "name": data_set.name or _data_ref(number),
        "data": [{"type": "dataset", "name": data_set.name or _data_ref(number)}],
        "properties": _properties(facts),
    }


def _packages(evidence: EvidenceSet) -> Iterator[Part]:
    """Yield the packages that the first strict run imported, those from PyPI with a package URL."""
    environment = evidence.runs_of(RunMode.STRICT)[0].environment
    imported = set(environment.imported)
    for text in environment.packages:
        name, _, version = text.partition("==")
        if name not in imported or not version:
            continue
        # Package URL of type `pypi`: lower case and no underscores. An unescaped slash would begin
        # a namespace.
        spelt = quote(name.lower().replace("_", "-"), safe="")
        purl = f"pkg:pypi/{spelt}@{quote(version, safe='')}"
        # The reference includes the version: ranks may import two versions of one package, and
        # references must be unique.
        part: Part = {"type": "library", "bom-ref": f"package-{text}", "name": name}
        part["version"] = version
        if name not in environment.origins:
            part["purl"] = purl
        yield part


def _formula(verdict: Verdict, request: GateRequest) -> Part:
    settings = request.settings
    command = json.dumps(list(settings.train.command))
    values = verdict.configuration.values if verdict.configuration else {}
    formula = {
        "seed": str(settings.train.seed),
        "max_steps": str(settings.train.max_steps),
        "threads": str(settings.determinism.threads),
    }
    parameters = [{"name": name, "value": value} for name, value in {**formula, **values}.items()]
    inputs: list[Part] = [
        {"resource": {"ref": _data_ref(number)}} for number in range(len(verdict.data))
    ]
    steps: list[Part] = []
    if settings.preprocess is not None:
        made = json.dumps(list(settings.preprocess.command))
        steps.append({"name": "preprocess", "commands": [{"executed": made}]})
    steps.append({"name": "train", "commands": [{"executed": command}]})
    return {
        "bom-ref": "formulation",
        "workflows": [
            {
                "bom-ref": WORKFLOW,
                "uid": verdict.commit,
                "name": f"smoke training, {verdict.strict_runs} strict runs",
                "taskTypes": ["build", "test"],
                "steps": steps,
                "inputs": [*inputs, {"parameters": parameters}],
                "outputs": [{"type": "artifact", "resource": {"ref": MODEL}}],
                "timeEnd": utc_time(verdict.created_at),
                "properties": _properties(_machine(verdict)),
            }
        ],
    }


def _machine(verdict: Verdict) -> Mapping[str, str]:
    parts = verdict.environment.parts if verdict.environment is not None else {}
    return {f"environment.{name}": text for name, text in sorted(parts.items())}


def _properties(facts: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"name": f"{PREFIX}{name}", "value": text} for name, text in facts.items() if text]
