"""The verbs whose arguments typer reads: each one's module is imported when it is called."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final, cast

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command, get_group, get_install_completion_arguments

# Where each verb is, as module and function (or group of verbs), in the order of the help.
VERBS: Final = {
    "init": ("gate.commands.init", "init_command"),
    "gate": ("gate.commands.gate", "gate_command"),
    "run": ("gate.commands.job", "run_command"),
    "judge": ("gate.commands.job", "judge_command"),
    "baseline": ("gate.commands.baseline", "baseline_app"),
    "diagnose": ("gate.commands.job", "diagnose_command"),
    "config-hash": ("gate.commands.config_hash", "config_hash_command"),
    "operators": ("gate.commands.operators", "operators_command"),
    "cost": ("gate.commands.measure", "cost_command"),
    "noise": ("gate.commands.measure", "noise_command"),
    "compare": ("gate.commands.measure", "compare_command"),
    "seeds": ("gate.commands.studies", "seeds_command"),
    "scaling": ("gate.commands.studies", "scaling_command"),
    "shake": ("gate.commands.measure", "shake_command"),
    "bisect": ("gate.commands.bisect", "bisect_command"),
    "keys": ("gate.commands.keys", "keys_app"),
    "verify": ("gate.commands.verify", "verify_command"),
    "audit": ("gate.commands.audit", "audit_command"),
    "reproduce": ("gate.commands.reproduce", "reproduce_command"),
    "fetch": ("gate.commands.fetch", "fetch_command"),
    "rollback": ("gate.commands.rollback", "rollback_command"),
    "history": ("gate.commands.history", "history_app"),
    "slo": ("gate.commands.slo", "slo_command"),
    "gameday": ("gate.commands.gameday", "gameday_command"),
    "doctor": ("gate.commands.doctor", "doctor_command"),
    "schema": ("gate.commands.schema", "schema_command"),
    "action": ("gate.commands.action", "action_command"),
    "python-call": ("gate.commands.python_call", "python_call_command"),
}
# What the list of all verbs says of each: its own first sentence, for which none is imported.
SENTENCES: Final = {
    "init": "Write settings and workflow for a project.",
    "gate": "Train twice, judge, and write all reports.",
    "run": "Train as `gate` does, for `judge` to judge.",
    "judge": "Judge the evidence of another job's `run`.",
    "baseline": "Record, accept and show the baseline.",
    "diagnose": "Repeat the diagnosis of kept evidence.",
    "config-hash": "Print what a training was configured with.",
    "operators": "Count operators without a deterministic form.",
    "cost": "Measure the overhead of determinism.",
    "noise": "Measure run-to-run noise.",
    "compare": "Train another commit too and compare.",
    "seeds": "Measure mean and spread over seeds.",
    "scaling": "Measure how speed scales with ranks.",
    "shake": "Vary one thing per run: the result must hold.",
    "bisect": "Find the commit that moved the result.",
    "keys": "Generate signing keys, manage trusted ones.",
    "verify": "Verify a sealed package offline.",
    "audit": "Audit the evidence behind a result.",
    "reproduce": "Run a sealed package again and compare.",
    "fetch": "Fetch a sealed package from its registry.",
    "rollback": "Hand out the model of the newest sealed pass.",
    "history": "Keep, show and prune the lines of verdicts.",
    "slo": "Measure service levels over a history.",
    "gameday": "Plant faults into copies of the project.",
    "doctor": "Check everything that a gate call needs.",
    "schema": "Print the JSON Schema of repro-gate.yml.",
}
# The help's headings, in the order in which somebody meets the verbs; what a team does with many
# gates comes last, under OPERATE.
GROUPS: Final = {
    "Start": ("init", "doctor", "schema"),
    "Check": ("gate", "run", "judge", "baseline", "digest", "diff"),
    "Explain": (
        *(
            "diagnose",
            "config-hash",
            "bisect",
            "shake",
            "compare",
            "seeds",
            "scaling",
            "noise",
            "cost",
        ),
        "operators",
    ),
    "Trust": ("keys", "verify", "reproduce", "fetch", "audit"),
}
OPERATE: Final = "Operate"
HIDDEN: Final = frozenset(("action", "python-call"))
HELP: Final = """Run a training twice; compare, explain, price and seal the result.

`repro-gate --version` prints the version."""


class Verbs(TyperGroup):
    """The group of all verbs; `quick` holds what those say of themselves that read their own."""

    def __init__(self, quick: Mapping[str, str]) -> None:
        commands = {
            name: TyperCommand(name, help=SENTENCES.get(name), hidden=name in HIDDEN)
            for name in VERBS
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
        """The verbs by what they are for; importing them takes longer than all else of the help."""
        del ctx
        shown = [name for name in self.commands if name not in HIDDEN]
        grouped = {name for names in GROUPS.values() for name in names}
        rest = tuple(name for name in shown if name not in grouped)
        width = max(map(len, shown))
        room = formatter.width - width - 6
        for heading, names in (*GROUPS.items(), (OPERATE, rest)):
            with formatter.section(heading):
                # as wide as the longest of all: the sentences begin in one column
                formatter.write_dl(
                    [
                        (name.ljust(width), self.commands[name].get_short_help_str(room))
                        for name in names
                    ]
                )

    def get_command(self, ctx: object, cmd_name: str) -> TyperCommand | TyperGroup | None:
        """The verb itself, or None when there is none of that name."""
        if cmd_name not in VERBS:
            return cast("TyperCommand | None", self.commands.get(cmd_name))
        del ctx
        module, name = VERBS[cmd_name]
        verb = getattr(import_module(module), name)
        if isinstance(verb, typer.Typer):
            group = get_group(verb)
            for command in group.commands.values():
                _keep_example(cast("TyperCommand", command))
            return group
        single = typer.Typer(add_completion=False, rich_markup_mode=None)
        single.command(cmd_name, hidden=cmd_name in HIDDEN)(verb)
        return _keep_example(cast("TyperCommand", get_command(single)))


def _keep_example(command: TyperCommand) -> TyperCommand:
    """Have the help print the example as it stands: broken into lines it is another command."""
    # what click leaves alone: a paragraph that begins with this character
    command.help = (command.help or "").replace("\nExample: ", "\n\b\nExample: ")
    return command
