"""Measuring: sample GPUs, find out when their sensors tick, and report windows of work with honest error bars."""

from joulewise.monitor.report import Report
from joulewise.monitor.sampler import Sampler
from joulewise.monitor.window import Monitor, Window

__all__ = ["Monitor", "Report", "Sampler", "Window"]
