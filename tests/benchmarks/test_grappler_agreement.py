import numpy as np
import pandas as pd

from benchmarks.agreement import memory_notes
from benchmarks.grappler_agreement import LIMITS, compare, compare_memory, random_placements
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
    frame = compare_memory("rnnlm", "tiny", placements=3)
    assert len(frame) == 3 * len(LIMITS)
    ratio = frame.accounted_peak_bytes / frame.grappler_peak_bytes
    assert ratio.between(0.98, 1.02).all()
    assert (frame.our_peak_bytes > frame.grappler_peak_bytes).all()
    # Grappler was asked at every limit; its verdicts are those of its own peak.
    assert (frame.grappler_fits == (frame.limit > 1)).all()
    assert (frame.accounted_fits == frame.grappler_fits).all()
    assert ((frame.our_peak_bytes <= frame.limit * frame.grappler_peak_bytes) == frame.our_fits)[
        frame.limit > 1
    ].all()


def test_notes_tell_where_verdicts_differ():
    line = {"model": "m", "placement": 0, "limit": 1.02, "grappler_peak_bytes": 100 << 30}
    line |= {"accounted_peak_bytes": 103 << 30, "with_variables_peak_bytes": 110 << 30}
    line |= {"our_peak_bytes": 108 << 30, "grappler_fits": True}
    line |= {"accounted_fits": False, "our_fits": False}
    counted, ours = memory_notes(pd.DataFrame([line]))
    assert "0 of 1 verdicts agree; peaks are at most 3.00 % apart" in counted
    assert "memory is 1.02 times" in counted
    assert "1 that Grappler lets pass are refused" in ours
    assert "7,168.0 MiB" in ours
    line |= {"grappler_fits": False, "accounted_fits": False, "our_fits": True, "limit": 0.98}
    counted, ours = memory_notes(pd.DataFrame([line]))
    assert "1 of 1 verdicts agree" in counted
    assert "disagree" not in counted
    assert "1 that it refuses fit" in ours
    assert "2,048.0 MiB" in ours


def test_placements_are_seeded_and_use_gpus_where_they_can():
    graph = build_op_graph(read(build("rnnlm", "tiny")))
    topology = parse("k80:2")
    rows = random_placements(graph, topology, 6, seed=3)
    assert (rows == random_placements(graph, topology, 6, seed=3)).all()
    assert set(np.unique(rows)) >= {1, 2}
    assert (rows[:, graph.has_kernel[1]] > 0).all()
    assert (rows[:, ~graph.has_kernel[1]] == 0).all()
