"""From samples to finished pictures: a chunk is a part of a batch that one worker makes from start to end."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitrail.data.augment.crops import crop_picture, crop_tensor, fit_for_shift, resized_crop_numbers, shift_batch
from vitrail.data.augment.ops import take
from vitrail.data.augment.outliers import pick_outliers
from vitrail.data.augment.pipeline import augment_batch, mix, soft_targets, without_label
from vitrail.data.config import Augment
from vitrail.data.preprocess import Preprocess
from vitrail.data.source import ArraySource, Source
from vitrail.data.transform import fit, fit_tensor, normalize, pixels
from vitrail.errors import DataError, InputError
from vitrail.rng import Draws, Floats, Integers
from vitrail.wording import reason

SUBSTITUTES = 20  # tries to find a readable picture in place of a broken one


class Buffers:
    """Hands out tensors, on memory that is no longer in use if there is any.

    Each tensor, and every view of it, keeps the numpy array below it alive; an array that only this list refers to
    is free. Pinned memory is left to torch, which has its own cache and tracks copies that still run.
    """

    def __init__(self, limit: int, *, pinned: bool = False) -> None:
        self._limit = limit  # arrays to keep
        self._pinned = pinned
        self._arrays: list[np.ndarray[Any, Any]] = [np.empty(0)]
        self._idle = sys.getrefcount(self._arrays[0])  # the count of an array that only the list refers to

    @torch.inference_mode(False)  # the workers, which have a mode of their own, must be able to fill it
    def take(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """An uninitialised tensor."""
        if self._pinned:
            return torch.empty(shape, dtype=dtype, pin_memory=True)
        kind = np.uint8 if dtype == torch.uint8 else np.float32
        free = [index for index in range(len(self._arrays)) if sys.getrefcount(self._arrays[index]) <= self._idle]
        for index in free:
            if self._arrays[index].shape == shape and self._arrays[index].dtype == kind:
                return torch.as_tensor(self._arrays[index])
        for index in reversed(free):  # of other shapes: the last batch of an epoch may be shorter
            del self._arrays[index]
        array = np.empty(shape, dtype=kind)
        if len(self._arrays) < self._limit:  # beyond that, the caller keeps its batches, and they are not reused
            self._arrays.append(array)
        return torch.as_tensor(array)


@dataclass(frozen=True)
class Chunk:
    """Finished samples."""

    indices: Integers  # of the samples that the pictures show
    targets: Tensor  # (B,) classes, (B, labels) zeros and ones, (B, values), or (B, classes) shares
    broken: dict[str, str]  # key → why it cannot be read

    @property
    def num_images(self) -> int:
        return len(self.indices)


def read_samples(
    source: Source, spec: Preprocess, samples: Integers, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Chunk]:
    """The samples that can be read as the model sees them (B, C, H, W), or as bytes before they are normalised."""
    images = torch.empty(len(samples), spec.channels, *spec.size, dtype=dtype)
    chunk = ChunkMaker(source, spec, None, 0).make(samples, Draws(0, 0, samples), images, substitute=False)
    return images[: chunk.num_images], chunk


class ChunkMaker:
    """Makes chunks of one source. It has no mutable state, so several threads may use it."""

    def __init__(self, source: Source, spec: Preprocess, augment: Augment | None, num_classes: int) -> None:
        self.source = source
        self.spec = spec
        self.augment = augment
        self.num_classes = num_classes
        # Training need not match other libraries to the bit, so torch resizes, on bytes, three times as fast as Pillow.
        fast = spec.interpolation != "lanczos"
        self._train_spec = replace(spec, kernel="bytes", antialias=True) if fast else spec

    def make(self, samples: Integers, draws: Draws, out: Tensor, *, substitute: bool) -> Chunk:
        """Fill `out` (B, C, H, W), floats or bytes, from its start; a broken picture is replaced or left out."""
        images, indices, broken = self._crops(samples, draws, substitute)
        targets = torch.as_tensor(self.source.labels[indices])
        if not self.augment:
            self._write(images, out)
            return Chunk(indices, targets, broken)
        augment_batch(images, self._train_spec, self.augment, draws)
        strange, outliers = pick_outliers(images, self.augment, draws)
        floats = self._write(images, out)
        if self.augment.pairs:
            targets = soft_targets(targets, self.num_classes)
        if self.augment.mixes:
            mixed, targets = mix(floats, targets, self.augment, draws)
            floats.copy_(mixed)
        if len(strange):  # after the mixing, so that others are mixed with pictures of something
            out[strange] = self._write(outliers, torch.empty(outliers.shape, dtype=out.dtype))
            targets[strange] = without_label(self.source.labels, self.num_classes)
        return Chunk(indices, targets, broken)

    def _write(self, images: Tensor, out: Tensor) -> Tensor:
        """Fill `out` from its start with pixels: as bytes, or normalised."""
        part = out[: len(images)]
        if out.dtype == torch.uint8:
            return part.copy_(images.round() if images.is_floating_point() else images)
        return normalize(images, self.spec, part)

    def _crops(self, samples: Integers, draws: Draws, substitute: bool) -> tuple[Tensor, Integers, dict[str, str]]:
        """The crops of all samples that can be read, or of substitutes; which they are, and which cannot be read."""
        broken: dict[str, str] = {}
        if isinstance(self.source, ArraySource):
            return self._crop_arrays(self.source, samples, draws), samples, broken
        self.source.prefetch(samples)
        numbers = resized_crop_numbers(draws)
        images: dict[int, Tensor] = {}  # row → its picture
        indices = samples.copy()
        for row in range(len(samples)):
            own = draws[row : row + 1]
            for index in self._candidates(int(samples[row]), own, substitute):
                try:
                    images[row] = self._crop(index, own, numbers[row])
                    indices[row] = index
                    break
                except (InputError, OSError) as error:
                    broken[self.source.key(index)] = reason(error)
            if substitute and row not in images:
                last = list(broken.values())[-1]
                raise DataError(f"{SUBSTITUTES} pictures in a row cannot be read; the last: {last}")
        empty = torch.empty(0, self.spec.channels, *self.spec.size)
        return torch.stack(list(images.values())) if images else empty, indices[list(images)], broken

    def _candidates(self, index: int, draws: Draws, substitute: bool) -> Iterator[int]:
        yield index
        if substitute:
            yield from (int(number * len(self.source)) for number in draws.uniform("substitute", SUBSTITUTES)[0])

    def _crop(self, index: int, draws: Draws, numbers: Floats) -> Tensor:
        crop = self._crop_of(index, draws, numbers)
        return crop if self.spec.value_range is None else crop.to(torch.float32)  # pictures of 8 bits among deeper ones

    def _crop_of(self, index: int, draws: Draws, numbers: Floats) -> Tensor:
        picture, name = self.source.picture(index), self.source.key(index)
        if not self.augment:
            return fit(picture, self.spec, name)
        if self.augment.crop == "resized":
            return crop_picture(picture, self._train_spec, self.augment, numbers, name)
        if self.augment.crop == "pad":
            whole = fit_for_shift(pixels(picture, self._train_spec, name)[None], self._train_spec)
            return shift_batch(whole, self._train_spec, self.augment, draws)[0]
        return fit(picture, self._train_spec, name)

    def _crop_arrays(self, source: ArraySource, samples: Integers, draws: Draws) -> Tensor:
        images = take(source.images, samples)  # (B, C, h, w)
        if images.shape[1] == 1 and self.spec.channels == 3:
            images = images.expand(-1, 3, -1, -1)
        if images.shape[1] != self.spec.channels:
            raise InputError(f"the pictures have {images.shape[1]} channels; the model expects {self.spec.channels}.")
        if not self.augment:
            return fit_tensor(images, self.spec)
        if self.augment.crop == "pad":
            return shift_batch(fit_for_shift(images, self._train_spec), self._train_spec, self.augment, draws)
        if self.augment.crop == "none":
            return fit_tensor(images, self._train_spec).contiguous()
        numbers = resized_crop_numbers(draws)
        crops = [crop_tensor(image, self._train_spec, self.augment, numbers[row]) for row, image in enumerate(images)]
        return torch.stack(crops)
