import pandas as pd
import pytest
import tensorflow as tf

from placer import report
from placer.errors import PlacerError


@pytest.fixture
def history():
    return pd.DataFrame(
        {
            "seconds": [0.5, 2.0],
            "evaluations": [1, 40],
            "step_seconds": [3.0, 2.0],
            "source": ["expert", "annealing"],
        }
    )


def test_events_hold_the_history(history, tmp_path):
    report.write_tensorboard(history, tmp_path / "log")
    (path,) = (tmp_path / "log").iterdir()
    events = [tf.compat.v1.Event.FromString(r.numpy()) for r in tf.data.TFRecordDataset(str(path))]
    events = [e for e in events if e.HasField("summary")]
    assert [e.step for e in events] == [1, 40]
    assert events[1].wall_time - events[0].wall_time == pytest.approx(1.5)
    values = [{v.tag: v.simple_value for v in e.summary.value} for e in events]
    assert values == [
        {"best_step_seconds": 3.0, "best_step_seconds/expert": 3.0},
        {"best_step_seconds": 2.0, "best_step_seconds/annealing": 2.0},
    ]


def test_a_directory_that_cannot_be_made(history, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(PlacerError, match="cannot write TensorBoard events"):
        report.write_tensorboard(history, tmp_path / "file")
