"""Training loops of many kinds in plain PyTorch, none of which knows of joulewise. Each runs in a fork of its own.

    torch_loops.py        prints one line of JSON: loop → [pid, losses as exact hexadecimal numbers]

The losses are there to be compared with those of the same loops without hooks.
"""

from __future__ import annotations

import json
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator

import torch
import torch._dynamo  # which optimisers load: once here, and not in every fork
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

Losses = list[float]


def model() -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.ReLU(), nn.Linear(16, 1))


def batches(count: int) -> Iterator[torch.Tensor]:
    draw = torch.Generator().manual_seed(3)
    for _ in range(count):
        yield torch.randn(4, 8, generator=draw)


def nothing(_: int) -> None:
    """What most loops do after an iteration."""


def train(
    net: nn.Module, optimizer: torch.optim.Optimizer, count: int, after: Callable[[int], None] = nothing
) -> Losses:
    losses = []
    for number, batch in enumerate(batches(count)):
        optimizer.zero_grad()
        loss = net(batch).pow(2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        after(number)
    return losses


def plain() -> Losses:
    net = model()
    return train(net, torch.optim.AdamW(net.parameters()), 10)


def accumulates() -> Losses:
    net, losses = model(), []
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for number, batch in enumerate(batches(20)):
        loss = net(batch).pow(2).mean()
        loss.backward()
        losses.append(loss.item())
        if number % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()
    return losses


def adversarial() -> Losses:
    one, other = model(), model()
    first, second = torch.optim.Adam(one.parameters()), torch.optim.Adam(other.parameters())
    losses = []
    for batch in batches(10):
        for net, optimizer in ((one, first), (other, second), (other, second)):
            optimizer.zero_grad()
            loss = net(batch).pow(2).mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses


def skips() -> Losses:
    """Iterations 3 to 5 overflow, and the scaler skips their steps."""
    net = model()
    optimizer, scaler = torch.optim.SGD(net.parameters(), lr=0.1), torch.amp.GradScaler("cpu", init_scale=8.0)
    losses = []
    for number, batch in enumerate(batches(8)):
        optimizer.zero_grad()
        loss = net(batch).pow(2).mean() * (float("inf") if number in (3, 4, 5) else 1.0)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return losses


def compiles() -> Losses:
    """The model and the optimiser's step are compiled, by the compiler that needs no C++."""
    net = model()
    optimizer = torch.optim.Adam(net.parameters())
    losses = train(net, optimizer, 2)
    step, forward = torch.compile(optimizer.step, backend="eager"), torch.compile(net, backend="eager")
    for batch in batches(6):
        optimizer.zero_grad()
        loss = forward(batch).pow(2).mean()
        loss.backward()
        step()
        losses.append(loss.item())
    return losses


def evaluates() -> Losses:
    """Every fifth iteration; and a checkpoint at the end of iteration 7."""
    net = model()
    with tempfile.TemporaryDirectory() as home:

        def after(number: int) -> None:
            if number % 5 == 4:
                net.eval()
                with torch.no_grad():
                    net(torch.ones(4, 8))
                net.train()
            if number == 7:
                torch.save(net.state_dict(), f"{home}/model.pt")

        return train(net, torch.optim.Adam(net.parameters()), 20, after)


def has_a_teacher() -> Losses:
    """A part of it is put into evaluation in every iteration, as frozen teachers and batch norms are."""
    net, teacher = model(), model()

    def after(_: int) -> None:
        teacher.train()
        teacher.eval()

    return train(net, torch.optim.Adam(net.parameters()), 60, after)


def loads() -> Losses:
    """Two forked loader processes."""
    net, losses = model(), []
    optimizer = torch.optim.Adam(net.parameters())
    data = TensorDataset(torch.stack(list(batches(6))))
    for (batch,) in DataLoader(data, num_workers=2, batch_size=None, multiprocessing_context="fork"):
        optimizer.zero_grad()
        loss = net(batch).pow(2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


class Mine(torch.optim.Optimizer):
    """An optimiser of the script's own."""

    def __init__(self, parameters: Iterator[nn.Parameter]) -> None:
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter -= 0.01 * parameter.grad


def own() -> Losses:
    net = model()
    return train(net, Mine(net.parameters()), 5)


LOOPS = [plain, accumulates, adversarial, skips, compiles, evaluates, has_a_teacher, loads, own]


def main() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    told = {}
    for loop in LOOPS:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            losses = loop()
            os.write(writing, json.dumps([each.hex() for each in losses]).encode())
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            told[loop.__name__] = [child, json.load(pipe)]
        os.waitpid(child, 0)
    print(json.dumps(told))


if __name__ == "__main__":
    main()
