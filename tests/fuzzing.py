"""How many cases the fuzzers try: a few dozen, always the same ones, in `make test`; many more in `make fuzz`.

`VITRAIL_FUZZ` multiplies all of their counts, and another `VITRAIL_FUZZ_SEED` draws other cases.
"""

import os
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

TIMES = int(os.environ.get("VITRAIL_FUZZ", "1"))
SEED = int(os.environ.get("VITRAIL_FUZZ_SEED", "0"))


def cases(count: int) -> int:
    """How many to try where `make test` tries `count`."""
    return count * TIMES


def in_fuzz_only(test: Callable[..., Any]) -> Callable[..., Any]:
    """For a test that goes through every case there is, and takes seconds: `make fuzz` runs it."""
    return pytest.mark.fuzz(pytest.mark.skipif(TIMES == 1, reason="takes seconds; make fuzz runs it")(test))


def set_up_hypothesis() -> None:
    """What every property is tried with: examples that nothing but the code decides on, however slow the machine.

    `make fuzz` passes the seed to Hypothesis itself, which ignores it where examples are derandomised.
    """
    settings.register_profile(
        "vitrail",
        max_examples=cases(20),
        derandomize=TIMES == 1,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    settings.load_profile("vitrail")
