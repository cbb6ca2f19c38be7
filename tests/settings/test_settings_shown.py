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
    "version": "cli/cli_gate: settings_that_cannot_be_used_end_with_2",
    "train.command": "pipeline/pipeline_outcomes: a_command_that_does_not_exist_is_named",
    "train.max_steps": "execution/execution_environment: "
    "seed_and_steps_of_the_settings_reach_the_harness",
    "train.workdir": "pipeline/pipeline_settings: the_training_starts_in_its_own_folder",
    "train.seed": "execution/execution_environment: "
    "seed_and_steps_of_the_settings_reach_the_harness",
    "train.timeout_seconds": "pipeline/pipeline_outcomes: a_training_without_end_is_stopped",
    "train.output_limit_bytes": "evidence/evidence_collect: "
    "output_is_kept_up_to_the_limit_of_the_settings",
    "train.env": "execution/execution_environment: the_users_own_variables_are_kept_and_passed",
    "train.pass_env": "execution/execution_environment: "
    "the_users_own_variables_are_kept_and_passed",
    "train.metrics.file": "evidence/evidence_collect: all_sources_are_joined",
    "train.metrics.stdout_pattern": "pipeline/pipeline_settings: "
    "a_metric_is_read_from_what_the_script_prints",
    "train.metrics.tensorboard": "evidence/evidence_tensorboard: "
    "folder_and_tags_are_those_of_the_settings",
    "train.metrics.tensorboard_tags": "evidence/evidence_tensorboard: "
    "folder_and_tags_are_those_of_the_settings",
    "train.checkpoint": "pipeline/pipeline_checkpoint: a_saved_folder_is_compared",
    "train.checkpoint_exclude.pattern": "pipeline/pipeline_settings: "
    "what_a_checkpoint_excludes_may_move_and_nothing_beside_it",
    "train.checkpoint_exclude.reason": "evidence/evidence_collect: "
    "what_the_settings_exclude_from_a_checkpoint_does_not_count",
    "train.device": "pipeline/pipeline_outcomes: a_gpu_that_was_asked_for_and_not_used_is_an_error",
    "determinism.threads": "pipeline/pipeline_outcomes: "
    "settings_of_another_training_are_not_comparable",
    "determinism.fill_uninitialized_memory": "execution/execution_knobs: "
    "memory_fill_has_a_key_of_its_own_and_is_off_in_strict_runs",
    "determinism.allow_operators": "pipeline/pipeline_operator_audit: "
    "an_allowed_operator_passes_at_a_weaker_level",
    "determinism.profile": "execution/execution_knobs: "
    "the_default_profile_sets_seeds_and_threads_alone",
    "determinism.knobs": "execution/execution_knobs: "
    "an_override_of_determinism_stays_out_of_default_runs",
    "determinism.on_override": "pipeline/pipeline_knobs: the_settings_can_make_it_an_error",
    "compare.tolerances.metric": "pipeline/pipeline_outcomes: "
    "a_tolerance_lets_small_differences_pass",
    "compare.tolerances.absolute": "pipeline/pipeline_outcomes: "
    "a_tolerance_lets_small_differences_pass",
    "compare.tolerances.relative": "comparison/comparison_metrics: any_one_limit_suffices",
    "compare.tolerances.ulp": "comparison/comparison_metrics: any_one_limit_suffices",
    "compare.tolerances.steps": "comparison/comparison_metrics: "
    "a_rule_for_the_final_step_lets_earlier_ones_go",
    "compare.tolerances.better_is": "comparison/comparison_tolerances: "
    "better_beyond_the_tolerance_is_outside_unless_that_is_chosen",
    "compare.tolerances.improvement": "comparison/comparison_tolerances: "
    "better_beyond_the_tolerance_is_outside_unless_that_is_chosen",
    **dict.fromkeys(
        (
            "compare.tolerances.derived.runs",
            "compare.tolerances.derived.factor",
            "compare.tolerances.derived.spread",
            "compare.tolerances.derived.confidence",
        ),
        "comparison/comparison_tolerances: an_edit_that_no_longer_fits_is_told",
    ),
    "compare.tensors.relative": "verdict/verdict_decision: "
    "weights_are_within_tolerance_only_where_they_have_a_limit_of_their_own",
    "compare.allow_not_finite.pattern": "comparison/comparison_first: "
    "nan_in_a_tensor_is_an_error_unless_the_settings_allow_it",
    "compare.allow_not_finite.reason": "comparison/comparison_first: "
    "nan_in_a_tensor_is_an_error_unless_the_settings_allow_it",
    "compare.comparable_environment": "verdict/verdict_decision: "
    "the_settings_say_which_parts_of_the_environment_may_move",
    "environment.locks": "pipeline/pipeline_locks: "
    "the_locks_that_the_settings_name_have_to_be_there",
    "environment.ignore": "evidence/evidence_environment: the_settings_alone_say_what_is_ignored",
    "baseline.path": "pipeline/pipeline_settings: the_baseline_lies_where_the_settings_say",
    "baseline.stale_after_days": "verdict/verdict_assemble: "
    "a_baseline_is_stale_when_it_is_older_than_the_settings_say",
    "baseline.record_repeats": "cli/cli_accept: a_proposal_that_rests_on_too_few_runs_is_refused",
    **dict.fromkeys(
        ("baseline.quarantine.reason", "baseline.quarantine.since", "baseline.quarantine.until"),
        "pipeline/pipeline_entries: an_entry_in_quarantine_leaves_the_judgement_to_the_base_commit",
    ),
    "baseline.quarantine.environment": "verdict/verdict_quarantine: "
    "a_rule_is_about_the_entries_whose_parts_fit",
    "baseline.quarantine.metrics": "verdict/verdict_quarantine: "
    "a_rule_for_a_metric_covers_that_metric_alone",
    "policy.require_bitwise": "verdict/verdict_decision: the_policy_may_want_equal_bits",
    "policy.allow_baseline_change": "verdict/verdict_decision: "
    "a_brought_baseline_that_is_reproduced_passes_by_policy",
    "policy.environment_drift": "verdict/verdict_own_environments: "
    "the_policy_may_refuse_an_environment_that_moved",
    "policy.images": "pipeline/pipeline_environments: patterns_fit_names_and_whole_digests",
    "policy.run_base_on_drift": "pipeline/pipeline_outcomes: the_base_is_run_only_where_it_decides",
    "policy.level": "pipeline/pipeline_levels: "
    "another_result_that_meets_every_threshold_passes_where_the_policy_asks_for_no_more",
    "policy.thresholds": "pipeline/pipeline_levels: "
    "another_result_that_meets_every_threshold_passes_where_the_policy_asks_for_no_more",
    "policy.equivalence": "pipeline/pipeline_seeds: "
    "another_order_of_draws_drifts_and_passes_at_the_statistical_level",
    **dict.fromkeys(
        ("policy.ranking.metric", "policy.ranking.better_is", "variants"),
        "pipeline/pipeline_seeds: a_swapped_ranking_fails_at_the_scientific_level",
    ),
    "policy.data_drift": "pipeline/pipeline_data: "
    "within_a_tolerance_other_data_passes_only_by_policy",
    **dict.fromkeys(
        ("data.path", "data.as"), "pipeline/pipeline_data: the_base_commit_tells_data_from_code"
    ),
    "data.at": "pipeline/pipeline_data: a_script_finds_data_at_the_path_that_it_already_uses",
    "data.verify": "pipeline/pipeline_data: a_sample_is_told_and_is_another_training",
    "data.dvc": "data/data_preparation: entries_of_both_kinds_are_read_from_the_project",
    "data.stage": "data/data_dvc_files: a_lock_names_the_outputs_of_all_stages_or_of_one",
    "data.lfs": "data/data_lfs: objects_come_from_the_remote",
    **dict.fromkeys(
        ("data.url", "data.sha256"),
        "data/data_web: a_file_is_fetched_once_and_all_may_read_it",
    ),
    "fetch.cache": "pipeline/pipeline_data: "
    "a_file_of_the_web_is_fetched_once_for_all_runs_and_calls",
    "fetch.max_bytes": "data/data_web: more_than_the_cache_may_hold_is_refused",
    "fetch.timeout_seconds": "data/data_web: a_server_that_takes_too_long_is_one_error",
    **dict.fromkeys(
        ("preprocess.command", "preprocess.out"),
        "pipeline/pipeline_preprocess: preprocessing_runs_twice_and_feeds_the_trainings",
    ),
    "preprocess.timeout_seconds": "pipeline/pipeline_preprocess: "
    "preprocessing_without_end_is_stopped",
    "preprocess.max_bytes": "pipeline/pipeline_preprocess: preprocessing_that_fails_is_an_error",
    "package.source": "pipeline/pipeline_package: "
    "the_source_is_packed_on_request_and_is_the_commit",
    "package.checkpoint": "pipeline/pipeline_package: what_the_script_saved_may_stay_out",
    "seeds": "pipeline/pipeline_seeds: further_seeds_are_trained_only_where_they_are_needed",
    "record.overhead_budget": "fingerprints/fingerprints_evidence: "
    "every_run_is_told_the_budget_and_cost_runs_not_to_observe",
    "record.free_seconds": "fingerprints/fingerprints_evidence: "
    "every_run_is_told_the_budget_and_cost_runs_not_to_observe",
    "resume.command": "training/training_resume: "
    "the_resumed_run_has_its_own_command_and_the_steps_that_are_left",
    "resume.checkpoint": "training/training_resume: "
    "the_harness_is_told_where_to_interrupt_and_which_file_is_the_checkpoint",
    "resume.at_step": "training/training_resume: "
    "the_harness_is_told_where_to_interrupt_and_which_file_is_the_checkpoint",
    "resume.when": "training/training_resume: a_nightly_resume_is_left_out_of_a_pull_request",
    "runs.parallel": "pipeline/pipeline_side_by_side: "
    "one_after_the_other_where_it_is_asked_for_or_there_is_no_room",
    "cost.when": "measurement/measurement_when: a_call_that_is_not_priced_makes_strict_runs_alone",
    "cost.rounds": "measurement/measurement_cost: two_rounds_claim_nothing",
    "cost.warmup_steps": "measurement/measurement_cost: each_arm_is_priced_in_interleaved_rounds",
    "cost.min_steps": "measurement/measurement_cost: short_runs_are_not_measurable",
    "cost.budget_percent": "measurement/measurement_cost: a_broken_budget_is_told",
    "repeats": "pipeline/pipeline_repeats: "
    "a_fault_of_a_later_run_is_found_by_more_repeats_and_by_them_alone",
    "diagnosis.escalate": "pipeline/pipeline_escalation: it_can_be_switched_off",
    "diagnosis.budget_seconds": "pipeline/pipeline_escalation: a_budget_that_is_used_up_is_told",
    "operator_audit": "pipeline/pipeline_operator_audit: "
    "an_operator_audit_is_one_more_run_that_is_not_judged",
    "noise.runs": "measurement/measurement_noise: the_number_of_runs_comes_from_the_settings",
    "isolation.image": "adapters/adapters_container_choice: "
    "auto_tries_one_when_there_is_an_image_and_an_engine",
    "isolation.gpus": "adapters/adapters_container_choice: gpus_follow_the_device",
    "isolation.shm_bytes": "adapters/adapters_container: limits_are_the_settings",
    "isolation.memory_bytes": "adapters/adapters_container: limits_are_the_settings",
    "isolation.pids": "adapters/adapters_container: limits_are_the_settings",
    "isolation.mode": "adapters/adapters_isolation: none_is_taken_at_its_word",
    "isolation.minimum": "adapters/adapters_isolation: a_machine_below_the_minimum_is_an_error",
    "isolation.network": "adapters/adapters_isolation: an_open_network_is_told",
    "signing.trusted_keys": "cli/cli_sealing: "
    "the_verify_command_names_the_trust_file_of_the_settings",
    "report.comment": "action/action_flow: the_base_says_after_which_results_there_is_a_comment",
    "report.history": "action/action_history: "
    "a_push_writes_a_line_and_the_next_pull_request_shows_it",
    "signing.fulcio_url": "cli/cli_keyless: the_services_are_those_of_the_settings",
    "signing.rekor_url": "cli/cli_keyless: the_services_are_those_of_the_settings",
    "signing.trusted_root": "cli/cli_keyless: a_trusted_root_is_a_file_that_was_committed",
    "publish.oci": "cli/cli_publish: a_sealed_pass_goes_to_the_registry_and_fetch_brings_it_back",
    **dict.fromkeys(
        (
            "publish.mlflow.uri",
            "publish.mlflow.experiment",
            "publish.mlflow.registered_model",
        ),
        "cli/cli_publish: the_settings_say_which_server_experiment_and_model",
    ),
    "report.gate_id": "cli/cli_gate: the_comment_bears_the_id_of_its_gate",
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
        path = TESTS / folder / f"test_{stem}.py"
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
