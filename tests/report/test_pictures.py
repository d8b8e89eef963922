import dataclasses
import io
import re
import xml.etree.ElementTree as ElementTree
from collections import defaultdict

import numpy as np
import pandas as pd
import pytest
from matplotlib.image import imread

from placer import report
from placer.devices import parse
from placer.errors import PlacerError
from placer.report.pictures import device_colours, join_spans
from placer.report.tables import layer_seconds

_SVG = "{http://www.w3.org/2000/svg}"


def _svg(figure):
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg")
    return ElementTree.fromstring(buffer.getvalue())


def _rectangles(root):
    """gid -> (fill, area) of every bar of a placement picture."""
    found = {}
    for group in root.iter(f"{_SVG}g"):
        gid = group.get("id", "")
        if gid.startswith("layer-"):
            path = group.find(f"{_SVG}path")
            points = np.array(re.findall(r"-?\d+(?:\.\d+)?", path.get("d")), float).reshape(-1, 2)
            width, height = np.ptp(points, axis=0)
            found[gid] = (re.search(r"fill: (#\w+)", path.get("style"))[1], width * height)
    return found


def test_bars_have_the_layers_compute_times_and_the_devices_colours(example):
    figure = report.placement_picture(
        example.problem, example.placement, example.layers, example.trace, "a title"
    )
    root = _svg(figure)
    names = ("CPU:0", "GPU:0", "GPU:1")
    colours = dict(zip(names, device_colours(parse("k80:2")), strict=True))
    drawn = defaultdict(float)
    for gid, (fill, area) in _rectangles(root).items():
        _, row, panel, device, _ = gid.split("-")
        assert fill == colours[device]
        drawn[int(row), panel, device] += area
    seconds = layer_seconds(example.problem, example.placement, example.layers)
    scale = sum(drawn.values()) / seconds.sum()
    for row in range(len(example.layers.names)):
        for d, device in enumerate(colours):
            forward = seconds[row, 0, d]
            backward = seconds[row, 1:, d].sum()
            for panel, value in (("forward", forward), ("backward", backward)):
                area = drawn.get((row, panel, device), 0.0)
                # Parts under two in a hundred of a piece are not drawn.
                assert area == pytest.approx(scale * value, rel=0.05, abs=0.02 * scale * value + 5)


def test_rows_are_labelled(example):
    figure = report.placement_picture(example.problem, example.placement, example.layers)
    labels = [t.get_text() for t in figure.axes[0].get_yticklabels()]
    assert labels == list(example.layers.names)
    legend = [t.get_text() for t in figure.legends[0].get_texts()]
    assert [t.split()[0] for t in legend] == ["GPU:0", "GPU:1"]


def test_timeline_has_a_lane_a_device_and_the_critical_path(example):
    figure = report.timeline_picture(example.trace, example.problem, example.layers)
    ids = {e.get("id") for e in _svg(figure).iter() if e.get("id")}
    assert {"GPU:0-forward", "GPU:0-backward", "GPU:1-forward", "GPU:0-sends"} <= ids
    assert "critical-path" in ids
    line = next(a for a in figure.axes[0].lines if a.get_gid() == "critical-path")
    x = line.get_xdata()
    assert x[0] == 0
    assert x[-1] == pytest.approx(1e3 * example.trace.step_seconds)
    assert (np.diff(x) >= -1e-9).all()


def test_timeline_shows_transfers_that_take_cpu_time(graph):
    from placer.pipeline import prepare
    from placer.simulator.build import build_simulator

    # Of executor threads, the whole transfer is one span.
    workers = parse("workers:2")
    devices = (dataclasses.replace(d, executor_threads=0) for d in workers.devices)
    in_order = dataclasses.replace(workers, devices=tuple(devices))
    problem = prepare(graph, None, in_order).problem
    wishes = [0 if "encoder" in name else 1 for name in problem.graph.names]
    placement = problem.repair(np.array(wishes, np.int32))
    trace = build_simulator(problem).simulate(placement)
    layers = report.find_layers(problem)
    figure = report.timeline_picture(trace, problem, layers)
    ids = {e.get("id") for e in _svg(figure).iter() if e.get("id")}
    assert {"0.CPU:0-copies", "1.CPU:0-copies"} <= ids


def test_join_spans():
    starts = np.array([5.0, 0.0, 1.05, 9.0])
    ends = np.array([8.0, 1.0, 2.0, 9.5])
    begins, stops = join_spans(starts, ends, 0.1)
    assert begins.tolist() == [0.0, 5.0, 9.0]
    assert stops.tolist() == [2.0, 8.0, 9.5]
    # A long span that covers a short one ends when the long one does.
    begins, stops = join_spans(np.array([0.0, 1.0]), np.array([9.0, 2.0]), 0.0)
    assert (begins.tolist(), stops.tolist()) == ([0.0], [9.0])
    assert not len(join_spans(np.zeros(0), np.zeros(0), 1.0)[0])


def test_history_picture_and_save(tmp_path):
    history = pd.DataFrame(
        {
            "seconds": [0.1, 1.0, 2.0],
            "evaluations": [1, 10, 20],
            "step_seconds": [3.0, 2.0, 1.0],
            "source": ["expert", "annealing", "annealing"],
        }
    )
    figure = report.history_picture(history, "search")
    report.save_figure(figure, tmp_path / "history.png")
    image = imread(tmp_path / "history.png")
    assert image.shape[0] > 100
    assert image.std() > 0.01
    texts = [t.get_text() for t in figure.axes[0].get_legend().get_texts()]
    assert texts == ["expert", "annealing"]
    with pytest.raises(PlacerError, match=r"\.svg"):
        report.save_figure(figure, tmp_path / "history.doc")


def test_devices_have_colours_of_their_own():
    colours = device_colours(parse("k80:8"))
    assert len(set(colours)) == 9
    assert len(set(device_colours(parse("workers:2")))) == 2
