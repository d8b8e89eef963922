import numpy as np
import pandas as pd
import pytest

from benchmarks import contest
from benchmarks.cases import best_at, load_case, parse_method, parse_row, seconds_to_within
from benchmarks.plots import anytime
from placer.errors import PlacerError
from placer.search import Budget, Search


@pytest.mark.parametrize(
    ("row", "parsed"),
    [
        ("nmt:4", ("nmt", "paper", "k80:4")),
        ("inception_v3:2", ("inception_v3", "paper", "k80:2")),
        ("nmt-small:2", ("nmt", "small", "k80:2")),
        ("nmt-tiny@v100:8x2", ("nmt", "tiny", "v100:8x2")),
        ("rnnlm@workers:2", ("rnnlm", "paper", "workers:2")),
    ],
)
def test_parse_row(row, parsed):
    assert parse_row(row) == parsed


@pytest.mark.parametrize("row", ["nmt", "nmt:", "nmt-huge:2", ":2", "nmt:two"])
def test_bad_rows(row):
    with pytest.raises(PlacerError, match="write it like"):
        parse_row(row)


def test_parse_method():
    assert parse_method("annealing") == ("annealing", [])
    assert parse_method("annealing[chains=4, use_cpu=true]") == (
        "annealing",
        ["chains=4", "use_cpu=true"],
    )
    with pytest.raises(PlacerError, match="name"):
        parse_method("annealing[chains")


def test_names_are_checked_before_anything_runs():
    with pytest.raises(PlacerError, match="no model 'vgg'"):
        contest.check_names(("annealing",), ("vgg:2",))
    with pytest.raises(PlacerError, match="unknown method 'magic'"):
        contest.check_names(("magic",), ("nmt:2",))
    with pytest.raises(PlacerError, match="no option 'colour'"):
        contest.check_names(("annealing[colour=red]",), ("nmt:2",))
    with pytest.raises(PlacerError, match="unknown devices"):
        contest.check_names(("annealing",), ("nmt@tpu:3",))


@pytest.fixture(scope="module")
def results():
    methods = ("single_gpu", "annealing", "expert")
    return contest.run_contest(methods, ["nmt-tiny:2"], [0, 1], Budget(30, 300))


def test_contest(results):
    frame, history = results
    assert frame[["method", "seed"]].values.tolist() == [
        ["single_gpu", 0],
        ["annealing", 0],
        ["annealing", 1],
        ["expert", 0],
    ]
    case = load_case("nmt-tiny:2")
    problem = case.problem
    gpu = problem.topology.accelerators[0]
    work = problem.device_seconds[gpu][problem.graph.executed].sum()
    single = frame.iloc[0]
    assert single.step_seconds == pytest.approx(work)
    assert single.gpu_bound_seconds >= work / 2 * (1 - 1e-9)
    assert (frame.over_bound >= 1).all()
    assert (frame.lower_bound_seconds <= frame.gpu_bound_seconds * (1 + 1e-9)).all()
    assert frame.evaluations.max() <= 320
    last = history.groupby(["method", "seed"]).step_seconds.last()
    for run in frame.itertuples():
        assert last[run.method, run.seed] == pytest.approx(run.step_seconds)


def test_summary_and_figure(results):
    frame, history = results
    lines = contest.summary(frame)
    assert lines.method.tolist() == ["single_gpu", "annealing", "expert"]
    figure = anytime(history, contest.bounds(frame), 1.0)
    assert [t.get_text() for t in figure.legends[0].get_texts()] == lines.method.tolist()
    ends = {line.get_label(): line.get_ydata()[-1] for line in figure.axes[0].lines}
    assert min(ends.values()) == 1.0  # the bound
    assert any(y == pytest.approx(frame.over_bound.iloc[0]) for y in ends.values())


def test_geometric_means():
    frame = pd.DataFrame(
        {
            "row": ["a", "a", "b", "a", "b"],
            "method": ["x", "x", "x", "y", "y"],
            "over_bound": [1.0, 3.0, 8.0, 1.5, np.inf],
            "over_gpu_bound": [1.0, 1.0, 4.0, 1.5, np.inf],
        }
    )
    means = contest.geometric_means(frame).set_index("method")
    assert means.index.tolist() == ["x", "y"]
    assert means.geometric_mean.tolist() == pytest.approx([4.0, 1.5])
    assert means.gpu_geometric_mean.tolist() == pytest.approx([2.0, 1.5])
    assert means.rows_without.tolist() == [0, 1]


def test_when_a_search_got_there():
    case = load_case("nmt-tiny:2")
    search = Search(case.problem, case.grouping, case.simulator)
    history = [(0.5, 1, 2.0, "a"), (3.0, 9, 1.04, "b"), (7.0, 20, 1.0, "b")]
    search.resume(case.problem.single_device(1), 1.0, 20, history)
    assert seconds_to_within(search) == 3.0
    assert seconds_to_within(search, 0.01) == 7.0
    assert best_at(search, 5.0) == 1.04
    assert best_at(search, 0.1) == np.inf


def test_a_crash_is_that_methods_failure(monkeypatch, capsys):
    def crash(name, options=(), checkpoint_dir=None):
        if name != "expert":
            return get_method(name, options)

        def run(search):
            raise ZeroDivisionError("oops")

        return run

    from benchmarks import cases
    from placer.methods import get_method

    monkeypatch.setattr(cases, "get_method", crash)
    frame, _ = contest.run_contest(["expert", "single_gpu"], ["nmt-tiny:2"], [0], Budget(1, 10))
    assert contest.crashes(frame) == [
        "expert on nmt-tiny:2, seed 0: crashed: ZeroDivisionError: oops"
    ]
    assert np.isfinite(frame.step_seconds.iloc[1])
    assert "Traceback" in capsys.readouterr().err
