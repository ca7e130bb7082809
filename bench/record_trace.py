"""What does PyTorch's profiler see of a small transformer on one CUDA GPU? Records it for ``joulewise plan xray``.

Reads only: no clock, no limit is set. First some seconds of training without the profiler, during which the GPU's mean
SM clock and power are read; then a few steps under the profiler, with the waits between streams in the trace. Needs
PyTorch with CUDA and a GPU that nobody else is using; takes well under a minute.

    python -m bench.record_trace --out DIR [--layers 12] [--width 2048] [--batch 8] [--seconds 6]

DIR gets ``trace.json.gz`` and ``facts.json``; the last line printed is the command that looks at them.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from pathlib import Path
from typing import Any

from joulewise.core.errors import JoulewiseError
from joulewise.device.nvml import NvmlGpu

INTERVAL_S = 0.05
LENGTH = 1024  # tokens of a sequence


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--steps", type=int, default=5)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)

    import torch

    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = True
    step = _training(torch, options)
    for _ in range(5):  # kernels are chosen and memory is taken
        step()
    torch.cuda.synchronize()
    facts = _watched(torch, step, options.seconds)
    _recorded(torch, step, options)
    facts |= {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "layers": options.layers}
    facts |= {"width": options.width, "batch": options.batch, "length": LENGTH}
    (options.out / "facts.json").write_text(json.dumps(facts, indent=2) + "\n")
    print(json.dumps(facts))
    seen = "".join(f" --{name.replace('_', '-')} {facts[name]:.0f}" for name in ("sm_mhz", "power_w") if facts[name])
    print(f"joulewise plan xray {options.out / 'trace.json.gz'}{seen}")


def _training(torch: Any, options: argparse.Namespace) -> Any:
    """One step of training a decoder in bfloat16: forward, backward, optimiser."""
    nn = torch.nn
    layer = nn.TransformerEncoderLayer(
        options.width,
        nhead=options.width // 128,
        dim_feedforward=4 * options.width,
        dropout=0.0,
        activation="gelu",
        batch_first=True,
        norm_first=True,
    )
    model = nn.TransformerEncoder(layer, options.layers, enable_nested_tensor=False).to("cuda", torch.bfloat16)
    head = nn.Linear(options.width, 32000, bias=False).to("cuda", torch.bfloat16)
    optimiser = torch.optim.AdamW([*model.parameters(), *head.parameters()], lr=1e-4, fused=True)
    tokens = torch.randint(32000, (options.batch, LENGTH), device="cuda")
    inputs = torch.randn(options.batch, LENGTH, options.width, device="cuda", dtype=torch.bfloat16)
    mask = nn.Transformer.generate_square_subsequent_mask(LENGTH, device="cuda", dtype=torch.bfloat16)

    def step() -> None:
        said = head(model(inputs, mask=mask, is_causal=True))
        loss = nn.functional.cross_entropy(said.flatten(0, 1).float(), tokens.flatten())
        loss.backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)

    return step


def _watched(torch: Any, step: Any, seconds: float) -> dict[str, Any]:
    """Train for a while as usual; how long a step took, and the GPU's mean clock and power meanwhile."""
    readings: list[tuple[float | None, float | None]] = []
    done = threading.Event()

    def watch() -> None:
        try:
            gpu = NvmlGpu.all()[0]
            while not done.wait(INTERVAL_S):
                reading = gpu.read()
                readings.append((reading.sm_mhz, reading.power_w))
        except (JoulewiseError, IndexError) as error:
            print(f"clock and power are not read: {error}")

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    begin_s, count = time.perf_counter(), 0
    while time.perf_counter() - begin_s < seconds:
        for _ in range(4):
            step()
            count += 1
        torch.cuda.synchronize()
    step_s = (time.perf_counter() - begin_s) / count
    done.set()
    watcher.join(timeout=5.0)
    # The first third is the clock settling and the sensor's window filling.
    settled = readings[len(readings) // 3 :]
    clocks = [clock for clock, _ in settled if clock is not None]
    powers = [power for _, power in settled if power is not None]
    return {
        "step_s": step_s,
        "steps": count,
        "sm_mhz": sum(clocks) / len(clocks) if clocks else None,
        "power_w": sum(powers) / len(powers) if powers else None,
    }


def _recorded(torch: Any, step: Any, options: argparse.Namespace) -> None:
    """A few steps under the profiler."""
    from torch.profiler import ProfilerActivity, profile, schedule

    more: dict[str, Any] = {}
    settings = getattr(torch._C._profiler, "_ExperimentalConfig", None)
    if settings is not None:
        try:
            more["experimental_config"] = settings(enable_cuda_sync_events=True)
        except TypeError:  # an older PyTorch: who waits for whom will be inferred
            print("this PyTorch does not record waits between streams")
    plan = schedule(wait=1, warmup=2, active=options.steps, repeat=1)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], schedule=plan, **more) as profiler:
        for _ in range(3 + options.steps):
            step()
            profiler.step()
    torch.cuda.synchronize()
    profiler.export_chrome_trace(str(options.out / "trace.json.gz"))


if __name__ == "__main__":
    main()
