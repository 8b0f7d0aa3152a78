import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from vitrail.errors import ConfigError
from vitrail.schema import from_dict, to_dict, validate


@dataclass(frozen=True, kw_only=True)
class Inner:
    rate: float = 0.5
    names: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Outer:
    size: tuple[int, int]
    mode: Literal["a", "b"] = "a"
    limit: int | None = None
    flag: bool = False
    inner: Inner = field(default_factory=Inner)

    def __post_init__(self) -> None:
        validate(self)


def test_round_trip_through_json() -> None:
    config = Outer(size=(1, 2), mode="b", limit=3, flag=True, inner=Inner(rate=1.0, names=("x", "y")))
    assert from_dict(Outer, json.loads(json.dumps(to_dict(config)))) == config


def test_one_number_makes_a_pair_and_whole_numbers_become_floats() -> None:
    config = from_dict(Outer, {"size": 3, "inner": {"rate": 1}})
    assert config.size == (3, 3)
    assert isinstance(config.inner.rate, float)
    assert Outer(size=3).size == (3, 3)  # pyright: ignore


def test_yaml_reads_exponents_as_text() -> None:
    assert from_dict(Outer, {"size": 1, "inner": {"rate": "1e-6"}}).inner.rate == 1e-6


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, "Outer.size is missing"),
        ([], "Outer must be a mapping"),
        ({"size": [1, 2], "modes": "a"}, "Outer has no field 'modes'; did you mean mode"),
        ({"size": [1, "2"]}, r"Outer.size\[1\] must be a whole number; got '2'"),
        ({"size": [1, 2, 3]}, "Outer.size must have 2 values; got 3"),
        ({"size": 1, "mode": "c"}, "Outer.mode must be one of a, b; got 'c'"),
        ({"size": 1, "flag": 1}, "Outer.flag must be true or false; got 1"),
        ({"size": 1, "limit": "x"}, "Outer.limit must be a whole number; got 'x'"),
        ({"size": 1, "inner": {"rate": "x"}}, "Outer.inner.rate must be a number; got 'x'"),
        ({"size": 1, "inner": {"names": "abc"}}, "Outer.inner.names must be a list; got 'abc'"),
    ],
)
def test_a_wrong_value_is_named_with_its_place(data: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        from_dict(Outer, data)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"size": 2**63}, r"Outer.size\[0\] must be between -2\*\*63 and 2\*\*63; got 9223372036854775808"),
        ({"size": 16**5000}, "got a whole number of about 6,000 digits"),
        ({"size": 1, "inner": {"rate": 16**5000}}, "Outer.inner.rate must be a number that a float can hold"),
        ({"size": 1, 16**5000: 1}, "Outer has no field a whole number of"),
        ({"size": 1, "x" * 10**6: 1}, "Outer has no field 'xxx"),
        ({"size": [1] * 10**6}, "Outer.size must have 2 values; got 1000000"),
        ({"size": 1, "mode": ["x" * 10**6] * 100}, "Outer.mode must be one of a, b"),
    ],
    ids=range(7),
)
def test_absurd_values_are_quoted_in_short(data: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        from_dict(Outer, data)
    assert len(str(error.value)) < 600


def test_no_path_has_a_nul() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Place:
        path: Path

    with pytest.raises(ConfigError, match="without a NUL character"):
        from_dict(Place, {"path": "a\0b"})
