"""Shares with their intervals, which every task counts. It needs nothing."""

import math
from dataclasses import dataclass

Z = 1.959963984540054  # standard deviations of a 95 % interval


@dataclass(frozen=True, kw_only=True)
class Rate:
    """A share of correct answers with its 95 % interval (Wilson's score)."""

    correct: int
    total: int
    value: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Share:
    """A share that is no count, such as a mean average precision, with its 95 % interval."""

    value: float
    low: float
    high: float


def rate_text(rate: Rate | Share) -> str:
    """A rate with its interval, in one line."""
    return f"{rate.value:.2%} ({interval_text(rate)})"


def interval_text(rate: Rate | Share) -> str:
    """Its interval only."""
    return f"95 %: {rate.low:.2%} to {rate.high:.2%}"


def rate(correct: int, total: int) -> Rate:
    """A share with Wilson's 95 % interval, which is reliable for few samples and for shares near 0 and 1."""
    share, spread = correct / total, Z * Z / total
    centre = (share + spread / 2) / (1 + spread)
    half = Z * math.sqrt(share * (1 - share) / total + spread / (4 * total)) / (1 + spread)
    low = 0.0 if correct == 0 else max(0.0, centre - half)
    high = 1.0 if correct == total else min(1.0, centre + half)
    return Rate(correct=correct, total=total, value=share, low=low, high=high)
