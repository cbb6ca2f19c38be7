"""Sends a sealed package to the registry, and a verdict to the tracker and the history.

No failure here changes the verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

from gate.errors import CancelledError, as_gate_error
from gate.fleet.lines import call_facts, verdict_line
from gate.fleet.stores import append
from gate.package.seal_records import Package
from gate.package.signing import Sealing
from gate.pipelines.adapters import Adapters
from gate.pipelines.case import Gated
from gate.publishing.artifact import (
    NOT_PUBLISHED,
    SEAL_FILE,
    PublishedPackage,
    SealedArtifact,
    SealedFile,
)
from gate.publishing.tracked import MAX_METRICS, SealWords, tracked_run
from gate.report.wording import sentences
from gate.settings.delivery_sections import PublishSettings
from gate.system.files.port import Files
from gate.text.digests import sha256_hex
from gate.text.documents import write_document
from gate.text.package_names import MAX_SEAL_BYTES
from gate.text.strict_json import parse_json
from gate.verdict.history_lines import HistoryLine
from gate.verdict.request import GateRequest
from gate.verdict.verdict import Verdict

MAX_FILES: Final = 1000
MAX_WORDS: Final = 400


def publish(
    gated: Gated, package: Package, sealing: Sealing, request: GateRequest, adapters: Adapters
) -> PublishedPackage:
    """Push the package to the registry and record it in the tracker.

    Each fault becomes a sentence in the result.
    """
    publishing = request.settings.publish
    # a job of a fork has no credentials (docs/forks.md)
    nowhere = publishing.oci is None and publishing.tracker is None
    if nowhere or request.from_fork:
        return NOT_PUBLISHED
    passes = gated.verdict.passes
    why_not = _why_not(request, sealing) if passes else ""
    published = (
        PublishedPackage(notes=(f"Not published: {why_not}.",)) if why_not else NOT_PUBLISHED
    )
    sealed = passes and not why_not
    if not sealed and not _wants_all(request):
        return published
    step = "publishing the sealed package" if sealed else "sending the verdict to the tracker"
    adapters.progress.step(step)
    try:
        artifact = _artifact(gated.verdict, package, request, adapters.files)
    except CancelledError:
        raise
    except Exception as raised:  # noqa: BLE001 - a verdict stays what it is, whatever happens here
        what = "The sealed package is not published" if sealed else "The tracker has no run of this"
        return replace(published, faults=(*published.faults, _sentence(what, raised)))
    if sealed:
        published = _pushed(published, artifact, publishing, adapters)
    return _tracked(published, gated, artifact, sealing, request, adapters)


def _wants_all(request: GateRequest) -> bool:
    """Decide whether the tracker gets every verdict; without a seal no file is sent."""
    tracker = request.settings.publish.tracker
    # settings of the pull request could name a server of its own
    return tracker is not None and tracker.settings.when == "always" and not request.by_own_rules


def _why_not(request: GateRequest, sealing: Sealing) -> str:
    """Return why a pass must not leave this machine, or an empty text."""
    if request.by_own_rules:
        return "the settings, which say where to, come with the pull request"
    return sealing.why_not


def _artifact(
    verdict: Verdict, package: Package, request: GateRequest, files: Files
) -> SealedArtifact:
    # every seal beside the package, since a keyless seal has other files than one with a key
    names = files.list_names(package.path.parent, max_names=MAX_FILES)
    return SealedArtifact(
        package=SealedFile(
            name=package.path.name,
            path=package.path,
            sha256=package.sha256,
            size_bytes=package.size_bytes,
        ),
        seals=tuple(_seal(package, name, files) for name in names if SEAL_FILE.match(name)),
        commit=verdict.commit,
        repository=request.repository,
        outcome=verdict.outcome.value,
        created_at=verdict.created_at,
        gate_id=request.gate_id,
    )


def _seal(package: Package, name: str, files: Files) -> SealedFile:
    path = package.path.with_name(name)
    content = files.read_bytes(path, max_bytes=MAX_SEAL_BYTES)
    return SealedFile(name=name, path=path, sha256=sha256_hex(content), size_bytes=len(content))


def _pushed(
    published: PublishedPackage,
    artifact: SealedArtifact,
    settings: PublishSettings,
    adapters: Adapters,
) -> PublishedPackage:
    if settings.oci is None:
        return published
    try:
        pushed = adapters.publishers.registry(settings.oci).push(artifact)
    except CancelledError:
        raise
    except Exception as raised:  # noqa: BLE001 - as above
        sentence = _sentence(f"The package was not pushed to {settings.oci}", raised)
        return replace(published, faults=(*published.faults, sentence))
    return replace(
        published,
        reference=pushed.reference,
        tag=pushed.tag,
        notes=(*published.notes, *pushed.notes),
    )


def _tracked(
    published: PublishedPackage,
    gated: Gated,
    artifact: SealedArtifact,
    sealing: Sealing,
    request: GateRequest,
    adapters: Adapters,
) -> PublishedPackage:
    tracker = request.settings.publish.tracker
    if tracker is None:
        return published
    names, tracking = tracker
    baseline = gated.baseline
    try:
        words = SealWords(
            signer=_signer(sealing, artifact, adapters.files),
            baseline_digest=sha256_hex(write_document(baseline)) if baseline else "",
            reference=published.reference,
        )
        run = tracked_run(gated.verdict, gated.evidence, artifact, request, words)
        if sealing.why_not or not run.passes:
            # unsealed files are not sent, and an unsealed result becomes no version of a model
            run = replace(run, files=(), passes=False)
        tracked = adapters.publishers.tracker(tracking).track(run)
    except CancelledError:
        raise
    except Exception as raised:  # noqa: BLE001 - as above
        sentence = _sentence(
            f"The {names.title} server {tracking.uri} has no whole run of this", raised
        )
        return replace(published, faults=(*published.faults, sentence))
    notes = (*published.notes, *tracked.notes)
    # the limit was reached, so say that some values may be missing there
    if len(run.metrics) == MAX_METRICS:
        notes = (*notes, f"{names.title} has the first {MAX_METRICS:,} values of the metrics.")
    return replace(
        published,
        tracker=names.title,
        tracked_run=tracked.run_id,
        model_version=tracked.model_version,
        notes=notes,
    )


def _signer(sealing: Sealing, artifact: SealedArtifact, files: Files) -> str:
    """Return the identity of a keyless seal, or the key id in this call's own envelope."""
    if sealing.identity is not None:
        return sealing.identity.name
    for seal in artifact.seals:
        if seal.name.endswith(".dsse.json"):
            envelope = parse_json(files.read_bytes(seal.path, max_bytes=MAX_SEAL_BYTES), seal.name)
            signatures = envelope.get("signatures") if isinstance(envelope, dict) else None
            first = signatures[0] if isinstance(signatures, list) and signatures else None
            return str(first.get("keyid", "")) if isinstance(first, dict) else ""
    return ""


def _sentence(what: str, raised: Exception) -> str:
    """Return a few sentences: what is missing, why, and what to do."""
    fault = as_gate_error(raised)
    why = ": ".join((fault.message, *fault.details))
    return sentences(f"{what}: {why[:MAX_WORDS].rstrip('.')}.", fault.hint)


def keep_line(
    verdict: Verdict,
    request: GateRequest,
    adapters: Adapters,
    *,
    sealed: bool = False,
    cancelled: bool = False,
) -> tuple[str, ...]:
    """Append the verdict's line to the history and push its metrics; return a sentence for each."""
    publishing = request.settings.publish
    if publishing.history is None and publishing.pushgateway is None:
        return ()
    # T2: credentials go only where the base commit's settings say; a fork's job has none
    if request.from_fork or request.by_own_rules:
        return ("No line in the history: this pull request decides where it would go.",)
    try:
        call = call_facts(
            adapters.host,
            gate_id=request.gate_id,
            repository=request.repository,
            sealed=sealed,
            cancelled=cancelled,
        )
        line = verdict_line(verdict, call)
    except Exception as raised:  # noqa: BLE001 - the verdict stands, whatever this is
        return (_sentence("No line in the history", raised),)
    return tuple(_kept(line, request, adapters))


def _kept(line: HistoryLine, request: GateRequest, adapters: Adapters) -> Iterator[str]:
    publishing, publishers = request.settings.publish, adapters.publishers
    if publishing.history is not None:
        place = publishing.history
        yield _tried(
            lambda: append(publishers.history(place), line),
            f"A line was added to the history in {place}.",
            f"No line was added to the history in {place}",
        )
    if publishing.pushgateway is not None:
        url = publishing.pushgateway
        yield _tried(
            lambda: publishers.push(url, line),
            f"The metrics were pushed to {url}.",
            f"No metrics were pushed to {url}",
        )


def _tried(act: Callable[[], object], done: str, failed: str) -> str:
    try:
        act()
    except CancelledError:
        raise
    except Exception as raised:  # noqa: BLE001 - as above
        return _sentence(failed, raised)
    return done
