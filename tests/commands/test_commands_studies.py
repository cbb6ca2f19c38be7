"""`seeds`, `scaling`, `compare --arm` and `--print`: what a person types, sees and finds."""

from __future__ import annotations

import json
import re

import pytest
from command_line import Run
from page_reader import Page
from played_training import SCRIPT, Project
from recorded_trainings import pure

from gate.comparison.studies import StudyDocument
from gate.report.page.study_page import study_page

LOSSES = [str(2.5 - step / 64) for step in range(8)]
# the seed and a word of the command move the last loss, and the rank count is what the word says
SEEDED = pure(
    SCRIPT.replace(
        'losses = [float(text) for text in play["losses"]]\n',
        'losses = [float(text) for text in play["losses"]]\n'
        'word = sys.argv[1] if len(sys.argv) > 1 else "0"\n'
        'losses[-1] += int(os.environ["REPRO_GATE_SEED"]) ** 2 / 64 + float(word) / 8\n'
        'play["samples"] = 64\n'
        'if len(sys.argv) > 2: play["environment"] = {"world_size": sys.argv[2].split("=")[1]}\n',
    )
)
COST = "cost: {warmup_steps: 1, min_steps: 4}\n"


@pytest.fixture
def seeded(project: Project) -> Project:
    project.write("train.py", SEEDED)
    project.settings(COST)
    project.play(losses=LOSSES)
    return project


def study_of(project: Project) -> StudyDocument:
    return StudyDocument.model_validate_json((project.path / "results/study.json").read_text())


def test_seeds_show_mean_and_spread_and_draw_a_dot_for_each(seeded: Project, run: Run) -> None:
    ended = run("seeds", "--n", "4", "-q", "--out", "results")
    assert (ended.code, ended.err) == (0, "")
    # (42, 43, 44, 45) squared over 64, on a last loss of 2.390625
    assert ended.out.startswith("loss is 32.0 ± 1.8 over 4 seeds.\n")
    assert "study.html, study.json, evidence" in ended.out
    study = study_of(seeded)
    assert (study.seeds, len(study.runs), study.arms[0].ignores_seed) == (
        (42, 43, 44, 45),
        4,
        False,
    )
    text = (seeded.path / "results/study.html").read_text()
    assert text.count('<circle class="seed"') == 4


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--n", "1"), "Invalid value for '--n' / '-n': must be greater than or equal to 2"),
        (("--n", "x"), "Invalid value for '--n' / '-n': must be a valid integer"),
    ],
)
def test_a_wrong_number_is_refused_in_words_of_the_command_line(
    run: Run, words: tuple[str, ...], sentence: str
) -> None:
    ended = run("seeds", *words)
    assert (ended.code, ended.err.splitlines()[-1]) == (2, f"Error: {sentence}")


def test_a_seed_without_effect_ends_with_3(project: Project, run: Run) -> None:
    project.play(losses=LOSSES)
    ended = run("seeds", "--n", "3", "-q")
    assert ended.code == 3
    assert "The seed has no effect: all 3 seeds gave the same result." in ended.out
    assert "REPRO_GATE_SEED" in ended.out


def test_arms_are_interleaved_and_compared_seed_by_seed(seeded: Project, run: Run) -> None:
    words = ("--arm", "one=python3 train.py", "--arm", "far=python3 train.py 1")
    ended = run("compare", *words, "-q", "--out", "results")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith("far and one differ in loss (95 %).\n")
    study = study_of(seeded)
    assert study.order == (
        *("one-seed-42", "far-seed-42", "far-seed-43", "one-seed-43"),
        *("one-seed-44", "far-seed-44"),
    )
    metric = study.contrasts[0].metrics[0]
    assert (metric.difference, metric.low, metric.high) == (0.125, 0.125, 0.125)


def test_an_arm_without_values_leaves_no_empty_row_in_the_picture(
    seeded: Project, run: Run
) -> None:
    words = [f"--arm={name}=python3 train.py {number}" for number, name in enumerate("abc")]
    run("compare", *words, "--seeds", "2", "-q", "--out", "results")
    study = study_of(seeded)
    first, second, third = study.arms
    bare = second.model_copy(update={"metrics": ()})
    page = study_page(study.model_copy(update={"arms": (first, bare, third)}))
    picture = re.search(r'<svg viewBox="0 0 720 (\d+)"[^>]*"dots1-title.*?</svg>', page, re.DOTALL)
    assert picture is not None
    heights = {float(y) for y in re.findall(r'<circle [^>]*cy="([\d.]+)"', picture[0])}
    assert (sorted(heights), picture[1]) == ([27.0, 61.0], "124")


def test_an_arm_beside_itself_is_equal(seeded: Project, run: Run) -> None:
    words = ("--arm", "one=python3 train.py", "--arm", "same=python3 train.py", "--seeds", "2")
    ended = run("compare", *words, "-q", "--out", "results")
    assert "same and one give equal results, bit for bit, at all 2 seeds." in ended.out
    assert study_of(seeded).contrasts[0].equal_pairs == 2


def test_a_document_prints_the_same_again_and_draws_its_page(seeded: Project, run: Run) -> None:
    before = run("seeds", "--n", "3", "-q", "--out", "results").out
    results = seeded.path / "results"
    again = run("compare", "--print", results / "study.json", "--html", results / "again.html")
    assert again.code == 0
    assert again.out.strip() == before.partition("\nWritten to")[0].strip()
    assert (results / "again.html").read_bytes() == (results / "study.html").read_bytes()
    printed = run("compare", "--print", results / "study.json", "--json")
    assert json.loads(printed.out) == json.loads((results / "study.json").read_text())


def test_a_comparison_of_commits_is_printed_again_too(project: Project, run: Run) -> None:
    project.play(losses=LOSSES)
    project.play(losses=LOSSES, says="again")
    run("compare", "--base", "HEAD~1", "--runs", "2", "-q", "--out", "results")
    path = project.path / "results/compare.json"
    assert run("compare", "--print", path).out.startswith("Base and head are equal bit for bit.\n")
    assert (
        "compare.json alone draws no page"
        in run("compare", "--print", path, "--html", project.path / "x.html").err
    )
    document = json.loads(path.read_text()) | {"performance": []}
    path.write_text(json.dumps(document))
    assert "performance: one of base and head" in run("compare", "--print", path).err


def test_scaling_shows_efficiency_and_whether_metrics_agree(seeded: Project, run: Run) -> None:
    command = "python3 train.py 0 --nproc-per-node={ranks}"
    ended = run("scaling", "--ranks", "1,2,4", "--command", command, "-q", "--out", "results")
    assert (ended.code, ended.err) == (0, "")
    assert "Efficiency over 1 rank: 2 ranks 100 %, 4 ranks 100 %" in ended.out
    assert "ranks-4 and ranks-1 give equal results, bit for bit" in " ".join(ended.out.split())
    study = study_of(seeded)
    assert [arm.ranks for arm in study.arms] == [1, 2, 4]
    assert study.arms[2].command[-1] == "--nproc-per-node=4"
    assert study.arms[2].moved == ("world_size",)
    assert "<h2>Efficiency over ranks</h2>" in (seeded.path / "results/study.html").read_text()


def test_the_number_in_train_command_is_replaced(seeded: Project, run: Run) -> None:
    settings = (seeded.path / "repro-gate.yml").read_text()
    command = "command: python3 train.py 0 --nproc-per-node=2"
    seeded.write("repro-gate.yml", settings.replace("command: python3 train.py", command))
    seeded.commit()
    run("scaling", "--ranks", "1,3", "--runs", "1", "-q", "--out", "results")
    assert [arm.ranks for arm in study_of(seeded).arms] == [1, 3]


@pytest.mark.usefixtures("seeded")
def test_ranks_that_did_not_start_are_an_error(run: Run) -> None:
    command = "python3 train.py {ranks}"
    ended = run("scaling", "--ranks", "2,1", "--command", command, "-q")
    assert ended.code == 3
    assert "run ranks-2-seed-42: 2 ranks were asked for, and the training reports 1" in ended.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("compare", "--arm", "one=true"), "error: one --arm has nothing to be compared with"),
        (
            ("compare", "--arm", "A=true", "--arm", "b=true"),
            "error: --arm A=true: the name must be",
        ),
        (("compare", "--arm", "a=true", "--arm", "a=true"), "error: --arm a is given twice"),
        (("compare", "--arm", "a=", "--arm", "b=true"), "error: --arm a= has no command"),
        (("compare", "--arm", 'a="x', "--arm", "b=true"), "No closing quotation"),
        (("compare", "--arm", "a=x && y", "--arm", "b=true"), "&& belongs to a shell"),
        (("compare", "--arm", "a=x", "--arm", "b=x", "--runs", "4"), "--runs goes with --base"),
        (("compare", "--arm", "a=x", "--arm", "b=x", "--html", "f"), "--html goes with --print"),
        (("compare", "--arm", "a=x", "--arm", "b=x", "--base", "x"), "compare takes one of"),
        (("compare", "--print", "play.json", "--runs", "4"), "--runs goes with --base"),
        (("compare", "--print", "play.json", "--seeds", "4"), "--seeds goes with --arm"),
        (("compare", "--base", "x", "--default-mode"), "--default-mode goes with --arm"),
        (("compare", "--print", "play.json"), "error: play.json: is no repro-gate.study/1"),
        (("compare", "--print", "nowhere.json"), "nowhere.json"),
        (("seeds", "--n", "1"), "--n"),
        (("scaling", "--ranks", "1"), "error: --ranks 1: needs 2 to 10 different numbers"),
        (("scaling", "--ranks", "1,two"), "error: --ranks 1,two: needs 2 to 10"),
        (("scaling", "--ranks", "1,2"), "nothing in the command says how many ranks it starts"),
        (("scaling", "--ranks", "1,2", "--command", '"x'), "error: --command: No closing"),
        (("scaling", "--ranks", "1,2", "--runs", "100", "--command", "x {ranks}"), ""),
    ],
)
def test_what_makes_no_study_ends_with_one_message(
    project: Project, run: Run, words: tuple[str, ...], said: str
) -> None:
    project.play(losses=LOSSES)
    ended = run(*words, "-q") if words[-1] != "x {ranks}" else run(*words[:2], "1,2,3", *words[3:])
    assert ended.code in {2, 3}
    assert (said or "the limit is 200 runs") in ended.err
    assert "Traceback" not in ended.err


@pytest.mark.parametrize(
    "words",
    [("scaling", "--ranks", "1,2", "--command", "x {ranks}"), ("noise", "--ranks", "2")],
)
def test_ranks_of_one_machine_are_not_measured_on_a_cluster(
    project: Project, run: Run, words: tuple[str, ...]
) -> None:
    project.settings("cluster: {engine: slurm, nodes: 2, folder: /shared}\n")
    ended = run(*words, "-q")
    assert ended.code == 2
    assert "measures ranks of one machine, and cluster.engine is slurm" in ended.err


def test_hostile_text_of_a_document_reaches_no_page_and_no_terminal(
    seeded: Project, run: Run
) -> None:
    run("seeds", "--n", "3", "-q", "--out", "results")
    path = seeded.path / "results/study.json"
    evil = "\\u001b[2J<script>alert(1)</script>"
    path.write_text(path.read_text().replace('"loss"', f'"{evil}"'))
    html = seeded.path / "results/again.html"
    shown = run("compare", "--print", path, "--html", html)
    assert shown.code == 0
    assert "\x1b[2J" not in shown.out
    assert "<script>" not in html.read_text()
    assert "alert(1)" in Page(html.read_text()).text


MISFITS = (
    ('"kind": "arms"', '"kind": "seeds"', "arms: one for kind seeds, two or more for any other"),
    ('"over": "one"', '"over": "two"', "contrasts: one for each arm but the first"),
    ('"ranks": 1', '"ranks": 0', "ranks"),
    ('"steps": [', '"steps": [0,', "low, mean and high need a value for each of steps"),
    ('"steps": [', f'"steps": [{10**30},', "steps"),
    ('"deviation": 0.', '"deviation": -0.', "deviation"),
)


def test_a_study_that_does_not_fit_together_ends_with_one_message(
    seeded: Project, run: Run
) -> None:
    words = ("--arm", "one=python3 train.py", "--arm", "two=python3 train.py 1")
    run("compare", *words, "--seeds", "2", "-q", "--out", "results")
    path = seeded.path / "results/study.json"
    text = path.read_text()
    for old, new, said in MISFITS:
        assert old in text
        path.write_text(text.replace(old, new, 1))
        shown = run("compare", "--print", path, "--html", seeded.path / "results/again.html")
        assert shown.code == 3
        assert said in shown.err
        assert "Traceback" not in shown.err


def test_the_schema_of_a_study_is_printed(run: Run) -> None:
    schema = json.loads(run("schema", "study").out)
    assert schema["title"] == "study.json"
    assert schema["properties"]["schema_version"]["const"] == "repro-gate.study/1"
