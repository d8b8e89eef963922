"""The Grappler plugin: placements applied inside TensorFlow, to sessions and tf.functions.

import placer.plugin
with placer.plugin.applied("placement.pb"):
    session.run("train")
print(placer.plugin.report())
"""

from placer.plugin.activation import Activation, activate, applied, deactivate
from placer.plugin.install import Status, install, remove, status
from placer.plugin.library import load, loaded
from placer.plugin.report import GraphReport, Report, report, reset_report, rewrite
from placer.plugin.scope import variable_scope

__all__ = [
    "Activation",
    "GraphReport",
    "Report",
    "Status",
    "activate",
    "applied",
    "deactivate",
    "install",
    "load",
    "loaded",
    "remove",
    "report",
    "reset_report",
    "rewrite",
    "status",
    "variable_scope",
]
