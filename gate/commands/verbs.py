"""The table of verbs that typer parses, and the command group that imports a verb when called.

Importing all modules would take longer than printing the help. So the table repeats each verb's
first sentence, and a module is imported only when its verb runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final, cast

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command, get_group, get_install_completion_arguments

from gate.text.phrases import without_pydantic

START, CHECK, EXPLAIN, TRUST, OPERATE = "Start", "Check", "Explain", "Trust", "Operate"
# The help's headings, in the order in which somebody meets the verbs; what a team does with many
# gates comes last.
HEADINGS: Final = (START, CHECK, EXPLAIN, TRUST, OPERATE)
HIDDEN: Final = ""


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb: its heading in the help, its module and function, and its sentence in the help.

    `file` is the module in `gate/commands/`. `function` is the name of a command or of a typer app
    with verbs below it. `sentence` repeats the first sentence of that function's docstring.
    """

    heading: str
    file: str
    function: str
    sentence: str

    @property
    def module(self) -> str:
        """The full name of the module, as `import_module` takes it."""
        return f"gate.commands.{self.file}"


# In the order of the help.
VERBS: Final[Mapping[str, Verb]] = {
    "init": Verb(START, "init", "init_command", "Write settings and workflow for a project."),
    "doctor": Verb(START, "doctor", "doctor_command", "Check everything that a gate call needs."),
    "schema": Verb(START, "schema", "schema_command", "Print the JSON Schema of repro-gate.yml."),
    "gate": Verb(CHECK, "gate", "gate_command", "Train twice, judge, and write all reports."),
    "run": Verb(CHECK, "job", "run_command", "Train as `gate` does, for `judge` to judge."),
    "judge": Verb(CHECK, "job", "judge_command", "Judge the evidence of another job's `run`."),
    "baseline": Verb(CHECK, "baseline", "baseline_app", "Record, accept and show the baseline."),
    "diagnose": Verb(EXPLAIN, "job", "diagnose_command", "Repeat the diagnosis of kept evidence."),
    "config-hash": Verb(
        EXPLAIN, "config_hash", "config_hash_command", "Print what a training was configured with."
    ),
    "bisect": Verb(EXPLAIN, "bisect", "bisect_command", "Find the commit that moved the result."),
    "shake": Verb(
        EXPLAIN, "measure", "shake_command", "Vary one thing per run: the result must hold."
    ),
    "compare": Verb(EXPLAIN, "measure", "compare_command", "Train another commit too and compare."),
    "seeds": Verb(EXPLAIN, "studies", "seeds_command", "Measure mean and spread over seeds."),
    "scaling": Verb(EXPLAIN, "studies", "scaling_command", "Measure how speed scales with ranks."),
    "noise": Verb(EXPLAIN, "measure", "noise_command", "Measure run-to-run noise."),
    "cost": Verb(EXPLAIN, "measure", "cost_command", "Measure the overhead of determinism."),
    "operators": Verb(
        EXPLAIN, "operators", "operators_command", "Count operators without a deterministic form."
    ),
    "keys": Verb(TRUST, "keys", "keys_app", "Generate signing keys, manage trusted ones."),
    "verify": Verb(TRUST, "verify", "verify_command", "Verify a sealed package offline."),
    "reproduce": Verb(
        TRUST, "reproduce", "reproduce_command", "Run a sealed package again and compare."
    ),
    "fetch": Verb(TRUST, "fetch", "fetch_command", "Fetch a sealed package from its registry."),
    "audit": Verb(TRUST, "audit", "audit_command", "Audit the evidence behind a result."),
    "rollback": Verb(
        OPERATE, "rollback", "rollback_command", "Hand out the model of the newest sealed pass."
    ),
    "history": Verb(
        OPERATE, "history", "history_app", "Keep, show and prune the lines of verdicts."
    ),
    "slo": Verb(OPERATE, "slo", "slo_command", "Measure service levels over a history."),
    "gameday": Verb(
        OPERATE, "gameday", "gameday_command", "Plant faults into copies of the project."
    ),
    "action": Verb(HIDDEN, "action", "action_command", ""),
    "python-call": Verb(HIDDEN, "python_call", "python_call_command", ""),
}
HELP: Final = """Run a training twice; compare, explain, price and seal the result.

`repro-gate --version` prints the version."""


class Verbs(TyperGroup):
    """The group of all verbs.

    `quick` has the help text of each verb that parses its own arguments without typer, by name.
    """

    def __init__(self, quick: Mapping[str, str]) -> None:
        commands = {
            name: TyperCommand(name, help=verb.sentence, hidden=verb.heading == HIDDEN)
            for name, verb in VERBS.items()
        }
        commands |= {name: TyperCommand(name, help=text) for name, text in quick.items()}
        super().__init__(
            name="repro-gate",
            help=HELP,
            no_args_is_help=True,
            rich_markup_mode=None,
            commands=dict(commands),
            params=list(get_install_completion_arguments()),
        )

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401 - click's, or typer's own copy of it
        """Print the verbs below their headings, without importing their modules."""
        del ctx
        # the verbs of `quick`, which have no row in the table, are about checkpoints
        headings = {name: VERBS[name].heading if name in VERBS else CHECK for name in self.commands}
        width = max(len(name) for name, heading in headings.items() if heading != HIDDEN)
        room = formatter.width - width - 6
        for heading in HEADINGS:
            with formatter.section(heading):
                # pad names to the longest of all headings, so that all sentences share one column
                formatter.write_dl(
                    [
                        (name.ljust(width), self.commands[name].get_short_help_str(room))
                        for name, of in headings.items()
                        if of == heading
                    ]
                )

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401 - see `format_commands`
        """Run the verb; what it refuses of its arguments is in words of the command line."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            # typer has pydantic check values
            error.message = without_pydantic(error.message)
            raise

    def get_command(self, ctx: object, cmd_name: str) -> TyperCommand | TyperGroup | None:
        """Import a verb's module and return its command; None for an unknown name."""
        if cmd_name not in VERBS:
            return cast("TyperCommand | None", self.commands.get(cmd_name))
        del ctx
        known = VERBS[cmd_name]
        verb = getattr(import_module(known.module), known.function)
        if isinstance(verb, typer.Typer):
            group = get_group(verb)
            for command in group.commands.values():
                _keep_example(cast("TyperCommand", command))
            return group
        single = typer.Typer(add_completion=False, rich_markup_mode=None)
        single.command(cmd_name, hidden=known.heading == HIDDEN)(verb)
        return _keep_example(cast("TyperCommand", get_command(single)))


def _keep_example(command: TyperCommand) -> TyperCommand:
    """Keep the example on one line in the help: wrapped, it could not be copied and run."""
    # click does not wrap a paragraph that begins with this character
    command.help = (command.help or "").replace("\nExample: ", "\n\b\nExample: ")
    return command
