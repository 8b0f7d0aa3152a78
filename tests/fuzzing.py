"""How many cases the fuzzers try: a few dozen, always the same ones, in `make test`; many more in `make fuzz`.

`VITRAIL_FUZZ` multiplies all of their counts, and another `VITRAIL_FUZZ_SEED` draws other cases.
"""

import os

from hypothesis import HealthCheck, settings

TIMES = int(os.environ.get("VITRAIL_FUZZ", "1"))
SEED = int(os.environ.get("VITRAIL_FUZZ_SEED", "0"))


def cases(count: int) -> int:
    """How many to try where `make test` tries `count`."""
    return count * TIMES


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
