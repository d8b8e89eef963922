"""Order of execution: control edges that keep early work from holding up urgent work.

TensorFlow runs ops in the order in which they become ready, and sends tensors in the order in which
they are made. A variable read at time 0 may thus clog a link for tensors that the step waits for. A
control edge between two ops of one device makes the first go before.
"""

from placer.schedule.control_edges import Schedule, add_control_inputs, find_schedule
from placer.schedule.rules import OrderRules

__all__ = ["OrderRules", "Schedule", "add_control_inputs", "find_schedule"]
