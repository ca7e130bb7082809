"""PyTorch on a virtual GPU has no CUDA, and says so wherever it is asked; other readers of NVML see the GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.peers.conftest import Sim
from tests.tiers import sample

# The CPU build of PyTorch has all of ``torch.cuda`` but the calls of the CUDA runtime. This one answers as the runtime
# of a CUDA build does where there is no driver.
SCRIPT = """
import json, sys, torch, pynvml
torch._C._cuda_getDeviceCount = lambda: 0
pynvml.nvmlInit()
from nvitop import Device
from zeus.device import get_gpus
print(json.dumps({
    "by NVML": torch.cuda._device_count_nvml(),
    "device_count": torch.cuda.device_count(),
    "is_available": torch.cuda.is_available(),
    "states": len(torch.cuda.get_rng_state_all()),
    "pynvml": pynvml.nvmlDeviceGetCount(),
    "nvitop": Device.count(),
    "zeus": len(get_gpus()),
    "again": torch.cuda.device_count(),
}))
"""
# As Lightning's own sanity check and validation do, which keep the state of every generator.
LIGHTNING = """
import torch
from lightning.fabric.utilities.seed import _collect_rng_states
from lightning.pytorch.accelerators import CUDAAccelerator
torch._C._cuda_getDeviceCount = lambda: 0
states = _collect_rng_states()
print(CUDAAccelerator.is_available(), len(states.get("torch.cuda", [])))
"""


@pytest.mark.sampled
@pytest.mark.parametrize("flags", sample([(), ("-I",)], 1, of="flags of an interpreter"))
def test_torch_counts_no_gpu_that_cuda_cannot_open_and_other_readers_count_it(
    peers: Path, sim: Sim, flags: tuple[str, ...]
) -> None:
    done = sim("--gpu", "sim:h200*2", "--", peers / "python", *flags, "-W", "error:::torch", "-c", SCRIPT)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "by NVML": 0,
        "device_count": 0,
        "is_available": False,
        "states": 0,
        "pynvml": 2,
        "nvitop": 2,
        "zeus": 2,
        "again": 0,
    }


@pytest.mark.exhaustive
def test_lightning_keeps_the_states_of_no_cuda_generator(peers: Path, sim: Sim) -> None:
    done = sim("--", peers / "python", "-W", "ignore", "-c", LIGHTNING)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "False 0"
