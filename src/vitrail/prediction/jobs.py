"""A model for a job of many pictures: opened, and put on the runtime that the job gains most from."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitrail.data.pixels import Picture
from vitrail.errors import ConfigError
from vitrail.prediction.predictor import Predictor, load, torch_runtime_of
from vitrail.progress import say_line, working
from vitrail.runtimes.opening import PrecisionChoice, RuntimeChoice, check_wanted
from vitrail.weights.class_names import ClassNames
from vitrail.weights.layout import EXPORTS
from vitrail.weights.locate import locate

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What a user asked a job to run on."""

    runtime: RuntimeChoice = "auto"
    precision: PrecisionChoice = "float32"
    merge: int | Sequence[int] | None = None
    preprocess: str | None = None  # of another tool's export, which does not say how its pictures are prepared

    def check(self, model: Predictor | str | Path, device: object = "auto") -> None:
        """Refuse what this model cannot have, before it is loaded; a loaded one is used as it is."""
        if not isinstance(model, Predictor):
            check_wanted(locate(model, allow_export=True), self.runtime, self.precision, device)
        elif names := self.given():
            raise ConfigError(
                f"{' and '.join(f'{name}=' for name in names)} cannot change a loaded model; pass it to vitrail.load "
                "instead."
            )

    def given(self) -> dict[str, Any]:
        """What differs from the defaults, by name."""
        usual = Wanted()
        return {name: value for name, value in vars(self).items() if value != getattr(usual, name)}

    def unmeasured(self) -> "Wanted":
        """The same where nothing may be measured: instead of auto, torch and float32."""
        runtime: RuntimeChoice = "torch" if self.runtime == "auto" else self.runtime
        return replace(self, runtime=runtime, precision="float32" if self.precision == "auto" else self.precision)

    def open(
        self, source: str | Path, class_names: ClassNames | None = None, device: "str | torch.device" = "auto"
    ) -> Predictor:
        """The model before its job is known: a checkpoint on torch, an export as it will run."""
        opened = partial(load, source, class_names=class_names, merge=self.merge, preprocess=self.preprocess)
        if locate(source, allow_export=True).suffix in EXPORTS:
            return opened(runtime=self.runtime, precision=self.precision, device=device)
        device = "cpu" if self.runtime in ("onnx", "openvino") else device
        return opened(device=device)

    def put(
        self, predictor: Predictor, count: int | None, pictures: Iterable[Picture] = (), *, speaks: bool = False
    ) -> Predictor:
        """The model on what suits a job of `count` pictures, of which `pictures` are some; None: nobody knows."""
        if torch_runtime_of(predictor.runtime) is None:
            return predictor
        notes: list[str] = []
        with working("finding the fastest runtime", speaks=speaks):
            chosen = predictor.on(self.runtime, self.precision, count=count, pictures=pictures, say=notes.append)
        if notes and speaks:
            say_line(notes[0])
        return chosen
