"""Each key of `repro-gate.yml` is set by a test that looks at what it does."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

from known_names import section_keys, setting_keys

TESTS = Path(__file__).resolve().parents[1]
# One test for each key, beside any others: its file without `test_` and `.py`, and its name.
SHOWN_BY = {
    "version": "commands/gate: settings_that_cannot_be_used_end_with_2",
    "train.command": "pipelines/outcomes: a_command_that_does_not_exist_is_named",
    "train.max_steps": "training/environment: seed_and_steps_of_the_settings_reach_the_harness",
    "train.workdir": "pipelines/settings: the_training_starts_in_its_own_folder",
    "train.seed": "training/environment: seed_and_steps_of_the_settings_reach_the_harness",
    "train.timeout_seconds": "pipelines/outcomes: a_training_without_end_is_stopped",
    "train.output_limit_bytes": "evidence/collect: output_is_kept_up_to_the_limit_of_the_settings",
    "train.env": "training/environment: the_users_own_variables_are_kept_and_passed",
    "train.pass_env": "training/environment: the_users_own_variables_are_kept_and_passed",
    "train.metrics.file": "evidence/collect: all_sources_are_joined",
    "train.metrics.stdout_pattern": "pipelines/settings: "
    "a_metric_is_read_from_what_the_script_prints",
    "train.metrics.trackio": "evidence/trackio: folder_and_keys_are_those_of_the_settings",
    "train.metrics.trackio_keys": "evidence/trackio: folder_and_keys_are_those_of_the_settings",
    "train.metrics.wandb": "evidence/wandb: folder_and_keys_are_those_of_the_settings",
    "train.metrics.wandb_keys": "evidence/wandb: folder_and_keys_are_those_of_the_settings",
    "train.metrics.tensorboard": "evidence/tensorboard: folder_and_tags_are_those_of_the_settings",
    "train.metrics.tensorboard_tags": "evidence/tensorboard: "
    "folder_and_tags_are_those_of_the_settings",
    "train.checkpoint": "pipelines/checkpoint: a_saved_folder_is_compared",
    "train.checkpoint_exclude.pattern": "pipelines/settings: "
    "what_a_checkpoint_excludes_may_move_and_nothing_beside_it",
    "train.checkpoint_exclude.reason": "evidence/collect: "
    "what_the_settings_exclude_from_a_checkpoint_does_not_count",
    "train.files": "pipelines/unaffected_torch: "
    "a_file_that_the_training_gets_makes_it_train_whatever_happens_to_it",
    "runs.unaffected": "pipelines/unaffected_torch: "
    "a_change_of_what_the_training_does_not_get_is_answered_by_the_entry",
    "train.device": "pipelines/outcomes: a_gpu_that_was_asked_for_and_not_used_is_an_error",
    "determinism.threads": "pipelines/outcomes: settings_of_another_training_are_not_comparable",
    "determinism.fill_uninitialized_memory": "training/knobs: "
    "memory_fill_has_a_key_of_its_own_and_is_off_in_strict_runs",
    "determinism.allow_operators": "pipelines/operator_audit: "
    "an_allowed_operator_passes_at_a_weaker_level",
    "determinism.profile": "training/knobs: the_default_profile_sets_seeds_and_threads_alone",
    "determinism.knobs": "training/knobs: an_override_of_determinism_stays_out_of_default_runs",
    "determinism.on_override": "pipelines/knobs: the_settings_can_make_it_an_error",
    "compare.tolerances.metric": "pipelines/outcomes: a_tolerance_lets_small_differences_pass",
    "compare.tolerances.absolute": "pipelines/outcomes: a_tolerance_lets_small_differences_pass",
    "compare.tolerances.relative": "comparison/metrics: any_one_limit_suffices",
    "compare.tolerances.ulp": "comparison/metrics: any_one_limit_suffices",
    "compare.tolerances.steps": "comparison/metrics: "
    "a_rule_for_the_final_step_alone_leaves_the_earlier_ones_to_equal_bits",
    "compare.tolerances.better_is": "comparison/tolerances: "
    "better_beyond_the_tolerance_is_outside_unless_that_is_chosen",
    "compare.tolerances.improvement": "comparison/tolerances: "
    "better_beyond_the_tolerance_is_outside_unless_that_is_chosen",
    **dict.fromkeys(
        (
            "compare.tolerances.derived.runs",
            "compare.tolerances.derived.factor",
            "compare.tolerances.derived.spread",
            "compare.tolerances.derived.confidence",
        ),
        "comparison/tolerances: an_edit_that_no_longer_fits_is_told",
    ),
    "compare.tensors.relative": "verdict/decision: "
    "weights_are_within_tolerance_only_where_they_have_a_limit_of_their_own",
    "compare.allow_not_finite.pattern": "comparison/first: "
    "nan_in_a_tensor_is_an_error_unless_the_settings_allow_it",
    "compare.allow_not_finite.reason": "comparison/first: "
    "nan_in_a_tensor_is_an_error_unless_the_settings_allow_it",
    "compare.comparable_environment": "verdict/decision: "
    "the_settings_say_which_parts_of_the_environment_may_move",
    "environment.locks": "pipelines/locks: the_locks_that_the_settings_name_have_to_be_there",
    "environment.ignore": "evidence/environment: the_settings_alone_say_what_is_ignored",
    "baseline.path": "pipelines/settings: the_baseline_lies_where_the_settings_say",
    "baseline.stale_after_days": "verdict/assemble: "
    "a_baseline_is_stale_when_it_is_older_than_the_settings_say",
    "baseline.record_repeats": "commands/accept: a_proposal_that_rests_on_too_few_runs_is_refused",
    **dict.fromkeys(
        ("baseline.quarantine.reason", "baseline.quarantine.since", "baseline.quarantine.until"),
        "pipelines/entries: an_entry_in_quarantine_leaves_the_judgement_to_the_base_commit",
    ),
    "baseline.quarantine.environment": "verdict/quarantine: "
    "a_rule_is_about_the_entries_whose_parts_fit",
    "baseline.quarantine.metrics": "verdict/quarantine: "
    "a_rule_for_a_metric_covers_that_metric_alone",
    "policy.require_bitwise": "verdict/decision: the_policy_may_want_equal_bits",
    "policy.allow_baseline_change": "verdict/decision: "
    "a_brought_baseline_that_is_reproduced_passes_by_policy",
    "policy.environment_drift": "verdict/own_environments: "
    "the_policy_may_refuse_an_environment_that_moved",
    "policy.images": "pipelines/environments: patterns_fit_names_and_whole_digests",
    "policy.run_base_on_drift": "pipelines/outcomes: the_base_is_run_only_where_it_decides",
    "policy.level": "pipelines/levels: "
    "another_result_that_meets_every_threshold_passes_where_the_policy_asks_for_no_more",
    "policy.thresholds": "pipelines/levels: "
    "another_result_that_meets_every_threshold_passes_where_the_policy_asks_for_no_more",
    "policy.equivalence": "pipelines/seeds: "
    "another_order_of_draws_drifts_and_passes_at_the_statistical_level",
    **dict.fromkeys(
        ("policy.ranking.metric", "policy.ranking.better_is", "variants"),
        "pipelines/seeds: a_swapped_ranking_fails_at_the_scientific_level",
    ),
    "policy.data_drift": "pipelines/data: within_a_tolerance_other_data_passes_only_by_policy",
    **dict.fromkeys(
        ("data.path", "data.as"), "pipelines/data: the_base_commit_tells_data_from_code"
    ),
    "data.at": "pipelines/data: a_script_finds_data_at_the_path_that_it_already_uses",
    "data.verify": "pipelines/data: a_sample_is_told_and_is_another_training",
    "data.dvc": "data/preparation: entries_of_both_kinds_are_read_from_the_project",
    "data.stage": "data/dvc_files: a_lock_names_the_outputs_of_all_stages_or_of_one",
    "data.lfs": "data/lfs: objects_come_from_the_remote",
    **dict.fromkeys(
        ("data.url", "data.sha256"),
        "data/web: a_file_is_fetched_once_and_all_may_read_it",
    ),
    "fetch.cache": "pipelines/data: a_file_of_the_web_is_fetched_once_for_all_runs_and_calls",
    "fetch.max_bytes": "data/web: more_than_the_cache_may_hold_is_refused",
    "fetch.timeout_seconds": "data/web: a_server_that_takes_too_long_is_one_error",
    **dict.fromkeys(
        ("preprocess.command", "preprocess.out"),
        "pipelines/preprocess: preprocessing_runs_twice_and_feeds_the_trainings",
    ),
    "preprocess.timeout_seconds": "pipelines/preprocess: preprocessing_without_end_is_stopped",
    "preprocess.max_bytes": "pipelines/preprocess: preprocessing_that_fails_is_an_error",
    "package.source": "pipelines/package: the_source_is_packed_on_request_and_is_the_commit",
    "package.checkpoint": "pipelines/package: what_the_script_saved_may_stay_out",
    "seeds": "pipelines/seeds: further_seeds_are_trained_only_where_they_are_needed",
    "record.overhead_budget": "evidence/fingerprints: "
    "every_run_is_told_the_budget_and_cost_runs_not_to_observe",
    "record.free_seconds": "evidence/fingerprints: "
    "every_run_is_told_the_budget_and_cost_runs_not_to_observe",
    "policy.resume": "pipelines/resume: a_policy_that_warns_makes_a_resume_that_differs_a_finding",
    "resume.command": "training/resume: "
    "the_resumed_run_has_its_own_command_and_the_steps_that_are_left",
    "resume.checkpoint": "training/resume: "
    "the_harness_is_told_where_to_interrupt_and_which_file_is_the_checkpoint",
    "resume.at_step": "training/resume: "
    "the_harness_is_told_where_to_interrupt_and_which_file_is_the_checkpoint",
    "resume.kill_while_saving": "training/resume: "
    "a_run_for_each_point_inside_the_save_is_ended_there",
    "resume.when": "training/resume: a_nightly_resume_is_left_out_of_a_pull_request",
    "runs.when_reproduced": "pipelines/one_run: one_run_that_equals_the_baseline_is_enough",
    "runs.parallel": "pipelines/side_by_side: "
    "one_after_the_other_where_it_is_asked_for_or_there_is_no_room",
    **dict.fromkeys(
        ("cluster.engine", "cluster.nodes", "cluster.tasks_per_node"),
        "pipelines/cluster: several_tasks_of_a_node_share_its_folder",
    ),
    **dict.fromkeys(
        ("cluster.options", "cluster.queue_seconds"),
        "pipelines/cluster: a_job_that_never_starts_is_an_error_and_is_cancelled",
    ),
    "cluster.programs.submit": "pipelines/own_scheduler: what_submit_says_wrong_is_shown",
    "cluster.programs.wait": "pipelines/own_scheduler: "
    "a_program_that_is_not_there_is_named_by_its_key",
    "cluster.programs.cancel": "pipelines/own_scheduler: "
    "the_job_of_a_call_that_was_killed_is_cancelled_by_the_next",
    **dict.fromkeys(
        (
            "cluster.pod.image",
            "cluster.pod.volume_claim",
            "cluster.pod.namespace",
            "cluster.pod.resources",
            "cluster.pod.node_selector",
            "cluster.pod.tolerations",
            "cluster.pod.labels",
        ),
        "pipelines/kubernetes: what_is_created_fits_the_schemas_and_says_what_the_settings_say",
    ),
    "cluster.folder": "pipelines/cluster: a_folder_that_is_not_there_is_an_error",
    "cluster.allocations": "pipelines/cluster: a_repeat_may_go_to_other_nodes",
    "cluster.run_seconds": "pipelines/cluster: a_run_that_takes_too_long_names_the_setting",
    "cost.when": "pipelines/cost_when: a_call_that_is_not_priced_makes_strict_runs_alone",
    "cost.rounds": "pipelines/measured_cost: two_rounds_claim_nothing",
    "cost.warmup_steps": "pipelines/measured_cost: each_arm_is_priced_in_interleaved_rounds",
    "cost.min_steps": "pipelines/measured_cost: short_runs_are_not_measurable",
    "cost.budget_percent": "pipelines/measured_cost: a_broken_budget_is_told",
    "repeats": "pipelines/repeats: "
    "a_fault_of_a_later_run_is_found_by_more_repeats_and_by_them_alone",
    "diagnosis.escalate": "pipelines/escalation: it_can_be_switched_off",
    "diagnosis.budget_seconds": "pipelines/escalation: a_budget_that_is_used_up_is_told",
    "operator_audit": "pipelines/operator_audit: "
    "an_operator_audit_is_one_more_run_that_is_not_judged",
    "noise.runs": "pipelines/measured_noise: the_number_of_runs_comes_from_the_settings",
    "isolation.image": "isolation/container_choice: "
    "auto_tries_one_when_there_is_an_image_and_an_engine",
    "isolation.gpus": "isolation/container_choice: gpus_follow_the_device",
    "isolation.shm_bytes": "isolation/container: limits_are_the_settings",
    "isolation.memory_bytes": "isolation/container: limits_are_the_settings",
    "isolation.pids": "isolation/container: limits_are_the_settings",
    "isolation.mode": "isolation/modes: none_is_taken_at_its_word",
    "isolation.minimum": "isolation/modes: a_machine_below_the_minimum_is_an_error",
    "isolation.network": "isolation/modes: an_open_network_is_told",
    "signing.trusted_keys": "commands/sealing: "
    "the_verify_command_names_the_trust_file_of_the_settings",
    "report.comment": "action/flow: the_base_says_after_which_results_there_is_a_comment",
    "report.history": "action/history: a_push_writes_a_line_and_the_next_pull_request_shows_it",
    "signing.fulcio_url": "commands/keyless: the_services_are_those_of_the_settings",
    "signing.rekor_url": "commands/keyless: the_services_are_those_of_the_settings",
    "signing.trusted_root": "commands/keyless: a_trusted_root_is_a_file_that_was_committed",
    "publish.oci": "commands/publish: a_sealed_pass_goes_to_the_registry_and_fetch_brings_it_back",
    **dict.fromkeys(
        (
            "publish.mlflow.uri",
            "publish.mlflow.experiment",
            "publish.mlflow.registered_model",
        ),
        "commands/publish: the_settings_say_which_server_experiment_and_model",
    ),
    "publish.mlflow.when": "commands/publish: "
    "a_tracker_that_wants_every_verdict_gets_drifts_and_unsealed_passes_without_files",
    "publish.history": "commands/history: a_gate_keeps_a_line_of_a_pass_and_of_what_fails",
    "publish.pushgateway": "commands/history: a_gate_keeps_a_line_of_a_pass_and_of_what_fails",
    **dict.fromkeys(
        ("slo.targets", "slo.spread", "slo.step_deviation", "slo.seconds", "slo.gates"),
        "fleet/indicators: a_gate_has_targets_and_limits_of_its_own",
    ),
    "slo.silent_hours": "fleet/indicators: a_gate_without_a_verdict_for_too_long_is_silent",
    "slo.window_days": "commands/history: slo_prints_text_json_markdown_a_page_and_metrics",
    "report.gate_id": "commands/gate: the_comment_bears_the_id_of_its_gate",
}


@cache
def parts_of(path: Path) -> dict[str, str]:
    """The text of everything that a test file defines at its top, by name."""
    text = path.read_text("utf-8")
    lines = text.splitlines()
    found: dict[str, str] = {}
    for node in ast.parse(text).body:
        decorators = getattr(node, "decorator_list", [])
        first = min((one.lineno for one in decorators), default=node.lineno)
        source = "\n".join(lines[first - 1 : node.end_lineno])
        targets = node.targets if isinstance(node, ast.Assign) else ()
        names = [target.id for target in targets if isinstance(target, ast.Name)]
        names += [node.name] if isinstance(node, ast.FunctionDef | ast.ClassDef) else []
        found |= dict.fromkeys(names, source)
    return found


def text_of(path: Path, name: str) -> str:
    """A test's own text, with that of the constants and helpers of its file that it uses."""
    parts = parts_of(path)
    taken: dict[str, str] = {}
    waiting = [name]
    while waiting:
        one = waiting.pop()
        if one in parts and one not in taken:
            taken[one] = parts[one]
            waiting += re.findall(r"\w+", parts[one])
    return "\n".join(taken.values())


def sets(text: str, key: str) -> bool:
    """Whether a test's text gives the key a value: as a keyword, in a mapping, or in YAML."""
    return re.search(rf"(?<![\w.]){key.rpartition('.')[2]}[\"']?\s*[:=](?!=)", text) is not None


def test_each_key_of_the_schema_has_a_test_and_each_test_a_key() -> None:
    assert set(SHOWN_BY) == set(setting_keys()) - section_keys()


def test_the_test_of_a_key_sets_it() -> None:
    absent, silent = [], []
    for key, shown_by in SHOWN_BY.items():
        file, _, name = shown_by.partition(": ")
        folder, _, stem = file.partition("/")
        path = TESTS / folder / f"test_{folder}_{stem}.py"
        if f"test_{name}" not in parts_of(path):
            absent.append(shown_by)
        elif not sets(text_of(path, f"test_{name}"), key):
            silent.append(key)
    assert (absent, silent) == ([], [])


def test_a_key_that_is_only_named_or_read_is_not_set() -> None:
    assert sets("settings_of(policy={'require_bitwise': True})", "policy.require_bitwise")
    assert sets('"policy: {require_bitwise: true}"', "policy.require_bitwise")
    assert sets("Policy(require_bitwise=True)", "policy.require_bitwise")
    for text in ("policy.require_bitwise", "x.require_bitwise = 1", "require_bitwise == 1", ""):
        assert not sets(text, "policy.require_bitwise")
