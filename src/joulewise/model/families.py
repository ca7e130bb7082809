"""The kinds of training that the workload library draws from: phases, ranges of parameters, and their sources.

What it is: data. Each `Part` gives ranges in units that carry over between GPUs (shares, ratios, dynamic power
as a fraction of limit − static); ``model/workloads`` draws from them and scales to a chip. What it is not: a
claim about one particular network.

Where the ranges come from (x–y spans the GPUs measured; the same work is more clock-sensitive on HBM cards):

* [zeus]     fits of the law to the power-limit series of Zeus (NSDI'23), V100 (250 W, 24 W static) and A40
             (300 W, 78 W static), medians over the larger batches; κ, dynamic W, host/busy: ImageNet 0.81, 326,
             0.42 and 0.48, 237, 0.92; CIFAR 0.94, 268, 0.80 and 0.52, 175, 0.83; LibriSpeech 1.00, 282, 0.92 and
             0.84, 464, 2.0; Sentiment 1.00, 310, 0.40 and 0.74, 298, 0.55; SQuAD 1.00, 371, 0.37 and 0.70, 320,
             0.71; NCF 15–23 W. As fractions of limit − static: 0.8–1.4 CNN, 1.3–1.6 BERT, 1.2–2.1 speech,
             0.07–0.10 NCF.
* [perseus]  GPT-3 175B stages: backward/forward time 1.85 (A100-SXM) and 2.46 (A40); κ 0.86–0.91 and 0.31–0.53;
             dynamic 415 and 315 W, i.e. 1.3–1.4. Repeats within 0.1–1 %.
* [h200]     a bf16 training step at 705 W and 1590 of 1980 MHz with random tensors (173 ms), 500 W and 1965 MHz
             with zeros (143 ms): κ ≈ 0.86, dynamic fraction ≈ 0.7–2.1. A copy kernel: 574 W, i.e. 0.8.
* [rtx8000]  core-clock sweep of 20 codes: κ 0.02–0.10 for streaming codes (DRAM active 82–90 % of the time) at
             0.5–0.9 of limit − static, 0.25–0.6 for mixed ones (DRAM 20–70 %), 0.9–1.0 for dense arithmetic.
* [a100]     clock × limit grid: babelstream κ 0.03 at 228 W of 300 (0.70), breeze κ 0.71, pi-solver κ 1.00.
* [titanx]   Caffe over core and memory clock: GoogLeNet κ 0.41, DRAM share 0.41; VGG κ ≈ 0.55, DRAM share 0.39.
* [pollux]   step times on one T4, smallest to largest batch: CIFAR 0.04–0.70 s, ImageNet 0.15–0.92, BERT
             0.46–0.92, DeepSpeech2 0.47–2.5, NCF 0.007–0.021.
* [idle]     field study of execution-idle: training spends 13 % of its time at near-zero activity.
* [assumed]  no public series: chosen between the measured neighbours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from joulewise.model.jitter import Jitter

Span = tuple[float, float]
"""A range that a parameter is drawn from, uniformly."""

_USUAL_SHAPE = Jitter(correlation=0.3, tail=4.0)  # [assumed]


@dataclass(frozen=True, slots=True)
class Part:
    """One kind of phase within a step, free of any GPU."""

    weight: Span  # its share of the step's busy time at maximum clocks, before normalising
    sm_share: Span  # κ of the law
    intensity: Span  # dynamic power at maximum clocks / (default limit − static power)
    host: Span = (0.0, 0.0)  # host seconds per busy second
    dram: Span = (0.5, 0.9)  # of what the SM clock does not touch, the share that the memory clock does
    spread: float = 0.0  # standard deviation of ln(busy time) from step to step, its own


@dataclass(frozen=True, slots=True)
class Stretch:
    """Parts that follow each other, a drawn number of times."""

    parts: tuple[str, ...]
    repeats: tuple[int, int] = (1, 1)


@dataclass(frozen=True, slots=True)
class Family:
    """One kind of training."""

    description: str
    step_s: Span
    parts: Mapping[str, Part]
    order: tuple[Stretch, ...]
    jitter: Span = (0.003, 0.012)  # spread of step times where every step does the same work [perseus]
    jitter_shape: Jitter = _USUAL_SHAPE  # its spread is drawn from `jitter`
    periodic: bool = True
    # What happens now and then. A range of steps between two of them; None = never.
    evaluation_steps: tuple[int, int] | None = (50, 200)
    evaluated: str = "forward"  # the part that an evaluation repeats
    checkpoint_steps: tuple[int, int] | None = (100, 400)
    stall_chance: Span = (0.0, 0.0)  # of the loader falling behind, per step
    compiles: bool = False
    shrink: Span = (1.0, 1.0)  # busy time of each step against the one before


# An optimiser streams parameters and moments: [a100] babelstream, [rtx8000] vectorAdd, [h200] copy.
_OPTIMISER = Part((0.03, 0.08), (0.02, 0.10), (0.50, 0.80), (0.1, 0.4), dram=(0.85, 0.95))
_PASSES = ("forward", "backward", "optimiser")

FAMILIES: Mapping[str, Family] = {
    "cnn": Family(
        "convolutional network on images, loader keeping up",
        (0.10, 0.90),  # [pollux] ImageNet
        {
            "forward": Part((0.30, 0.35), (0.45, 0.90), (0.8, 1.4), (0.25, 0.60)),  # [zeus] ImageNet, [titanx]
            "backward": Part((0.60, 0.68), (0.48, 0.94), (0.8, 1.45), (0.10, 0.40)),
            "optimiser": _OPTIMISER,
        },
        (Stretch(_PASSES),),
        stall_chance=(0.0, 0.01),
    ),
    "cnn-loader": Family(
        "small convolutional network behind a slow loader: the host sets the pace",
        (0.04, 0.40),  # [pollux] CIFAR
        {
            "forward": Part((0.30, 0.35), (0.52, 0.94), (0.8, 1.2), (1.0, 2.0)),  # [zeus] CIFAR; A40 speech host 2.0
            "backward": Part((0.58, 0.66), (0.52, 0.94), (0.8, 1.2), (0.5, 1.2)),
            "optimiser": _OPTIMISER,
        },
        (Stretch(_PASSES),),
        jitter=(0.01, 0.04),
        stall_chance=(0.01, 0.04),  # with stalls of about three steps: 3–12 % of the time [idle]
    ),
    "transformer": Family(
        "decoder-only language model, fixed sequence length",
        (0.15, 1.20),
        {
            "forward": Part((0.27, 0.34), (0.70, 0.92), (1.2, 2.1), (0.02, 0.15)),  # [perseus], [h200]
            "backward": Part((0.58, 0.66), (0.70, 0.92), (1.25, 2.1), (0.01, 0.08)),
            "optimiser": _OPTIMISER,
        },
        (Stretch(_PASSES),),
    ),
    "accumulation": Family(
        "language model with gradient accumulation: a short period inside a long one",
        (1.0, 6.0),
        {
            "forward": Part((0.27, 0.34), (0.70, 0.92), (1.2, 2.1), (0.02, 0.15)),
            "backward": Part((0.58, 0.66), (0.70, 0.92), (1.25, 2.1), (0.01, 0.08)),
            "optimiser": Part((0.05, 0.12), (0.02, 0.10), (0.50, 0.80), (0.1, 0.4), dram=(0.85, 0.95)),
        },
        (Stretch(("forward", "backward"), (4, 16)), Stretch(("optimiser",))),
        evaluation_steps=(20, 60),
        checkpoint_steps=(40, 120),
        compiles=True,
    ),
    "bert": Family(
        "encoder on sentences in length buckets: steps of uneven length",
        (0.20, 0.95),  # [pollux] BERT
        {
            "forward": Part((0.30, 0.36), (0.70, 1.00), (1.3, 1.65), (0.35, 0.70)),  # [zeus] Sentiment, SQuAD
            "backward": Part((0.58, 0.66), (0.70, 1.00), (1.3, 1.65), (0.20, 0.45)),
            "optimiser": _OPTIMISER,
        },
        (Stretch(_PASSES),),
        jitter=(0.10, 0.25),  # [assumed]
        jitter_shape=Jitter(correlation=0.0, tail=float("inf")),
        periodic=False,
    ),
    "moe": Family(
        "mixture of experts with random routing: expert time varies from layer to layer",
        (0.30, 1.50),
        {
            "attention forward": Part((0.10, 0.15), (0.70, 0.92), (1.1, 1.8), (0.05, 0.20)),  # [perseus]
            "experts forward": Part((0.18, 0.24), (0.55, 0.90), (1.0, 2.0), (0.10, 0.40), spread=0.12),  # [assumed]
            "attention backward": Part((0.20, 0.27), (0.70, 0.92), (1.1, 1.8), (0.02, 0.10)),
            "experts backward": Part((0.36, 0.44), (0.55, 0.90), (1.0, 2.0), (0.05, 0.20), spread=0.12),
            "optimiser": _OPTIMISER,
        },
        (
            Stretch(("attention forward", "experts forward"), (4, 8)),
            Stretch(("experts backward", "attention backward"), (4, 8)),
            Stretch(("optimiser",)),
        ),
        jitter=(0.01, 0.03),
        evaluated="attention forward",
    ),
    "gnn": Family(
        "graph network of many tiny kernels: launch-bound",
        (0.008, 0.060),
        {
            "forward": Part((0.30, 0.40), (0.45, 0.85), (0.15, 0.45), (1.5, 3.0)),  # [assumed]; [rtx8000] mixed codes
            "backward": Part((0.50, 0.60), (0.45, 0.85), (0.15, 0.45), (1.2, 2.5)),
            "optimiser": Part((0.04, 0.10), (0.10, 0.40), (0.15, 0.35), (1.5, 3.0)),
        },
        (Stretch(_PASSES),),
        jitter=(0.03, 0.08),
        evaluation_steps=(200, 600),
        checkpoint_steps=None,
    ),
    "recommender": Family(
        "embedding tables and a small perceptron: DRAM-bound",
        (0.02, 0.15),
        {
            # [rtx8000] streaming and mixed codes, [a100] babelstream
            "lookup": Part((0.25, 0.40), (0.02, 0.25), (0.50, 0.80), (0.1, 0.5), dram=(0.7, 0.95)),
            "forward": Part((0.10, 0.20), (0.60, 0.90), (0.6, 1.2), (0.2, 0.6)),
            "backward": Part((0.20, 0.30), (0.60, 0.90), (0.6, 1.2), (0.1, 0.4)),
            "scatter": Part((0.20, 0.35), (0.05, 0.30), (0.45, 0.75), (0.1, 0.4), dram=(0.7, 0.95)),
        },
        (Stretch(("lookup", "forward", "backward", "scatter")),),
        jitter=(0.005, 0.02),
        evaluation_steps=(400, 1000),
        checkpoint_steps=(1000, 2000),
        stall_chance=(0.0, 0.01),
    ),
    "ncf": Family(
        "tiny collaborative filter: the GPU is nearly idle",
        (0.007, 0.021),  # [pollux] NCF
        {
            "forward": Part((0.35, 0.45), (0.30, 0.80), (0.07, 0.12), (0.8, 2.0)),  # [zeus] NCF
            "backward": Part((0.45, 0.55), (0.30, 0.80), (0.07, 0.12), (0.8, 2.0)),
            "optimiser": Part((0.05, 0.15), (0.05, 0.30), (0.07, 0.12), (0.5, 2.0)),
        },
        (Stretch(_PASSES),),
        jitter=(0.02, 0.05),
        evaluation_steps=(500, 1500),
        checkpoint_steps=None,
    ),
    "rl": Family(
        "reinforcement learning: rollouts on the host, then epochs on the GPU",
        (2.0, 12.0),
        {
            "rollout": Part((0.05, 0.12), (0.40, 0.85), (0.3, 0.8), (8.0, 20.0), spread=0.06),  # [assumed]
            "forward": Part((0.28, 0.34), (0.50, 0.90), (0.7, 1.3), (0.2, 0.6)),  # [zeus] CIFAR
            "backward": Part((0.50, 0.60), (0.50, 0.90), (0.7, 1.3), (0.1, 0.4)),
            "optimiser": _OPTIMISER,
        },
        (Stretch(("rollout",)), Stretch(_PASSES, (4, 12))),
        jitter=(0.01, 0.03),
        evaluation_steps=None,
        checkpoint_steps=(20, 60),
    ),
    "diffusion": Family(
        "denoising U-Net with a moving average of its weights",
        (0.20, 1.00),
        {
            "forward": Part((0.28, 0.34), (0.60, 0.90), (1.1, 1.9), (0.05, 0.25)),  # between [zeus] CNN and [h200]
            "backward": Part((0.54, 0.62), (0.60, 0.90), (1.1, 1.9), (0.02, 0.15)),
            "optimiser": _OPTIMISER,
            "average": Part((0.02, 0.05), (0.02, 0.10), (0.50, 0.80), (0.1, 0.4), dram=(0.85, 0.95)),
        },
        (Stretch((*_PASSES, "average")),),
        compiles=True,
    ),
    "lstm": Family(
        "recurrent network on speech or text: sequential kernels",
        (0.30, 2.50),  # [pollux] DeepSpeech2
        {
            "forward": Part((0.32, 0.40), (0.84, 1.00), (0.9, 1.6), (0.9, 2.0)),  # [zeus] LibriSpeech
            "backward": Part((0.52, 0.62), (0.84, 1.00), (0.9, 1.6), (0.5, 1.2)),
            "optimiser": _OPTIMISER,
        },
        (Stretch(_PASSES),),
        jitter=(0.02, 0.06),
        jitter_shape=Jitter(correlation=0.7, tail=4.0),  # utterances sorted by length
    ),
    "gan": Family(
        "generator and discriminator in turn: the step holds two alike halves",
        (0.10, 0.60),
        {
            "discriminator": Part((0.42, 0.50), (0.55, 0.90), (0.8, 1.4), (0.1, 0.5)),  # [zeus] CNN
            "discriminator optimiser": Part((0.02, 0.05), (0.02, 0.10), (0.50, 0.80), (0.1, 0.4)),
            "generator": Part((0.42, 0.54), (0.55, 0.90), (0.8, 1.4), (0.1, 0.5)),
            "generator optimiser": Part((0.02, 0.05), (0.02, 0.10), (0.50, 0.80), (0.1, 0.4)),
        },
        (Stretch(("discriminator", "discriminator optimiser", "generator", "generator optimiser")),),
        evaluation_steps=None,
        stall_chance=(0.0, 0.01),
    ),
    "kmeans": Family(
        "clustering whose iterations shrink as points settle, then starts anew: aperiodic",
        (0.20, 1.50),
        {
            "assign": Part((0.65, 0.80), (0.50, 0.96), (0.6, 1.2), (0.02, 0.15)),  # [rtx8000] matrixMul, nnForward
            "update": Part((0.20, 0.35), (0.10, 0.40), (0.5, 0.8), (0.05, 0.3), dram=(0.6, 0.9)),  # histogram
        },
        (Stretch(("assign", "update")),),
        periodic=False,
        evaluation_steps=None,
        checkpoint_steps=None,
        shrink=(0.90, 0.98),
    ),
}
