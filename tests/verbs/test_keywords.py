"""The settings that editors offer for a verb are those that it takes."""

import dataclasses
import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

import vitrail
from vitrail.data.config import Augment, Columns, DataConfig
from vitrail.serving.settings import ServeSettings
from vitrail.training.changes import PARTS, field_homes
from vitrail.training.config import TrainConfig
from vitrail.training.recipes import settings_for
from vitrail.verbs.keywords import Size

TRAINING = tuple(type(getattr(TrainConfig(), part)) for part in PARTS)
TAKEN: dict[str, tuple[type, ...]] = {  # verb → the dataclasses whose fields it takes
    **dict.fromkeys(("train", "resume", "plan", "pretrain"), TRAINING),
    **dict.fromkeys(("open_data", "check_data", "audit_data", "shard_data"), (DataConfig,)),
    **dict.fromkeys(("evaluate", "embed", "calibrate"), (DataConfig,)),
    "show_data": (DataConfig, Augment),
    **dict.fromkeys(("inspect", "convert"), (vitrail.Hints,)),
    "serve": (ServeSettings,),
}
# What may be passed for a field of this type; for `weights`, `classes` and `teacher`, which are texts, a path too.
WIDER: dict[Any, Any] = {
    Path | None: str | Path | None,
    tuple[int, int] | None: Size | None,
    tuple[Path, ...]: str | Path | Sequence[str | Path],
    Columns: Columns | dict[str, str],
}


def test_every_verb_with_settings_names_them() -> None:
    taking = {
        name
        for name in vitrail.__all__
        if inspect.isfunction(verb := getattr(vitrail, name)) and "settings" in inspect.signature(verb).parameters
    }
    assert taking == set(TAKEN)


@pytest.mark.parametrize("name", TAKEN)
def test_editors_offer_the_fields_with_their_types(name: str) -> None:
    (typed,) = get_args(getattr(vitrail, name).__annotations__["settings"])  # Unpack[…]
    assert typed.__total__ is False
    offered = get_type_hints(typed)
    if name == "resume":
        assert (offered.pop("data"), offered.pop("recipe")) == (str | Path, str)
    expected: dict[str, Any] = {}
    for config in TAKEN[name]:
        hints = get_type_hints(config)
        expected |= {field.name: hints[field.name] for field in dataclasses.fields(config)}
    others = set(field_homes()) - set(settings_for(name))
    for field, hint in expected.items():
        if field in others:
            assert field not in offered, field
            continue
        wider = str | Path | None if field in ("weights", "classes", "teacher") else WIDER.get(hint, hint)
        assert offered.pop(field) == wider, field
    assert not offered
