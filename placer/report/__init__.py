"""Reports: pictures, timelines and tables that explain a placement to a person."""

from placer.report.chrome_trace import save_simulated_trace, simulated_trace
from placer.report.layers import Layers, Pass, find_layers
from placer.report.pictures import (
    check_picture,
    history_picture,
    placement_picture,
    require_matplotlib,
    save_figure,
    timeline_picture,
)
from placer.report.tables import (
    critical_path_frame,
    critical_path_summary,
    describe_critical_path,
    device_frame,
    layer_frame,
    layer_seconds,
    print_frame,
)
from placer.report.tensorboard import write_tensorboard

__all__ = [
    "Layers",
    "Pass",
    "check_picture",
    "critical_path_frame",
    "critical_path_summary",
    "describe_critical_path",
    "device_frame",
    "find_layers",
    "history_picture",
    "layer_frame",
    "layer_seconds",
    "placement_picture",
    "print_frame",
    "require_matplotlib",
    "save_figure",
    "save_simulated_trace",
    "simulated_trace",
    "timeline_picture",
    "write_tensorboard",
]
