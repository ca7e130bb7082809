"""One rank of the example pipeline, first without joulewise and on the processor alone, then followed.

python pipeline_train.py EXAMPLE FOLDER PLAIN_ITERATIONS FOLLOWED_ITERATIONS [more of the example's arguments]
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import torch.distributed as dist

from joulewise.device.work import ENVIRONMENT


def loaded(path: str) -> Any:
    spec = importlib.util.spec_from_file_location("train_pipeline", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main(path: str, folder: str, plain: str, followed: str, *more: str) -> None:
    example = loaded(path)
    simulator = os.environ.pop(ENVIRONMENT)
    example.main(["--plain", "--log", str(Path(folder) / "plain"), "--iterations", plain, *more])
    os.environ[ENVIRONMENT] = simulator
    example.main(["--log", str(Path(folder) / "followed"), "--iterations", followed, *more])
    dist.destroy_process_group()


main(*sys.argv[1:])
