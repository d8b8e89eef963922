import numpy as np

from benchmarks.grappler_agreement import compare, compare_memory, random_placements
from benchmarks.models.registry import build
from placer.devices import parse
from placer.graph import build_op_graph, read


def test_step_times_of_random_placements_agree():
    # Grappler tells its step time in whole microseconds, most of the step of a tiny model.
    frame, agreement = compare("rnnlm", "small", placements=6)
    assert len(frame) == agreement.placements == 6
    assert agreement.median_error < 1e-3
    assert agreement.worst_error < 0.02
    assert agreement.rank_correlation > 0.9


def test_peaks_agree_when_counted_alike_and_differ_by_the_variables():
    frame = compare_memory("rnnlm", "tiny", placements=4)
    ratio = frame["accounted_peak_bytes"] / frame["grappler_peak_bytes"]
    assert ratio.between(0.97, 1.03).all()
    assert (frame["our_peak_bytes"] > frame["grappler_peak_bytes"]).all()
    assert (frame["accounted_agreement"] == 1).all()


def test_placements_are_seeded_and_use_gpus_where_they_can():
    graph = build_op_graph(read(build("rnnlm", "tiny")))
    topology = parse("k80:2")
    rows = random_placements(graph, topology, 6, seed=3)
    assert (rows == random_placements(graph, topology, 6, seed=3)).all()
    assert set(np.unique(rows)) >= {1, 2}
    assert (rows[:, graph.has_kernel[1]] > 0).all()
    assert (rows[:, ~graph.has_kernel[1]] == 0).all()
