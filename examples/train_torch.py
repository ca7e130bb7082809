"""A small PyTorch training loop, on a GPU where there is one. Nothing in it knows of joulewise.

joulewise run -- python examples/train_torch.py
joulewise sim --couple torch -- python examples/train_torch.py --steps 20
"""

import argparse
import time

import torch
from torch import nn


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--steps", type=int, default=200)
    options.add_argument("--seconds", type=float, default=None, help="end after so long, however many steps that is")
    options.add_argument("--width", type=int, default=None, help="default: 2048 on a GPU, 64 on a processor")
    chosen = options.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    width = chosen.width or (2048 if device == "cuda" else 64)
    batch, length = (32, 512) if device == "cuda" else (4, 16)
    layer = nn.TransformerEncoderLayer(width, nhead=8, dim_feedforward=4 * width, batch_first=True, dropout=0.0)
    model = nn.TransformerEncoder(layer, num_layers=4, enable_nested_tensor=False).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    print(f"training a transformer of width {width} on {device}", flush=True)

    started = time.perf_counter()
    steps = chosen.steps if chosen.seconds is None else 10**9
    for step in range(1, steps + 1):
        inputs = torch.randn(batch, length, width, device=device)
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = nn.functional.mse_loss(model(inputs), inputs.roll(1, dims=1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            took_s = time.perf_counter() - started
            until = f"{chosen.steps}" if chosen.seconds is None else f"{chosen.seconds:.0f} s"
            print(f"step {step:4d} of {until}  loss {loss.item():.3f}  {step / took_s:.2f} steps/s", flush=True)
            if chosen.seconds is not None and took_s >= chosen.seconds:
                break


if __name__ == "__main__":
    main()
