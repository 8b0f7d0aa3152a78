"""`vitrail.load` and what it returns: a model that takes pictures. Exports need no torch."""

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Unpack, cast, overload

from vitrail.data.pixels import Picture, is_one
from vitrail.data.preprocess import Preprocess
from vitrail.errors import ConfigError, InputError, WeightsError
from vitrail.prediction.results import (
    Embedding,
    LazyPredictions,
    Named,
    Options,
    Prediction,
    Request,
    familiarity_of,
    name_pictures,
)
from vitrail.prediction.steps import Wanted, answer, run_steps
from vitrail.registry import EXPORTS, PrecisionChoice, RuntimeChoice, key_of
from vitrail.runtimes.runtime import Floats, LoadOptions, Runtime, check_wanted, is_converted, open_runtime
from vitrail.threads import in_chunks, map_in_order
from vitrail.weights.metadata import ClassNames, Metadata
from vitrail.weights.resolve import DEFAULT_MODEL, FormatName, Located, locate
from vitrail.wording import counted

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from vitrail.model import ViT
    from vitrail.model.parts import Pair
    from vitrail.runtimes.torch_runtime import TorchRuntime
    from vitrail.weights.checkpoint import Checkpoint
    from vitrail.weights.hints import Kernel
    from vitrail.weights.infer import Hints

USUAL = Request()
MANY = sys.maxsize  # pictures, for a model that is loaded to be used for long
Output = tuple[str, Floats | str]  # what it is called, and its numbers or why there are none


@dataclass(frozen=True, kw_only=True)
class Predictor(Metadata):
    """A model, on any runtime, with its preprocessing, classes and origin."""

    runtime: Runtime
    source: str = ""  # where it was loaded from, as the user named it

    @property
    def model(self) -> "ViT":
        """The model in torch, in eval mode."""
        return self._torch().model

    @property
    def in_torch(self) -> bool:
        """Whether there is a model in torch; an export has none."""
        return torch_runtime_of(self.runtime) is not None

    @property
    def grid(self) -> "Pair":
        """Rows and columns of patches of a prepared picture."""
        return self.runtime.grid_of(self.preprocess.size)

    @property
    def num_classes(self) -> int:
        """How many classes the head has; 0 if there is no head."""
        return self.runtime.num_classes

    def checkpoint(self) -> "Checkpoint":
        """The model as it is now, with what belongs to it; weights in main memory are shared, not copied."""
        from vitrail.weights.checkpoint import Checkpoint

        runtime = self._torch()
        tensors = {name: tensor.detach().cpu() for name, tensor in runtime.model.state_dict().items()}
        return Checkpoint(config=runtime.model.config, tensors=tensors, extras=runtime.extras, **self.facts())

    def save(self, path: str | Path, format: FormatName | None = None) -> Path:  # noqa: A002
        """Write the model as it is now: a file of ours (`.safetensors`), or another format, all or nothing.

        The suffix chooses the format if only one has it. A file or checkpoint folder of that name is replaced;
        `vitrail.convert` proves what it writes, keeps existing files, and changes sizes, heads and number types too.
        """
        from vitrail.weights.read import choose_format
        from vitrail.weights.write import check_target, write_checkpoint

        target = Path(path)
        name = choose_format(target) if format is None else format
        check_target(target, name)
        write_checkpoint(self.checkpoint(), target, name)
        return target

    def on(
        self,
        runtime: RuntimeChoice = "auto",
        precision: PrecisionChoice = "float32",
        *,
        count: int | None = None,
        pictures: Iterable[Picture] = (),
        batch: int | None = None,
        say: Callable[[str], None] = lambda _: None,
    ) -> "Predictor":
        """The same model on another runtime: "torch", "onnx", "openvino", or "auto" for the fastest.

        "auto" measures only for jobs that gain from it, once for each model and machine; an export stays where it is.

        Args:
            precision: "float32", "bf16", or "auto" for the faster one; docs/fast.md says how the answers change.
            count: how many pictures there are to do; if that is unknown, only what was measured before counts.
            pictures: some of them, to measure and compare with.
            batch: how many come together; by default as many as suit the model.
            say: called with one line about what was chosen, if there was a choice.
        """
        own = torch_runtime_of(self.runtime)
        if own is None:
            if runtime not in ("auto", key_of(self.runtime.name)) or precision != "float32":
                raise ConfigError(f"this model is on {self.runtime.name} already; load its checkpoint for another.")
            return self
        if not own.in_float32:
            raise ConfigError('this model was loaded in bf16; load it with `precision="float32"` first.')
        from vitrail.runtimes.auto import choose

        choice = choose(own, self.checkpoint(), runtime, precision, count, pictures, batch)
        if choice.note:
            say(choice.note)
        return self if choice.runtime is own else replace(self, runtime=choice.runtime)

    def _torch(self) -> "TorchRuntime":
        runtime = torch_runtime_of(self.runtime)
        if runtime is None:
            raise InputError(
                f"this model runs on {self.runtime.name}, which can predict and embed but has no torch model; load the "
                "checkpoint that it was exported from."
            )
        return runtime

    def __call__(self, images: "Tensor | Sequence[Tensor]") -> "Tensor":
        """Logits of prepared pictures (B, C, H, W), without gradients; lists of several sizes need the torch model."""
        import torch

        runtime = torch_runtime_of(self.runtime)
        if runtime is None and isinstance(images, torch.Tensor):
            return torch.from_numpy(self.runtime.logits(images.float().cpu().numpy()))
        return self._torch().run(self.model, images)

    @overload
    def predict(self, pictures: Picture, **options: Unpack[Options]) -> Prediction: ...
    @overload
    def predict(self, pictures: Collection[Picture], **options: Unpack[Options]) -> LazyPredictions: ...
    @overload
    def predict(self, pictures: Iterator[Picture], **options: Unpack[Options]) -> Iterator[Prediction]: ...
    def predict(
        self,
        pictures: Picture | Iterable[Picture],
        *,
        top_k: int | None = None,
        coverage: float | None = None,
        abstain: bool = False,
        batch_size: int | None = None,
    ) -> Prediction | LazyPredictions | Iterator[Prediction]:
        """The answer for one picture; for several, a sequence that is computed as it is read.

        It names the five most likely classes, or the labels that apply (`top_k` of them at most), or gives the values
        that the model measures, as its task is.

        For a generator, and whatever else has no length, it is a stream of predictions, each computed only once.

        A picture is a path, an encoded file, a PIL picture, an array or a tensor; 4-D arrays and tensors are several.
        Among several, an unreadable one is a `Prediction` with its `error`; a single one raises.

        A calibrated model also gives a set of labels, or the intervals of its values, that hold the truth as often as
        `coverage` says, and tells what is unlike anything seen in training; with `abstain`, such a picture gets no
        answer.
        """
        request = Request(top_k=top_k, coverage=coverage, abstain=abstain)
        if is_one(pictures):
            self._check(request)
            picture = cast("Picture", pictures)
            return replace(self._prediction(*self._one(picture, "answers"), request), source=picture)
        several = cast("Iterable[Picture]", pictures)
        if not isinstance(several, Sized):
            return self.predict_named(name_pictures(several), request, batch_size)
        return LazyPredictions(lambda: name_pictures(several), *self.answering(request, batch_size))

    def predict_named(
        self, pictures: Iterable[Named], request: Request = USUAL, batch_size: int | None = None
    ) -> Iterator[Prediction]:
        """A stream of predictions for pictures that have names of their own."""
        return self.answering(request, batch_size)[0](pictures)

    def answering(
        self, request: Request = USUAL, batch_size: int | None = None
    ) -> tuple[Callable[[Iterable[Named]], Iterator[Prediction]], int]:
        """What turns named pictures into predictions, and how many pictures are computed together."""
        self._check(request)
        size = self._batch_size(batch_size)

        def compute(pictures: Iterable[Named]) -> Iterator[Prediction]:
            rows = self._stream(pictures, "answers", size)
            return (self._prediction(name, value, request) for name, value in rows)

        return compute, size

    @property
    def judges_familiarity(self) -> bool:
        """Whether its predictions tell what is unlike anything seen in training."""
        return familiarity_of(self, self.runtime) is not None

    @overload
    def embed(self, pictures: Picture, *, batch_size: int | None = ...) -> Embedding: ...
    @overload
    def embed(self, pictures: Iterable[Picture], *, batch_size: int | None = ...) -> Iterator[Embedding]: ...
    def embed(
        self, pictures: Picture | Iterable[Picture], *, batch_size: int | None = None
    ) -> Embedding | Iterator[Embedding]:
        """The embedding of one picture, or a stream of them for several; see `predict` for what a picture is."""
        if is_one(pictures):
            return _embedding(*self._one(cast("Picture", pictures), "features"))
        named = name_pictures(cast("Iterable[Picture]", pictures))
        return (_embedding(name, value) for name, value in self.features(named, batch_size))

    def logits(self, pictures: Iterable[Named], batch_size: int | None = None) -> Iterator[Output]:
        """The logits of named pictures, in order, or why a picture has none."""
        return self._stream(pictures, "logits", batch_size)

    def features(self, pictures: Iterable[Named], batch_size: int | None = None) -> Iterator[Output]:
        """The features of named pictures, in order, or why a picture has none."""
        return self._stream(pictures, "features", batch_size)

    def name_scores(self, numbers: Floats, request: Request = USUAL, picture: str = "picture") -> Prediction:
        """What one picture's row of logits, or of the numbers that `steps.compute` gives for answers, stands for."""
        self._check(request)
        return self._prediction(picture, numbers, request)

    def __repr__(self) -> str:
        return f"<Predictor {self.source or self.origin.source or 'model'}: {self._outline()}, on {self.runtime.name}>"

    def _outline(self) -> str:
        noun = self.task.noun
        classes = counted(self.num_classes, *noun) if self.num_classes else f"no {noun[1]}"
        return f"{classes}, pictures of {'×'.join(map(str, self.preprocess.size))}"

    def _repr_markdown_(self) -> str:
        """In a notebook: the model step by step."""
        head = f"**{self.origin.source or 'model'}**: {self._outline()}"
        if not self.in_torch:
            return head
        from vitrail.model import summarize

        return f"{head}\n\n{summarize(self.model.config).markdown()}"

    def _stream(self, pictures: Iterable[Named], wanted: Wanted, batch_size: int | None) -> Iterator[Output]:
        size = self._batch_size(batch_size)

        def work(chunk: list[Named]) -> list[Output]:
            return run_steps(self, self.runtime, chunk, wanted)

        for outputs in map_in_order(work, in_chunks(pictures, size), self.runtime.threads):
            yield from outputs

    def _batch_size(self, asked: int | None) -> int:
        size = self.runtime.batch_size if asked is None else asked
        if size < 1:
            raise ConfigError(f"batch_size must be at least 1; got {size}.")
        return size

    def _one(self, picture: Picture, wanted: Wanted) -> tuple[str, Floats]:
        name = str(picture) if isinstance(picture, str | Path) else "picture"
        _, value = run_steps(self, self.runtime, [(name, picture)], wanted)[0]
        if isinstance(value, str):
            raise InputError(value)
        return name, value

    def _prediction(self, name: str, value: Floats | str, request: Request) -> Prediction:
        return answer(self, name, value, self.num_classes, request)

    def _check(self, request: Request) -> None:
        if self.num_classes == 0:
            raise WeightsError("this checkpoint has no classes to predict; use embed, or train a head for it.")
        request.check(self, self.runtime)


def load(
    source: str | Path | Located = DEFAULT_MODEL,
    *,
    num_classes: int | None = None,
    classes: Sequence[str] | None = None,
    image_size: "int | Pair | None" = None,
    channels: int | None = None,
    drop_representation: bool | None = None,
    resample: "Kernel | None" = None,
    hints: "Hints | None" = None,
    merge: int | Sequence[int] | None = None,
    class_names: ClassNames | None = None,
    preprocess: Preprocess | str | None = None,
    runtime: RuntimeChoice | None = None,
    precision: PrecisionChoice = "float32",
    device: "str | torch.device" = "cpu",
    verify: bool = True,
) -> Predictor:
    """The checkpoint of `source`, ready to take pictures; without a source, the bundled CIFAR-10 model.

    A source is a file, a run folder, `hf://owner/name` or `google://NAME`; `adapt` says what changes with classes,
    sizes and channels. A new head drops the representation layer too, as in the paper, unless `drop_representation` is
    False. `class_names` are those of the head that the checkpoint has, in order, or a file with one per line (or JSON),
    for a checkpoint without names. Pickles are refused: convert them once. `verify=False` skips the checksums of a file
    that you trust, and with them the reading of weights before they are used.

    A checkpoint runs on torch, and an export on its own runtime. For another `runtime`, such as "openvino", it is
    converted, which takes seconds the first time and is kept in the user's cache; "auto" measures which is fastest.
    Only a model on torch has `.model`. `precision` "bf16" computes faster on some processors, "auto" where it is.

    `merge` merges about this many similar patches in each block (or one number per block), which is faster and changes
    the answers a little; see docs/model.md.

    What a foreign file leaves open is settled by `hints`, or by a convention: an `AssumptionWarning` then lists what
    was assumed, and `Predictor.notes` keeps it.
    """
    located = source if isinstance(source, Located) else locate(source, allow_export=True)
    check_wanted(located, runtime, precision, device)
    is_open = located.suffix in EXPORTS or (runtime in (None, "torch") and precision != "auto")
    options = LoadOptions(
        num_classes=num_classes,
        classes=classes,
        image_size=image_size,
        channels=channels,
        drop_representation=drop_representation,
        resample=resample,
        hints=hints,
        merge=merge,
        class_names=class_names,
        preprocess=preprocess,
        precision="bf16" if is_open and precision == "bf16" else "float32",
        device="cpu" if is_converted(runtime) else device,
        verify=verify,
    )
    opened, facts = open_runtime(located, options)
    predictor = Predictor(runtime=opened, source=located.name, **facts.facts())
    return predictor if is_open else predictor.on(runtime or "torch", precision, count=MANY)


def torch_runtime_of(runtime: Runtime) -> "TorchRuntime | None":
    """The runtime, if it is torch's; asked without loading torch for another."""
    return cast("TorchRuntime", runtime) if hasattr(runtime, "model") else None


def _embedding(name: str, value: Floats | str) -> Embedding:
    if isinstance(value, str):
        return Embedding(picture=name, error=value)
    return Embedding(picture=name, vector=value.copy())
