"""Random numbers without a state: sample i of epoch e under seed s always gets the same ones.

SplitMix64's finaliser (Steele et al., 2014) hashes (seed, epoch, sample, repeat, stream, number) to 64 bits.
"""

import zlib
from functools import cache
from typing import Any

import numpy as np

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_BLOCK = 1 << 16  # of a permutation, that are compared at once
Floats = np.ndarray[Any, np.dtype[np.float64]]
Integers = np.ndarray[Any, np.dtype[np.int64]]
_Words = np.ndarray[Any, np.dtype[np.uint64]]


def _mix(words: _Words) -> _Words:
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def _chain(words: _Words, value: Any) -> _Words:
    return _mix(words * _GOLDEN + np.asarray(value).astype(np.uint64) + np.uint64(1))


def _stream(name: str, count: int) -> _Words:
    """The first `count` words of a stream; in powers of two, so that many lengths do not fill the cache."""
    return _longer_stream(name, 1 << max(count - 1, 0).bit_length())[:count]


@cache
def _longer_stream(name: str, count: int) -> _Words:
    start = np.full(1, zlib.crc32(name.encode()), dtype=np.uint64)
    return _chain(_mix(start * _GOLDEN), np.arange(count))


class Draws:
    """The random numbers of some samples; each `stream` is independent of the others."""

    def __init__(self, seed: int, epoch: int | Integers, samples: Any, repeats: Any = 0) -> None:
        words = _chain(np.zeros(1, dtype=np.uint64), seed % 2**64)
        for value in (epoch, samples, repeats):
            words = _chain(words, value)
        self._words = np.broadcast_to(words, np.broadcast_shapes(words.shape, np.shape(samples)))
        self._seed = seed
        self.epochs, self._samples, self._repeats = (
            np.broadcast_to(value, self._words.shape) for value in (epoch, samples, repeats)
        )

    def __len__(self) -> int:
        return len(self._words)

    def __getitem__(self, rows: slice | Integers) -> "Draws":
        part = object.__new__(Draws)
        part._words, part._seed = self._words[rows], self._seed
        part.epochs, part._samples, part._repeats = self.epochs[rows], self._samples[rows], self._repeats[rows]
        return part

    def in_epoch(self, epoch: int) -> "Draws":
        """Those of the same samples in another epoch."""
        return Draws(self._seed, epoch, self._samples, self._repeats)

    def words(self, stream: str, count: int) -> _Words:
        """Hashes (B, count)."""
        return _mix(self._words[:, None] ^ _stream(stream, count)[None])

    def uniform(self, stream: str, count: int) -> Floats:
        """Numbers in [0, 1), (B, count)."""
        return (self.words(stream, count) >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def one(self, stream: str) -> Floats:
        """One number in [0, 1) per sample, (B,)."""
        return self.uniform(stream, 1)[:, 0]

    def choice(self, stream: str, count: int) -> Integers:
        """One of 0 … count − 1 per sample, (B,)."""
        return (self.one(stream) * count).astype(np.int64)

    def normal(self, stream: str) -> Floats:
        """One standard normal number per sample, (B,) (Box-Muller)."""
        first, second = self.uniform(stream, 2).T
        return np.sqrt(-2 * np.log1p(-first)) * np.cos(2 * np.pi * second)


def permutation(seed: int, epoch: int, count: int, stream: str = "order") -> Integers:
    """0 … count − 1 in the order of this epoch."""
    words = Draws(seed, epoch, np.arange(count)).words(stream, 1)[:, 0]
    return np.argsort(words, kind="stable").astype(np.int64)


def start_of_permutation(most: int, seed: int, epoch: int, count: int, stream: str = "order") -> Integers:
    """The first `most` of a permutation; the others are not held."""
    places, words = np.empty(0, np.int64), np.empty(0, np.uint64)
    for start in range(0, count, _BLOCK):
        some = np.arange(start, min(start + _BLOCK, count))
        places = np.concatenate([places, some])
        words = np.concatenate([words, Draws(seed, epoch, some).words(stream, 1)[:, 0]])
        order = np.argsort(words, kind="stable")[:most]
        places, words = places[order], words[order]
    return places
