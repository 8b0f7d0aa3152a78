"""Masked pre-training (MAE): which patches are hidden, the loss of their pixels, and a probe of the features.

Only visible patches go through the encoder; a light decoder (`model/mae_decoder.py`) predicts the pixels of the others.
As everything random in a run, the hidden patches follow from (seed, epoch, sample), on any number of ranks; those of
validation are always the same. A stem of convolutions looks beyond its patch, so that hidden pixels are replaced by the
mean before it: otherwise visible patches would know the edges of hidden ones.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from vitrail.data import Dataset
from vitrail.data.source import join_sources
from vitrail.errors import ConfigError, suggest
from vitrail.evaluation.probe import FeatureSet, knn
from vitrail.model import PatchStem, ViT, ViTConfig
from vitrail.model.mae_decoder import EXTRAS, Decoder, DecoderConfig, cut_patches, decoder_for, join_patches
from vitrail.model.parts import Pair
from vitrail.model.patch_embed import take_patches
from vitrail.registry import labels_of
from vitrail.rng import Draws, Integers, start_of_permutation
from vitrail.training.config import Pretraining, TrainConfig
from vitrail.training.curves import SHORT, Choice
from vitrail.training.setup import Setup

EPS = 1e-6  # of the variance of a patch
KNN, PROBED = "knn_accuracy", "probe"  # the metric, and the split of its pictures
BANK, ASKED = 2000, 1000  # training pictures that vote, and validation pictures that are classified, at most
PROBES = 10  # in a run


def check_model(config: ViTConfig) -> None:
    """Refuse what cannot be pre-trained."""
    if config.merge:
        raise ConfigError("a model that merges tokens cannot be pre-trained on masked pictures; turn merging off.")
    if prod(config.grid) < 4:
        raise ConfigError(
            f"masked pre-training needs at least 4 patches; pictures of {config.image_size[1]}×{config.image_size[0]} "
            f"have {prod(config.grid)}; raise `image_size=` or take smaller patches."
        )


def masked_choice(config: TrainConfig, *, probes: bool) -> Choice:
    """The metric that is shown: by default, it does not choose, and the last epoch is kept."""
    asked = SHORT.get(config.schedule.best, config.schedule.best)
    known = ("auto", "loss", *([KNN] if probes else []))
    if asked == KNN and not probes:
        raise ConfigError("needs pictures with classes for its kNN probe; pass loss, or omit it.", field="best")
    if asked not in known:
        raise ConfigError(f"has no {asked!r} for pre-training; {suggest(asked, known)}", field="best")
    metric = asked if asked != "auto" else KNN if probes else "loss"
    return Choice(metric, higher=metric == KNN, keeps_last=asked == "auto")


def build_decoder(encoder: ViTConfig, settings: Pretraining, beside: Mapping[str, Tensor], seed: int) -> Decoder:
    """The decoder of the run: the one beside the encoder's weights if that is asked for, or else a new one."""
    size = decoder_for(encoder, settings.decoder_width, settings.decoder_depth)
    stored = {name.removeprefix(EXTRAS): tensor for name, tensor in beside.items() if name.startswith(EXTRAS)}
    asked = (settings.decoder_width, settings.decoder_depth)
    own = _size_of(stored) if stored else size
    with torch.random.fork_rng(devices=[]):  # the same whenever it is built
        torch.manual_seed(seed)
        if stored and all(want in (None, has) for want, has in zip(asked, (own.width, own.depth), strict=True)):
            decoder = Decoder(encoder, own)
            shapes = {name: tensor.shape for name, tensor in decoder.state_dict().items()}
            if shapes == {name: tensor.shape for name, tensor in stored.items()}:
                decoder.load_state_dict(stored)
                return decoder
        return Decoder(encoder, size)


def _size_of(tensors: Mapping[str, Tensor]) -> DecoderConfig:
    blocks = {name.split(".")[1] for name in tensors if name.startswith("blocks.")}
    return DecoderConfig(width=tensors["mask_token"].shape[-1], depth=len(blocks))


def draw_patches(
    indices: Tensor, grid: Pair, rate: float, seed: int, epoch: int | None = None
) -> tuple[Tensor, Tensor]:
    """The visible (B, n) and the hidden patches (B, m) of samples in an epoch; without one, those of validation."""
    count = prod(grid)
    keep = min(max(int(count * (1 - rate)), 1), count - 1)
    stream = "masked" if epoch is not None else "masked in validation"
    order = _shuffle(indices, count, seed, epoch or 0, stream)
    return order[:, :keep], order[:, keep:]


def _draw(indices: Tensor, count: int, seed: int, epoch: int, stream: str) -> Tensor:
    """The patches of each sample in random order."""
    words = Draws(seed, epoch, indices.numpy()).words(stream, count)
    return torch.from_numpy(np.argsort(words, axis=1, kind="stable"))


_shuffle = cast("Callable[..., Tensor]", torch.compiler.disable(_draw))  # NumPy is no part of a compiled graph


def predict_pixels(model: ViT, decoder: Decoder, images: Tensor, visible: Tensor, hidden: Tensor) -> Tensor:
    """What the decoder makes of the hidden patches: (B, m, pixels)."""
    visible, hidden = visible.to(images.device), hidden.to(images.device)
    grid, stride = model.embed.grid_of(images), model.config.stride
    if not isinstance(model.config.stem, PatchStem):
        images = hide_pixels(images, hidden, grid, stride)
    return decoder(model.visible_tokens(images, visible), visible, hidden, grid)


def hide_pixels(images: Tensor, hidden: Tensor, grid: Pair, stride: Pair) -> Tensor:
    """The pictures with their hidden patches grey: 0, which is the mean after normalisation."""
    shown = torch.ones(len(images), prod(grid), device=images.device, dtype=images.dtype).scatter_(1, hidden, 0.0)
    rows, columns = stride
    mask = shown.unflatten(1, grid).repeat_interleave(rows, 1).repeat_interleave(columns, 2)
    return images * mask[:, None]


def masked_loss(
    model: ViT, decoder: Decoder, images: Tensor, visible: Tensor, hidden: Tensor, pixels: str = "normalized"
) -> Tensor:
    """The mean squared error of the hidden patches' pixels."""
    predicted = predict_pixels(model, decoder, images, visible, hidden)
    target = take_patches(cut_patches(images, model.config.stride), hidden.to(images.device)).float()
    if pixels == "normalized":
        variance, mean = torch.var_mean(target, dim=-1, keepdim=True)
        target = (target - mean) / (variance + EPS).sqrt()
    return (predicted.float() - target).square().mean()


def reconstruct(
    model: ViT, decoder: Decoder, images: Tensor, visible: Tensor, hidden: Tensor, pixels: str = "normalized"
) -> Tensor:
    """The pictures with the predicted pixels in their hidden patches.

    What was predicted without its mean and deviation gets those of the true patch.
    """
    predicted = predict_pixels(model, decoder, images, visible, hidden).float()
    patches = cut_patches(images, model.config.stride)
    if pixels == "normalized":
        true = take_patches(patches, hidden)
        variance, mean = torch.var_mean(true, dim=-1, keepdim=True)
        predicted = predicted * (variance + EPS).sqrt() + mean
    places = hidden[..., None].expand(-1, -1, patches.shape[-1])
    return join_patches(patches.scatter(1, places, predicted), model.embed.grid_of(images), model.config.stride)


@dataclass(frozen=True, kw_only=True)
class Probe:
    """Some training pictures, by whose features some validation pictures are classified."""

    dataset: Dataset  # with all of them, the training pictures first, as one split
    bank: int  # how many of them are training pictures
    every: int | None  # epochs between two of them; None: so that there are a few

    def is_due(self, epoch: int, epochs: int) -> bool:
        """Whether it is time: after the first epoch, every few, and after the last."""
        every = max(epochs // PROBES, 1) if self.every is None else self.every
        return epoch in (1, epochs) or epoch % every == 0

    def accuracy(self, parts: Sequence[tuple[Integers, Any, Integers]]) -> float:
        """The share of validation pictures whose class their nearest neighbours know, from (indices, features, labels)
        of all pictures, in any order.
        """
        indices, vectors, labels = (np.concatenate(some) for some in zip(*parts, strict=True))
        order = np.argsort(indices, kind="stable")
        indices, vectors, labels = indices[order], vectors[order], labels[order]
        voters = indices < self.bank
        bank, asked = (FeatureSet(vectors=vectors[some], labels=labels[some]) for some in (voters, ~voters))
        return knn(bank, asked).top1.value if len(bank.labels) and len(asked.labels) else float("nan")


def plan_probe(setup: Setup) -> Probe | None:
    """The probe of a run, if its pictures have classes and it holds out some of them."""
    dataset, every = setup.dataset, setup.config.pretraining.probe_every
    if labels_of(dataset.task) != "class" or not setup.has_validation or every == 0:
        return None
    parts = [
        dataset.split(split).select(np.sort(start_of_permutation(most, 0, 0, len(dataset.split(split)), PROBED)))
        for split, most in (("train", BANK), ("val", ASKED))
    ]
    splits = {**dataset.splits, PROBED: join_sources(*parts)}
    return Probe(dataset=replace(dataset, splits=splits), bank=len(parts[0]), every=every)
