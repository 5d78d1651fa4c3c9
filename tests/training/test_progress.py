"""An evaluation in words, and plain lines where there is no terminal."""

from uvd.training.progress import RunProgress, format_score

GOALS = {"eval/success_final": [0.25, 0.75], "eval/success_ever": [0.5, 1.0], "collect/x": [9.0]}


def test_an_evaluation_in_words():
    assert format_score(GOALS) == "success 0.50 final, 0.75 ever"
    assert format_score({"eval/return": [1000.0, 2000.0]}) == "return 1,500.0"
    both = {"eval/return": [2.0], "newest/return": [-1.0], "collect/return": [7.0]}
    assert format_score(both) == "return 2.0 (newest -1.0)"


def test_reports_are_plain_lines_in_a_pipe(capsys):
    progress = RunProgress("td3 Task", 2000)
    assert progress.bar is None
    progress.advance(500)
    progress.report(1000, GOALS)
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("td3 Task: step 1,000/2,000, ")
    assert line.endswith(" s left, success 0.50 final, 0.75 ever")
    RunProgress("td3 Task", 2000, quiet=True).report(1000, GOALS)
    assert capsys.readouterr().out == ""
