"""A real small training for ``joulewise recur``: a language model of characters learns the text of Python's own manual.

joulewise recur run --job manual --batch-sizes 8..256 --default 16 --target 'val_loss<=2.5' --max-epochs 16 --lr 0.003 \
    --gpu sim:h200 --speed 5 \
    -- python examples/train_recurring.py --batch-size {batch_size} --lr {learning_rate} --epochs {epochs}

On a GPU it is what it seems, and ``--width 512 --depth 8 --length 128 --texts 2048`` give it something to do. Without
one it really trains on the processor, and a virtual GPU (``--gpu sim:h200``) does one step of work for each of its own:
a fixed part, and a part for each text of the batch. So how many epochs a batch size needs is real, and its joules are
the law's. At ``--speed 5`` a step of the processor is shorter than one of the virtual GPU, as it should be.
"""

import argparse
import os
from collections.abc import Callable, Iterator
from pydoc_data.topics import topics

import torch
from torch import nn

import joulewise

VALIDATION = 256  # texts
# One step of the virtual GPU: seconds, share that follows the SM clock, watts. Kernels of a small batch leave most of
# the GPU unused, and launching them takes as long as for a large one.
FIXED = (0.160, 0.4, 130.0)
PER_TEXT = (0.003, 0.9, 420.0)


class Model(nn.Module):
    """Predicts each character from those before it."""

    def __init__(self, letters: int, width: int, depth: int, length: int) -> None:
        super().__init__()
        self.letter, self.place = nn.Embedding(letters, width), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.out = nn.Linear(width, letters)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length))

    def loss(self, texts: torch.Tensor) -> torch.Tensor:
        seen, following = texts[:, :-1], texts[:, 1:]
        hidden = self.layers(self.letter(seen) + self.place.weight, mask=self.mask, is_causal=True)
        return nn.functional.cross_entropy(self.out(hidden).flatten(0, 1), following.flatten())


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--batch-size", type=int, default=32)
    options.add_argument("--lr", type=float, default=0.003)
    options.add_argument("--epochs", type=int, default=16)
    options.add_argument("--seed", type=int, default=None, help="default: another one each time")
    options.add_argument("--target", type=float, default=None, help="stop at this validation loss, in nats a character")
    options.add_argument("--width", type=int, default=48)
    options.add_argument("--depth", type=int, default=1)
    options.add_argument("--length", type=int, default=32, help="characters of a text")
    options.add_argument("--texts", type=int, default=768, help="texts an epoch")
    chosen = options.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_num_threads(1)  # a step this small is no faster on more
    torch.manual_seed(int.from_bytes(os.urandom(4), "little") if chosen.seed is None else chosen.seed)
    learnt_from, validation, letters = read(chosen.length, chosen.texts)
    learnt_from, validation = learnt_from.to(device), validation.to(device)
    model = Model(letters, chosen.width, chosen.depth, chosen.length).to(device)

    joulewise.metric(epoch=0)
    for epoch, val_loss in train(model, learnt_from, validation, chosen.batch_size, chosen.lr, chosen.epochs):
        print(f"epoch {epoch} val_loss={val_loss:.4f}", flush=True)
        joulewise.metric(epoch=epoch, val_loss=val_loss)
        if joulewise.should_stop() or (chosen.target is not None and val_loss <= chosen.target):
            break


def train(
    model: Model, texts: torch.Tensor, validation: torch.Tensor, batch_size: int, lr: float, epochs: int
) -> Iterator[tuple[int, float]]:
    """Epochs done and the validation loss then, after each; who has seen enough asks for no more."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    on_virtual_gpu, wait = coupled(texts.device.type)
    for epoch in range(1, epochs + 1):
        for batch in torch.randperm(len(texts), device=texts.device).split(batch_size):
            loss = model.loss(texts[batch])
            optimizer.zero_grad()
            loss.backward()
            on_virtual_gpu(len(batch), 1.0)
            optimizer.step()
        with torch.no_grad():
            val_loss = model.loss(validation).item()
        on_virtual_gpu(len(validation), 1 / 3)  # forwards only
        wait()
        yield epoch, val_loss


def read(length: int, texts: int) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Texts to learn from, texts to validate on, and how many different characters there are."""
    text = "".join(topics[name] for name in sorted(topics))
    known = {letter: number for number, letter in enumerate(sorted(set(text)))}
    numbers = torch.tensor([known[letter] for letter in text])
    pieces = numbers[: len(numbers) // (length + 1) * (length + 1)].view(-1, length + 1)
    # Drawn once and for all: the end of the manual is about other things than its beginning.
    pieces = pieces[torch.randperm(len(pieces), generator=torch.Generator().manual_seed(0))]
    if len(pieces) < texts + VALIDATION:
        raise SystemExit(f"train_recurring: {len(pieces)} texts of {length} characters are all there is")
    return pieces[VALIDATION : VALIDATION + texts], pieces[:VALIDATION], len(known)


def coupled(device: str) -> tuple[Callable[[int, float], None], Callable[[], None]]:
    """Do a step of so many texts on the virtual GPU, where there is one and no real one; and wait for all of them."""
    if device == "cuda" or "JOULEWISE_VNVML" not in os.environ:
        return lambda *_: None, lambda: None
    from joulewise.device.work import current, launch

    def step(texts: int, share: float) -> None:
        fixed, part = FIXED, PER_TEXT
        launch([(share * fixed[0], *fixed[1:]), (share * texts * part[0], *part[1:])], ahead=4)

    return step, lambda: current().wait()


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        raise SystemExit(130) from None
