"""The window API: the joules of a stretch of code, with their error.

joulewise sim --gpu sim:h200 -- python examples/measure_window.py
"""

from joulewise import Monitor
from joulewise.device.work import work

with Monitor() as monitor:  # my GPUs; Monitor("nvml:0-3") names them
    with monitor.window("epoch") as epoch:
        for step in range(3):
            with monitor.window(f"step {step}") as window:
                work("transformer")  # your training step
            print(window.report)
    print(epoch.report)
    print(f"{epoch.report.total.power_w:.0f} W on average, from the {epoch.report.total.source}")
