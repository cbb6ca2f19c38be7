"""Describe a sealed pass for a tracker: parameters, metrics of each step, tags.

The rules come from MLflow, `mlflow/utils/validation.py`. A name has word characters, dots, dashes,
spaces, colons and slashes, and no part of it may be empty or lead up. A name has at most 250
characters, a parameter's value 500 in every version of the server, and a tag's value 5,000.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from gate.evidence.run_evidence import EvidenceSet
from gate.publishing.artifact import SealedArtifact, TrackedMetric, TrackedRun
from gate.settings.gate_settings import GateSettings
from gate.system.version import VERSION
from gate.training.runs import RunMode
from gate.verdict.request import GateRequest
from gate.verdict.verdict import Verdict

MAX_NAME: Final = 250
MAX_PARAMETER: Final = 500
MAX_TAG: Final = 5000
_OTHER: Final = re.compile(r"[^A-Za-z0-9_.\- /]")
_CUT: Final = "…"


def server_names(names: Iterable[str]) -> Mapping[str, str]:
    """Map each name to a distinct name that the server accepts."""
    stored: dict[str, str] = {}
    taken: set[str] = set()
    for name in names:
        if name in stored:
            continue
        # Cut before splitting: the cut may leave a part such as `..`, which the next line removes.
        parts = _OTHER.sub("_", name)[:MAX_NAME].split("/")
        plain = "/".join(part for part in parts if part.strip(". ")) or "_"
        unique, count = plain, 1
        while unique in taken:
            count += 1
            unique = f"{plain[: MAX_NAME - 12]}-{count}"
        taken.add(unique)
        stored[name] = unique
    return stored


def cut(text: str, limit: int) -> str:
    """Return a value within the server's limit, with a mark where it was cut."""
    return text if len(text) <= limit else text[: limit - 1] + _CUT


def json_number(value: float) -> float | str:
    """Return a float as the server reads it; if it is not finite, as a word (protobuf's JSON)."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value


MAX_METRICS: Final = 100_000
SHORT_COMMIT: Final = 12


@dataclass(frozen=True, kw_only=True, slots=True)
class SealWords:
    """What a seal says beyond its signature; `signer` is a key's id, or a job's identity.

    `baseline_digest` is a SHA-256 in hexadecimal, empty if no baseline judged.
    """

    signer: str
    baseline_digest: str
    reference: str


def tracked_run(
    verdict: Verdict,
    evidence: EvidenceSet,
    artifact: SealedArtifact,
    request: GateRequest,
    words: SealWords,
) -> TrackedRun:
    """Return the run for a tracker; its numbers are those of the first strict run."""
    # The verdict's time, so that reporting the same package again gives the same run data.
    milliseconds = int(datetime.fromisoformat(verdict.created_at).timestamp() * 1000)
    tags = {
        "repro-gate.commit": verdict.commit,
        "repro-gate.outcome": verdict.outcome.value,
        "repro-gate.level": verdict.level.value if verdict.level else "",
        "repro-gate.gate_id": artifact.gate_id,
        "repro-gate.repository": artifact.repository,
        "repro-gate.baseline_sha256": words.baseline_digest,
        "repro-gate.checkpoint_digest": verdict.checkpoint_digest,
        "repro-gate.package_sha256": artifact.package.sha256,
        "repro-gate.package_reference": words.reference,
        "repro-gate.sealed_by": words.signer,
        "repro-gate.version": VERSION,
        "repro-gate.run_url": request.run_url,
        # MLflow shows this tag as a run's version
        "mlflow.source.git.commit": verdict.commit,
    }
    return TrackedRun(
        name=f"{verdict.commit[:SHORT_COMMIT]} {verdict.outcome.value}",
        commit=verdict.commit,
        milliseconds=milliseconds,
        parameters={
            **_settings(request.settings),
            **_knobs(evidence),
            **_configuration(verdict),
        },
        metrics=tuple(_metrics(evidence))[:MAX_METRICS],
        tags={name: value for name, value in tags.items() if value},
        files=(artifact.package, *artifact.seals),
        passes=verdict.passes,
    )


def _settings(settings: GateSettings) -> dict[str, str]:
    """Return each setting with its value, defaults too, so that runs can be compared by any."""
    # where a package is published is not a property of the run
    return dict(_flat(settings.model_dump(mode="json", exclude={"publish", "version"}), ""))


def _flat(value: object, path: str) -> Iterator[tuple[str, str]]:
    """Yield keys joined with dots; a list is one value, because its order matters."""
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _flat(item, f"{path}.{key}" if path else str(key))
    elif value not in (None, {}, []):
        yield path, value if isinstance(value, str) else json.dumps(value)


def _configuration(verdict: Verdict) -> dict[str, str]:
    """Return the training's own configuration; text has no quotes, as people search for it.

    Secrets were removed before the configuration was written.
    """
    configuration = verdict.configuration
    if configuration is None:
        return {}
    values = {f"configuration.{name}": _bare(text) for name, text in configuration.values.items()}
    return {"configuration_sha256": configuration.digest, **values}


def _bare(text: str) -> str:
    """Return a JSON string without its quotes if it is printable; other text stays unchanged."""
    try:
        value = json.loads(text)
    except ValueError:
        # the training wrote it, so it may be anything
        return text
    return value if isinstance(value, str) and value.isprintable() else text


def _knobs(evidence: EvidenceSet) -> dict[str, str]:
    """Return the knobs that the harness read back in the first strict run's first process."""
    runs = evidence.runs_of(RunMode.STRICT)
    processes = runs[0].processes if runs else ()
    applied = processes[0].applied if processes else {}
    return {f"applied.{name}": value for name, value in sorted(applied.items())}


def _metrics(evidence: EvidenceSet) -> Iterator[TrackedMetric]:
    """Yield metrics sorted by step, so that a limit cuts the last steps of every metric."""
    runs = evidence.runs_of(RunMode.STRICT)
    metrics = [
        TrackedMetric(name=series.name, step=step, value=value)
        for series in (runs[0].metrics if runs else ())
        for step, value in series.points.pairs()
    ]
    yield from sorted(metrics, key=lambda metric: metric.step)
