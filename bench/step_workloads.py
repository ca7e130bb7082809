"""Fifteen small training programs of many kinds, which log when each of their steps ended on the GPU.

They are the subjects of ``bench.record_steps``: compute-bound and memory-bound, launch-bound, host-bound, with a
two-level period, with jitter, with long idle, with none. Values in tensors set power, so they train on real data: text
from the Python sources of the machine, and photographs where a file of them is given (else coloured noise with
a photograph's spectrum).

    python -m bench.step_workloads resnet50 --seconds 60 --out steps.csv [--photos FILE.npz] [--small]

A step's end is a CUDA event, placed on the machine's monotonic clock by one synchronisation at the start; on a CPU it
is the clock itself. Kinds of lines: ``step``; ``part`` (of a step that accumulates); ``evaluation``, ``checkpoint``,
``stall``, ``rollout``, which are no steps; ``shift`` marks where the batch was doubled.
"""

from __future__ import annotations

import argparse
import csv
import sys
import sysconfig
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

Work = Iterator[str]
"""Does one piece of work at each ``next``, without waiting for the GPU, and says what kind it was."""


class Data:
    """Real values for the tensors."""

    def __init__(self, photos: Path | None, device: torch.device, *, small: bool) -> None:
        self.device, self.small = device, small
        self.rng = np.random.default_rng(1)
        if photos is not None:
            with np.load(photos) as stored:
                self._photos = [stored[name] for name in stored.files]
        else:
            self._photos = [self._coloured_noise() for _ in range(8)]

    def _coloured_noise(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Noise whose amplitude falls as 1/frequency, as a photograph's does."""
        side = 512
        fy, fx = np.fft.fftfreq(side)[:, None], np.fft.rfftfreq(side)[None, :]
        amplitude = 1.0 / np.maximum(np.hypot(fy, fx), 1.0 / side)
        planes = []
        for _ in range(3):
            phases = np.exp(2j * np.pi * self.rng.random(amplitude.shape))
            plane = np.fft.irfft2(amplitude * phases, s=(side, side))
            planes.append((plane - plane.min()) / np.ptp(plane) * 255)
        return np.stack(planes, axis=-1).astype(np.uint8)

    def crop(self, side: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        """One random crop, channels first, about zero mean and unit spread."""
        photo = self._photos[self.rng.integers(len(self._photos))]
        y, x = (int(self.rng.integers(0, size - side + 1)) for size in photo.shape[:2])
        piece = photo[y : y + side, x : x + side].transpose(2, 0, 1)
        scaled: np.ndarray[Any, np.dtype[np.float32]] = (piece.astype(np.float32) - 118.0) / 58.0
        return scaled[:, :, :: int(self.rng.choice((-1, 1)))].copy()

    def images(self, count: int, side: int) -> torch.Tensor:
        """A batch of crops on the device."""
        return torch.from_numpy(np.stack([self.crop(side) for _ in range(count)])).to(self.device)

    def tokens(self, vocabulary: int) -> torch.Tensor:
        """A long text as word numbers, the most frequent words first, on the device."""
        home = Path(sysconfig.get_paths()["stdlib"])
        words: list[str] = []
        for path in sorted(home.glob("*.py")):
            words += path.read_text(errors="ignore").replace("(", " ( ").replace(".", " . ").split()
            if self.small and len(words) > 20000:
                break
        number = {word: rank for rank, (word, _) in enumerate(Counter(words).most_common(vocabulary - 1), start=1)}
        return torch.tensor([number.get(word, 0) for word in words], device=self.device)


def _batches(tokens: torch.Tensor, batch: int, length: int) -> Callable[[], tuple[torch.Tensor, torch.Tensor]]:
    """A function that gives the next (input, target) at random places of the text."""
    span = torch.arange(length, device=tokens.device)

    def take() -> tuple[torch.Tensor, torch.Tensor]:
        start = torch.randint(len(tokens) - length - 1, (batch, 1), device=tokens.device)
        return tokens[start + span], tokens[start + span + 1]

    return take


def _autocast(data: Data) -> Any:
    return torch.autocast(data.device.type, dtype=torch.bfloat16)


class Residual(nn.Module):  # type: ignore[misc]
    """A residual block of a convolutional network: plain (18 layers) or bottleneck (50 layers)."""

    def __init__(self, inputs: int, width: int, stride: int, *, bottleneck: bool) -> None:
        super().__init__()
        outputs = width * 4 if bottleneck else width
        if bottleneck:
            shapes = [(inputs, width, 1, 1), (width, width, 3, stride), (width, outputs, 1, 1)]
        else:
            shapes = [(inputs, width, 3, stride), (width, width, 3, 1)]
        layers: list[nn.Module] = []
        for i, (a, b, size, step) in enumerate(shapes):
            layers += [nn.Conv2d(a, b, size, step, size // 2, bias=False), nn.BatchNorm2d(b)]
            if i + 1 < len(shapes):
                layers.append(nn.ReLU(inplace=True))
        self.body = nn.Sequential(*layers)
        self.short: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.short = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Body plus shortcut."""
        return F.relu(self.body(x) + self.short(x), inplace=True)


def _resnet(depths: tuple[int, ...], *, bottleneck: bool, width: int = 64) -> nn.Module:
    layers: list[nn.Module] = [
        nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
    ]  # fmt: skip
    inputs = width
    for stage, depth in enumerate(depths):
        for block in range(depth):
            stride = 2 if stage and not block else 1
            layers.append(Residual(inputs, width * 2**stage, stride, bottleneck=bottleneck))
            inputs = width * 2**stage * (4 if bottleneck else 1)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 1000))


class Layer(nn.Module):  # type: ignore[misc]
    """A transformer layer; causal for language models."""

    def __init__(self, width: int, heads: int, *, causal: bool, experts: int = 0) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.router = nn.Linear(width, experts) if experts else None
        self.mlps = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            for _ in range(max(1, experts))
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attention, then the network or the experts that the router picks."""
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        y = self.norm2(x)
        if self.router is None:
            return x + self.mlps[0](y)
        flat = y.reshape(-1, width)
        weight, choice = self.router(flat).softmax(-1).max(-1)
        result = torch.zeros_like(flat)
        for number, expert in enumerate(self.mlps):
            mine = (choice == number).nonzero().squeeze(-1)
            result.index_add_(0, mine, (expert(flat[mine]) * weight[mine, None]).to(result.dtype))
        return x + result.view_as(x)


class Language(nn.Module):  # type: ignore[misc]
    """A language model: embeddings, layers, logits."""

    def __init__(self, vocabulary: int, width: int, depth: int, heads: int, **kinds: Any) -> None:
        super().__init__()
        self.recompute = bool(kinds.pop("recompute", False))
        causal = bool(kinds.pop("causal", True))
        self.words, self.places = nn.Embedding(vocabulary, width), nn.Embedding(2048, width)
        self.layers = nn.ModuleList(Layer(width, heads, causal=causal, **kinds) for _ in range(depth))
        self.norm, self.logits = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits of the next word."""
        from torch.utils.checkpoint import checkpoint

        h = self.words(x) + self.places(torch.arange(x.shape[1], device=x.device))
        for layer in self.layers:
            h = checkpoint(layer, h, use_reentrant=False) if self.recompute else layer(h)
        logits: torch.Tensor = self.logits(self.norm(h))
        return logits


def _word_loss(model: nn.Module, data: Data, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    with _autocast(data):
        return F.cross_entropy(model(x).flatten(0, 1).float(), y.flatten())


def _update(optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def resnet50(data: Data) -> Work:
    """Compute-bound convolutions; an evaluation after every 50 steps."""
    count, side = (4, 64) if data.small else (256, 224)
    model = _resnet((3, 4, 6, 3), bottleneck=True).to(data.device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    pool = data.images(count * 2, side).to(memory_format=torch.channels_last)
    labels = torch.randint(1000, (count,), device=data.device)
    for i in range(sys.maxsize):
        batch = pool[torch.randint(len(pool), (count,), device=data.device)]
        with _autocast(data):
            loss = F.cross_entropy(model(batch), labels)
        _update(optimizer, loss)
        yield "step"
        if i % 50 == 49:
            model.eval()
            with torch.no_grad(), _autocast(data):
                for _ in range(6):
                    model(batch)
            model.train()
            yield "evaluation"


class _Augmented(torch.utils.data.IterableDataset):  # type: ignore[misc]
    def __init__(self, data: Data, side: int) -> None:
        self.data, self.side = data, side

    def __iter__(self) -> Iterator[tuple[torch.Tensor, int]]:
        while True:
            crop = torch.from_numpy(self.data.crop(self.side))
            yield crop + 0.05 * torch.randn_like(crop), int(self.data.rng.integers(1000))


def resnet18_host(data: Data) -> Work:
    """Host-bound: four loader workers augment images on the CPU, and the GPU waits for them."""
    count, side = (8, 64) if data.small else (128, 224)
    model = _resnet((2, 2, 2, 2), bottleneck=False).to(data.device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    loader = torch.utils.data.DataLoader(
        _Augmented(data, side), count, num_workers=1 if data.small else 4, pin_memory=data.device.type == "cuda"
    )
    for batch, labels in loader:
        images = batch.to(data.device, memory_format=torch.channels_last, non_blocking=True)
        with _autocast(data):
            loss = F.cross_entropy(model(images), labels.to(data.device, non_blocking=True))
        _update(optimizer, loss)
        loss.item()  # as a script that prints its loss does
        yield "step"


def vit_shift(data: Data) -> Work:
    """A vision transformer whose batch is doubled after 300 steps: a shift."""
    count, side, width, depth = (2, 64, 64, 2) if data.small else (96, 224, 768, 12)
    patch = nn.Conv2d(3, width, 16, 16).to(data.device)
    body = nn.Sequential(*(Layer(width, width // 64, causal=False) for _ in range(depth))).to(data.device)
    head = nn.Linear(width, 1000).to(data.device)
    optimizer = torch.optim.AdamW([*patch.parameters(), *body.parameters(), *head.parameters()], 1e-4)
    pool = data.images(count * 2, side)
    for i in range(sys.maxsize):
        if i == 300:
            count *= 2
            yield "shift"
        batch = pool[torch.randint(len(pool), (count,), device=data.device)]
        labels = torch.randint(1000, (count,), device=data.device)
        with _autocast(data):
            loss = F.cross_entropy(head(body(patch(batch).flatten(2).transpose(1, 2)).mean(1)), labels)
        _update(optimizer, loss)
        yield "step"


def gpt2_accumulate(data: Data) -> Work:
    """350 M parameters, eight parts to a step (a two-level period); weights copied to the host every 10 steps."""
    width, depth, batch, length = (64, 2, 2, 64) if data.small else (1024, 24, 8, 1024)
    model = Language(32000, width, depth, width // 64).to(data.device)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    take = _batches(data.tokens(32000), batch, length)
    for i in range(sys.maxsize):
        for part in range(8):
            loss = _word_loss(model, data, *take()) / 8
            loss.backward()
            if part < 7:
                yield "part"
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        yield "step"
        if i % 10 == 9:
            kept = {name: value.to("cpu") for name, value in model.state_dict().items()}
            assert kept
            yield "checkpoint"


def llama_recompute(data: Data) -> Work:
    """1.3 B parameters, activations computed twice, a long AdamW tail."""
    width, depth, batch, length = (64, 2, 1, 64) if data.small else (2048, 24, 8, 1024)
    with data.device:  # drawn where they stay: a CPU takes half a minute for so many weights
        model = Language(32000, width, depth, width // 64, recompute=True)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    take = _batches(data.tokens(32000), batch, length)
    while True:
        _update(optimizer, _word_loss(model, data, *take()))
        yield "step"


def bert_buckets(data: Data) -> Work:
    """Bucketed lengths, so step times vary; at step 150 the loader stalls for 5 s."""
    width, depth, batch = (64, 2, 2) if data.small else (768, 12, 64)
    model = Language(30000, width, depth, width // 64, causal=False).to(data.device)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    text = data.tokens(30000)
    lengths = (32, 48, 64) if data.small else (128, 192, 256, 320, 384, 512)
    takes = [_batches(text, batch, length) for length in lengths]
    for i in range(sys.maxsize):
        if i == 150:
            time.sleep(0.05 if data.small else 5.0)
            yield "stall"
        take = takes[int(data.rng.choice(len(takes)))]
        _update(optimizer, _word_loss(model, data, *take()))
        yield "step"


def gcn(data: Data) -> Work:
    """Launch-bound: a gated graph network on small graphs, steps of milliseconds."""
    nodes, edges, width = (100, 400, 16) if data.small else (2000, 12000, 128)
    layers = nn.ModuleList(nn.Linear(width, width) for _ in range(8)).to(data.device)
    gates = nn.ModuleList(nn.Linear(2 * width, 1) for _ in range(8)).to(data.device)
    optimizer = torch.optim.Adam([*layers.parameters(), *gates.parameters()], 1e-3)
    source, target = torch.randint(nodes, (2, edges), device=data.device)
    features = torch.randn(nodes, width, device=data.device)
    goal = torch.randn(nodes, width, device=data.device)
    while True:
        h = features
        for layer, gate in zip(layers, gates, strict=True):
            weight = torch.sigmoid(gate(torch.cat([h[source], h[target]], 1)))
            h = F.relu(h + torch.zeros_like(h).index_add(0, target, layer(h)[source] * weight))
        _update(optimizer, F.mse_loss(h, goal))
        yield "step"


def dlrm(data: Data) -> Work:
    """Memory-bound: big embedding tables, small networks."""
    rows, tables, batch = (1000, 4, 64) if data.small else (4_000_000, 20, 16384)
    with data.device:  # drawn where they stay: a CPU takes most of a minute for so many rows
        bags = nn.ModuleList(nn.EmbeddingBag(rows, 64, mode="sum", sparse=True) for _ in range(tables))
    top = nn.Sequential(nn.Linear(64 * tables, 512), nn.ReLU(), nn.Linear(512, 1)).to(data.device)
    dense, sparse = torch.optim.SGD(top.parameters(), 0.01), torch.optim.SGD(bags.parameters(), 0.01)
    while True:
        # Popularity falls as a power law: real clicks do.
        chosen = (rows * torch.rand(tables, batch, 16, device=data.device) ** 3).long().clamp(max=rows - 1)
        pooled = torch.cat([bag(index) for bag, index in zip(bags, chosen, strict=True)], 1)
        goal = torch.randint(2, (batch, 1), device=data.device).float()
        F.binary_cross_entropy_with_logits(top(pooled), goal).backward()
        for optimizer in (dense, sparse):
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        yield "step"


def lstm(data: Data) -> Work:
    """A recurrent language model: many small kernels in sequence."""
    width, batch, length = (32, 4, 16) if data.small else (1024, 128, 128)
    words, body = nn.Embedding(20000, width).to(data.device), nn.LSTM(width, width, 2, batch_first=True).to(data.device)
    logits = nn.Linear(width, 20000).to(data.device)
    optimizer = torch.optim.Adam([*words.parameters(), *body.parameters(), *logits.parameters()], 1e-3)
    take = _batches(data.tokens(20000), batch, length)
    while True:
        x, y = take()
        with _autocast(data):
            h, _ = body(words(x))
            loss = F.cross_entropy(logits(h).flatten(0, 1).float(), y.flatten())
        _update(optimizer, loss)
        yield "step"


def unet_ema(data: Data) -> Work:
    """Diffusion: predict the noise in photographs; an average of the weights is kept at each step."""
    width, count, side = (16, 2, 32) if data.small else (128, 64, 128)

    def block(inputs: int, outputs: int) -> nn.Module:
        layers: list[nn.Module] = []
        for a in (inputs, outputs):
            layers += [nn.Conv2d(a, outputs, 3, padding=1), nn.GroupNorm(8, outputs), nn.SiLU()]
        return nn.Sequential(*layers)

    down = nn.ModuleList([block(3, width), block(width, 2 * width), block(2 * width, 4 * width)]).to(data.device)
    up = nn.ModuleList([block(6 * width, 2 * width), block(3 * width, width)]).to(data.device)
    out = nn.Conv2d(width, 3, 1).to(data.device)
    parameters = [*down.parameters(), *up.parameters(), *out.parameters()]
    average = [p.detach().clone() for p in parameters]
    optimizer = torch.optim.AdamW(parameters, 1e-4)
    pool = data.images(count * 2, side)
    while True:
        clean = pool[torch.randint(len(pool), (count,), device=data.device)]
        noise, level = torch.randn_like(clean), torch.rand(count, 1, 1, 1, device=data.device)
        with _autocast(data):
            h, kept = clean * (1 - level) + noise * level, []
            for i, part in enumerate(down):
                h = part(h)
                if i < 2:
                    kept.append(h)
                    h = F.avg_pool2d(h, 2)
            for part in up:
                h = part(torch.cat([F.interpolate(h, scale_factor=2.0), kept.pop()], 1))
            loss = F.mse_loss(out(h).float(), noise)
        _update(optimizer, loss)
        torch._foreach_lerp_(average, [p.detach() for p in parameters], 0.001)
        yield "step"


def gan(data: Data) -> Work:
    """Two networks and two optimisers that take turns: is the period one turn or two?"""
    width, count = (8, 2) if data.small else (96, 128)
    side = 64

    def convolution(inputs: int, outputs: int) -> list[nn.Module]:
        return [nn.Conv2d(inputs, outputs, 4, 2, 1), nn.LeakyReLU(0.2)]

    def widening(inputs: int, outputs: int) -> list[nn.Module]:
        return [nn.ConvTranspose2d(inputs, outputs, 4, 2, 1), nn.BatchNorm2d(outputs), nn.ReLU()]

    generator = nn.Sequential(
        nn.ConvTranspose2d(128, 8 * width, 4), nn.ReLU(), *widening(8 * width, 4 * width),
        *widening(4 * width, 2 * width), *widening(2 * width, width), nn.ConvTranspose2d(width, 3, 4, 2, 1), nn.Tanh(),
    ).to(data.device)  # fmt: skip
    critic = nn.Sequential(
        *convolution(3, width), *convolution(width, 2 * width), *convolution(2 * width, 4 * width),
        *convolution(4 * width, 8 * width), nn.Flatten(), nn.Linear(8 * width * 16, 1),
    ).to(data.device)  # fmt: skip
    make, judge = (torch.optim.Adam(net.parameters(), 2e-4, betas=(0.5, 0.999)) for net in (generator, critic))
    pool = data.images(count * 4, side)
    while True:
        real = pool[torch.randint(len(pool), (count,), device=data.device)]
        seed = torch.randn(count, 128, 1, 1, device=data.device)
        with _autocast(data):
            loss = F.relu(1 - critic(real)).mean() + F.relu(1 + critic(generator(seed).detach())).mean()
        _update(judge, loss)
        yield "part"
        with _autocast(data):
            loss = -critic(generator(seed)).mean()
        _update(make, loss)
        yield "step"


def ppo(data: Data) -> Work:
    """Reinforcement learning: seconds of rollout on the CPU while the GPU idles, then epochs of training on it."""
    width, frames, batch = (32, 64, 16) if data.small else (1024, 32768, 4096)
    policy = nn.Sequential(
        nn.Linear(128, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 8)
    ).to(data.device)
    optimizer = torch.optim.Adam(policy.parameters(), 3e-4)
    world = np.eye(128, dtype=np.float32) + 0.02 * data.rng.standard_normal((128, 128), dtype=np.float32)
    while True:
        state, seen = data.rng.standard_normal((64, 128)).astype(np.float32), []
        for _ in range(frames // 64):
            with torch.no_grad():
                action = policy(torch.from_numpy(state).to(data.device)).argmax(1).cpu().numpy()
            for _ in range(40):  # an environment that costs the CPU something
                state = np.tanh(state @ world)
            state[:, :8] += np.eye(8, dtype=np.float32)[action]
            seen.append(state.copy())
        yield "rollout"
        states = torch.from_numpy(np.concatenate(seen)).to(data.device)
        for _ in range(10):
            for rows in torch.randperm(len(states), device=data.device).split(batch):
                for _ in range(1 if data.small else 8):
                    loss = F.cross_entropy(policy(states[rows]), torch.randint(8, (len(rows),), device=data.device))
                    _update(optimizer, loss)
        yield "step"


def ncf(data: Data) -> Work:
    """A tiny model: the GPU is nearly idle between its kernels."""
    users = nn.Embedding(100_000, 32).to(data.device)
    top = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)).to(data.device)
    optimizer = torch.optim.Adam([*users.parameters(), *top.parameters()], 1e-3)
    while True:
        pairs = torch.randint(100_000, (2, 1024))
        both = users(pairs.to(data.device))
        loss = top(torch.cat([both[0], both[1]], 1)).square().mean()
        _update(optimizer, loss)
        loss.item()
        yield "step"


def moe(data: Data) -> Work:
    """Experts picked by a router: the work of a step depends on the data."""
    width, depth, batch, length = (64, 2, 2, 64) if data.small else (1024, 8, 16, 1024)
    model = Language(32000, width, depth, width // 64, experts=8).to(data.device)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    take = _batches(data.tokens(32000), batch, length)
    while True:
        _update(optimizer, _word_loss(model, data, *take()))
        yield "step"


def shrinking(data: Data) -> Work:
    """No period: iterations of clustering whose set of points shrinks by 2 % each, begun anew when it is small."""
    points, centres = (4096, 16) if data.small else (3_000_000, 512)
    everything = torch.randn(points, 64, device=data.device)
    while True:
        left, middle = everything, everything[:centres].clone()
        while len(left) > points // 10:
            nearest = torch.cat([torch.cdist(part, middle).argmin(1) for part in left.split(200_000)])
            middle = (
                torch.zeros_like(middle).index_add(0, nearest, left)
                / (torch.bincount(nearest, minlength=centres).clamp(min=1)[:, None])
            )
            left = left[: int(len(left) * 0.98)]
            yield "step"


WORKLOADS: dict[str, Callable[[Data], Work]] = {
    work.__name__: work
    for work in (resnet50, resnet18_host, vit_shift, gpt2_accumulate, llama_recompute, bert_buckets, gcn, dlrm, lstm,
                 unet_ema, gan, ppo, ncf, moe, shrinking)
}  # fmt: skip


class Clock:
    """When pieces of work ended, on the machine's monotonic clock."""

    def __init__(self, device: torch.device) -> None:
        self.gpu = device.type == "cuda"
        self._marks: list[Any] = []
        self._start: Any = self._event()
        if self.gpu:
            torch.cuda.synchronize()
        self._start_s = time.monotonic()

    def _event(self) -> Any:
        if not self.gpu:
            return time.monotonic()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def mark(self) -> None:
        """Here, in the GPU's order of work; the queue is kept short so that the host's clock is not far off."""
        self._marks.append(self._event())
        if self.gpu and len(self._marks) >= 3:
            self._marks[-3].synchronize()

    def ends_s(self) -> list[float]:
        """All marks so far."""
        if not self.gpu:
            return list(self._marks)
        torch.cuda.synchronize()
        return [self._start_s + self._start.elapsed_time(mark) / 1e3 for mark in self._marks]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=WORKLOADS)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--photos", type=Path)
    parser.add_argument("--small", action="store_true", help="sizes for a CPU and a test")
    options = parser.parse_args()
    torch.manual_seed(1)
    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("high")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    work = WORKLOADS[options.name](Data(options.photos, device, small=options.small))
    clock, kinds = Clock(device), []
    end_s = float("inf")
    for kind in work:
        clock.mark()
        kinds.append(kind)
        # Counted from the first step: building a model or its tables can take a minute.
        end_s = min(end_s, time.monotonic() + options.seconds)
        if time.monotonic() >= end_s:
            break
    with options.out.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["end_s", "kind"])
        rows.writerows((f"{end:.6f}", kind) for end, kind in zip(clock.ends_s(), kinds, strict=True))


if __name__ == "__main__":
    main()
