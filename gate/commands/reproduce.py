"""`repro-gate reproduce`: run a package again on this machine and compare with its own numbers.

Needs no baseline. The seal is checked first, unless `--unsealed` is given. The answer separates a
result that differs because code or environment differ from one that differs although both are
equal.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from gate.commands.options import AsJson, Quiet, Verbose, data_places, progress_for, show
from gate.commands.program import FILES, INTERRUPTS
from gate.commands.trust import (
    CertificateIdentity,
    CertificateIssuer,
    TrustedKeysFile,
    TrustedRootFile,
    chosen_trust,
)
from gate.comparison.differences import OptimizerSettingChange
from gate.comparison.statistical_tests import MetricSpread, SpreadPlace
from gate.data.data_sets import move_sentence
from gate.diagnosis.diagnosis import ResumeResult, ResumeState
from gate.isolation.cluster_settings import ClusterSettings
from gate.package.signing import Identity
from gate.pipelines.call_setup import (
    build_adapters,
    parse_settings_apart,
)
from gate.pipelines.opening import (
    HEADLINES,
    CodeSource,
    Reproduction,
    ReproductionCall,
    ReproductionOutcome,
)
from gate.pipelines.reproduce import checked_and_run
from gate.pipelines.settings_file import nearest_settings, settings_bytes
from gate.report.brief import cause_words
from gate.report.escape import clean
from gate.report.layout import Cell, Limits, Section, table_of
from gate.report.overview import resume_words
from gate.report.terminal_lines import Sentence, section_view
from gate.report.wording import duration, percentage, short, worst_first
from gate.text.phrases import count

LIMITS: Final = Limits(deltas=5, rows=24)
SHOWN_PARTS: Final = 4
NEXT_WORDS: Final = {
    ReproductionOutcome.NOT_REPEATABLE: "No conclusion about the package is possible: first fix "
    "what differs from run to run.",
    ReproductionOutcome.RESUME_DIFFERS: "The result is reproduced, but not what a resume restores: "
    "see docs/resume.md.",
}
PLACES: Final = {
    SpreadPlace.SEEDS_THEN: "of the package's seeds",
    SpreadPlace.RUNS_THEN: "of the package's runs",
    SpreadPlace.SEEDS_HERE: "of the seeds trained here",
}
FIRST: Final = "First difference, with the package as the baseline: "
FIRST_HERE: Final = "First difference between the runs here: "
FIRST_OF_RESUMED: Final = "The first difference of the resumed run: "
LABEL_WIDTH: Final = 13
CLUSTER: Final = b"cluster"


def reproduction_headline(reproduction: Reproduction) -> str:
    """Return the outcome in one line, with the kind of spread that it lies within."""
    words = HEADLINES[reproduction.outcome]
    if reproduction.outcome is ReproductionOutcome.WITHIN_SPREAD and reproduction.spread:
        words += f" {PLACES[reproduction.spread[0].place]}"
    return words


def reproduction_view(reproduction: Reproduction) -> RenderableType:
    """Show the outcome, the facts behind it, the largest differences, and the next step."""
    good = reproduction.outcome.good
    mark, style = ("✅", "bold green") if good else ("❌", "bold red")
    parts: list[RenderableType] = [
        Text(f"{mark} {reproduction_headline(reproduction)}", style=style)
    ]
    parts += [
        Sentence(clean(text), lead=f"  {label:<{LABEL_WIDTH}}", indent=LABEL_WIDTH + 2)
        for label, text in _facts(reproduction)
    ]
    if reproduction.diagnosis is not None:
        cause = f"{cause_words(reproduction.diagnosis)}."
        resumed = reproduction.outcome is ReproductionOutcome.RESUME_DIFFERS
        lead = FIRST_OF_RESUMED if resumed else FIRST
        if reproduction.outcome is ReproductionOutcome.NOT_REPEATABLE:
            lead = FIRST_HERE
        parts += [Text(""), Sentence(clean(cause), lead=lead, lead_style="bold")]
    parts += [
        section_view(section) for section in (*_numbers(reproduction), *_spread(reproduction))
    ]
    following = next_words(reproduction)
    if following:
        parts += [Text(""), Sentence(clean(following))]
    return Group(*parts)


def _facts(reproduction: Reproduction) -> Iterator[tuple[str, str]]:
    yield "package", f"commit {short(reproduction.commit)}, made {reproduction.made_at}"
    yield "seal", _seal(reproduction)
    yield "code", _code(reproduction)
    changed = _changed(reproduction)
    if changed:
        yield "changed", changed
    yield "environment", environment_words(reproduction)
    if reproduction.data_moved:
        yield "data", "; ".join(move_sentence(move) for move in reproduction.data_moved)
    yield "result", _result(reproduction)
    if reproduction.resume is not None:
        yield "resumed run", _resumed(reproduction.resume, reproduction.resume_then)
    settings = ", ".join(map(_setting, reproduction.comparison.optimizer_settings[:SHOWN_PARTS]))
    if settings:
        yield "optimizer", settings
    yield "time", f"{duration(reproduction.wall_seconds)} to reproduce, {reproduction.runs} runs"


def _seal(reproduction: Reproduction) -> str:
    if reproduction.seal.identity:
        return f"holds, made by {reproduction.seal.identity}"
    if reproduction.seal.key_id:
        return f"holds, key {short(reproduction.seal.key_id)}"
    return "not checked (--unsealed)"


def _code(reproduction: Reproduction) -> str:
    if reproduction.code:
        same = (
            "the package's files"
            if reproduction.same_code
            else "files that differ from the package's"
        )
        return f"{reproduction.code[:12]}, {same}"
    where = "the package itself" if reproduction.source is CodeSource.PACKAGE else "a clone"
    return f"the package's commit, from {where}"


def environment_words(reproduction: Reproduction) -> str:
    """Describe the environment, for example `12 of 13 parts unchanged: driver 550.54 → 560.35`."""
    moved = reproduction.moved
    parts = count(len(reproduction.environment), "part")
    words = f"{len(reproduction.environment) - len(moved)} of {parts} unchanged"
    if not moved:
        return words
    named = [
        f"{part.name} {', '.join(part.details[:SHOWN_PARTS]) or f'{part.then} → {part.here}'}"
        for part in moved[:SHOWN_PARTS]
    ]
    rest = len(moved) - len(named)
    return f"{words}: {'; '.join(named)}" + (f"; and {rest} more" if rest else "")


def _changed(reproduction: Reproduction) -> str:
    """Name the lines that differ from the package's code, or the files if no lines are known."""
    places = [changed_line.place for changed_line in reproduction.changed_lines] or list(
        reproduction.changed_files
    )
    rest = len(places) - SHOWN_PARTS
    return ", ".join(places[:SHOWN_PARTS]) + (f", and {rest} more" if rest > 0 else "")


def _resumed(here: ResumeResult, then: ResumeState | None) -> str:
    """Say how the resumed run ended here, and in the package if it did not resume there either."""
    unlike = then in {None, ResumeState.EXACT, ResumeState.WITHIN}
    return resume_words(here) + ("" if unlike else f"; in the package: {then}")


def _setting(change: OptimizerSettingChange) -> str:
    return f"{change.name} {change.before or 'none'} → {change.after or 'none'}"


def _result(reproduction: Reproduction) -> str:
    compared = reproduction.comparison
    points, tensors = compared.compared_points, compared.compared_tensors
    return (
        f"{points - len(compared.metrics):,} of {count(points, 'metric value')} and "
        f"{max(0, tensors - len(compared.tensors)):,} of {count(tensors, 'tensor')} equal, bit for "
        "bit"
    )


def _numbers(reproduction: Reproduction) -> tuple[Section, ...]:
    """Return a table of the metric values that differ most; empty if all are equal.

    If two runs on this machine differ, the table compares those, because a comparison with the
    package would mean nothing.
    """
    repeats = reproduction.outcome is ReproductionOutcome.NOT_REPEATABLE
    compared = reproduction.repeat if repeats else reproduction.comparison
    if not compared.metrics:
        return ()
    rows = (
        (
            Cell(delta.metric, code=True),
            Cell(str(delta.step)),
            Cell(_digits(delta.expected)),
            Cell(_digits(delta.observed)),
            Cell(percentage(delta.relative) if delta.relative is not None else ""),
        )
        for delta in worst_first(compared.metrics)
    )
    headings = ("Metric", "Step", compared.expected, compared.observed, "Relative")
    table = table_of(headings, rows, LIMITS.deltas, 1, 2, 3, 4)
    title = f"Metric values that differ, worst first ({table.total:,})"
    return (Section(title=title, table=table, leading=True),)


def _digits(decimal: str) -> str:
    return f"{float(decimal):.9g}"


def _spread(reproduction: Reproduction) -> tuple[Section, ...]:
    if not reproduction.spread:
        return ()
    rows = (
        (
            Cell(spread.metric, code=True),
            Cell(f"{spread.value:.6g}"),
            Cell(f"{spread.mean:.6g} ± {spread.deviation:.2g} ({spread.values})"),
            Cell(_interval(spread)),
            Cell("yes" if spread.inside else "no"),
        )
        for spread in sorted(reproduction.spread, key=lambda spread: spread.inside)
    )
    side = "then" if reproduction.spread[0].place is SpreadPlace.SEEDS_HERE else "here"
    headings = ("Metric", f"Last value {side}", "Mean ± s (n)", "95 % interval", "Inside")
    table = table_of(headings, rows, LIMITS.rows, 1, 2, 3)
    title = f"Last values against the spread {PLACES[reproduction.spread[0].place]}"
    return (Section(title=title, table=table, leading=True),)


def _interval(spread: MetricSpread) -> str:
    return f"{spread.low:.6g} to {spread.high:.6g}"


def next_words(reproduction: Reproduction) -> str:
    """Explain a result that differs and say what to do next; empty where it is reproduced."""
    if reproduction.outcome is not ReproductionOutcome.DIFFERS:
        return NEXT_WORDS.get(reproduction.outcome, "")
    if not reproduction.same_code:
        return "The code that ran is not the package's, so the code may cause the difference."
    if not reproduction.moved:
        return (
            "Code and environment are unchanged, but the bits differ. Look for what the "
            "environment does not list, such as undeclared data or faulty hardware."
        )
    if not reproduction.spread:
        return (
            "The environment moved, so the bits may differ. To see whether the numbers are "
            "statistically the same, train several seeds here: add `--seeds 5`."
        )
    return "The environment moved, and the difference is larger than the spread explains."


OUT: Final = Path("repro-gate-reproduced")
MAX_SEEDS: Final = 20


Repository = Annotated[
    Path | None,
    typer.Option(help="A clone that has the commit; default: here, else the package's code."),
]
Out = Annotated[Path, typer.Option("--out", "-o", help="Folder for everything that is written.")]
Data = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=PATH", help="Where declared data is on this machine."),
]
Seeds = Annotated[
    int,
    typer.Option(
        min=0, max=MAX_SEEDS, help=("Train this many seeds here and report mean and spread.")
    ),
]
Code = Annotated[str, typer.Option(help="Another commit of the clone to run instead.")]
WorkTree = Annotated[
    bool, typer.Option("--work-tree", help="Run the clone's files as they are now.")
]
Unsealed = Annotated[
    bool, typer.Option("--unsealed", help="Run the package without checking its seal.")
]


def _own_cluster() -> ClusterSettings:
    """Return the cluster section of the caller's settings, or an empty one.

    The package's nodes are those of another site, so the nodes to run on come from the settings in
    this folder or above it.
    """
    path = nearest_settings(Path.cwd())
    if path is None:
        return ClusterSettings()
    data = settings_bytes(path, FILES)
    # Parse the file only if it may have that section: settings that this version refuses must not
    # stop a call that needs nothing of them.
    return parse_settings_apart(data, path.name).cluster if CLUSTER in data else ClusterSettings()


def reproduce_command(  # noqa: PLR0913 - each parameter is an option of the command
    package: Annotated[Path, typer.Argument(help="The package.tar to run again.")],
    trusted_keys: TrustedKeysFile = None,
    repository: Repository = None,
    out: Out = OUT,
    data: Data = None,
    seeds: Seeds = 0,
    *,
    code: Code = "",
    work_tree: WorkTree = False,
    unsealed: Unsealed = False,
    certificate_identity: CertificateIdentity = "",
    certificate_oidc_issuer: CertificateIssuer = "",
    trusted_root: TrustedRootFile = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
    as_json: AsJson = False,
) -> None:
    """Run a sealed package again and compare.

    Needs no baseline: it is judged by the package's own numbers. Exit code 0 when it is reproduced.

    Example: repro-gate reproduce package.tar --trusted-keys trusted-keys.json
    """
    progress = progress_for(quiet=quiet or as_json, verbose=verbose)
    call = ReproductionCall(
        package=package,
        out=out if out.is_absolute() else Path.cwd() / out,
        repository=repository,
        code=code or None,
        work_tree=work_tree,
        data=data_places(data or []),
        seeds=seeds,
        cluster=_own_cluster(),
    )
    identity = Identity(name=certificate_identity, issuer=certificate_oidc_issuer)
    trust = None if unsealed else chosen_trust(trusted_keys, identity, trusted_root)
    progress.step("checking the package")
    if trust is not None:
        trust.make_ready()
    reproduction = checked_and_run(
        call,
        None if trust is None else trust.verified,
        FILES,
        lambda top: build_adapters(FILES, top, progress, INTERRUPTS, os.environ),
    )
    show(reproduction, reproduction_view(reproduction), as_json=as_json)
    raise typer.Exit(int(reproduction.exit_code))
