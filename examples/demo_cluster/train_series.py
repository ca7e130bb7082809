"""One training of a series that is run again and again: to a target, with the batch size that it is told.

joulewise recur run --job words --batch-sizes 64..256 --default 128 --target 'val_loss<=0.42' --max-epochs 20 \
    --lr 0.001 --gpu 'sim:a100-sxm*4' --speed 20 \
    -- python examples/demo_cluster/train_series.py --batch-size {batch_size} --lr {learning_rate} --epochs {epochs}

The network is that of ``examples/train_elastic.py``, and so is the work of a step on the virtual GPUs: a fixed part,
and a part for each sample. So what a series learns of a batch size holds for that script with the same ``--batch``.
"""

import argparse
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import train_elastic as elastic

import joulewise
from joulewise.core.errors import JoulewiseError

WORKLOAD = "recommender"
FIXED_S, SAMPLE_S = 0.6, 0.009  # of a step on one GPU, nothing set: what every step takes, and each of its samples
EPOCH = 16384  # samples
VALIDATION, NEVER = 64, 10**9  # shards to validate on, and a step that no training reaches


def step_s(batch: int) -> float:
    """Seconds of a step on one virtual GPU."""
    return FIXED_S + SAMPLE_S * batch


def steps_an_epoch(batch: int) -> int:
    """Steps of an epoch."""
    return EPOCH // batch


def main() -> None:
    """Train until told to stop."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--batch-size", type=int, default=128)
    options.add_argument("--lr", type=float, default=elastic.RATE)
    options.add_argument("--epochs", type=int, default=30)
    options.add_argument("--seed", type=int, default=0, help="of the data; where weights begin is another each time")
    chosen = options.parse_args()
    chosen.workload, chosen.step_seconds = WORKLOAD, step_s(chosen.batch_size)

    network = elastic.Network(chosen.seed, batch=chosen.batch_size, rate=chosen.lr)
    network.weights = 0.5 * np.random.default_rng().standard_normal(len(network.weights))
    joulewise.metric(epoch=0)
    alone = elastic.Ranks(0, 1, [])
    with elastic.virtual_gpus(chosen, alone) as (_, work):
        for epoch in range(1, chosen.epochs + 1):
            first = (epoch - 1) * steps_an_epoch(chosen.batch_size)
            for step in range(first, first + steps_an_epoch(chosen.batch_size)):
                work()
                joulewise.step()
                network.update(sum(network.shard(step, shard)[0] for shard in range(elastic.SHARDS)))
            val_loss = validated(network, chosen.seed)
            print(f"epoch {epoch} val_loss={val_loss:.4f}", flush=True)
            joulewise.metric(epoch=epoch, val_loss=val_loss)
            if joulewise.should_stop():
                break


def validated(network: elastic.Network, seed: int) -> float:
    """The mean loss of a sample that no step has seen; the same samples for every batch size."""
    judge = elastic.Network(seed)
    judge.weights = network.weights
    losses = [judge.shard(NEVER + number, 0)[1] for number in range(VALIDATION)]
    return sum(losses) / (VALIDATION * judge.batch // elastic.SHARDS)


if __name__ == "__main__":
    try:
        main()
    except JoulewiseError as error:
        raise SystemExit(f"train_series: {error}") from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
