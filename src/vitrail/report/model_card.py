"""A model's card, the README.md of its repository on the hub: filled from the checkpoint and from its training run."""

import csv
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from vitrail.data.check.findings import RECORD, CheckRecord, read_record
from vitrail.data.split import SPLITS
from vitrail.errors import ConfigError, DataError
from vitrail.registry import LabelKind
from vitrail.report.sections import rate_text
from vitrail.schema import from_dict
from vitrail.tasks.rates import Rate, rate
from vitrail.training.config import TrainConfig
from vitrail.training.run_folder import LARGEST, METRICS, SPLIT, Run, read_config, read_run
from vitrail.untrusted import parse_json, read_bytes
from vitrail.weights.addresses import OURS, check_address
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.hub_repository import HubFiles
from vitrail.weights.pretrained import find
from vitrail.wording import counted, duration, plain

SHOWN = 20  # names of classes
WEAKEST = 3  # classes that are named


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """What the folder of a training run says."""

    config: TrainConfig
    run: Run | None = None  # None: it has not ended
    numbers: Mapping[str, Any] = field(default_factory=dict[str, Any])  # `evaluation` of metrics.json
    check: CheckRecord | None = None
    splits: Mapping[str, int] = field(default_factory=dict[str, int])  # → pictures; empty if the run did not list them

    @property
    def base(self) -> str:
        """The hub's owner/name of the weights that it started from; "" for a file or none."""
        return check_address(weights).partition("@")[0] if "://" in (weights := self.config.start.weights or "") else ""

    @property
    def data(self) -> str:
        """What the data are called; their folder concerns nobody else."""
        return str(self.numbers.get("data") or (self.check.data if self.check else Path(self.config.data).name))


def read_facts(folder: Path) -> RunFacts:
    """The facts of a run, from its folder."""
    finished = (folder / METRICS).is_file()
    numbers: Any = parse_json(read_bytes(folder / METRICS, LARGEST)).get("evaluation") if finished else None
    return RunFacts(
        config=read_config(folder),
        run=read_run(folder) if finished else None,
        numbers=numbers or {},
        check=read_record(folder / RECORD),
        splits=_count_splits(folder / SPLIT),
    )


def _count_splits(path: Path) -> dict[str, int]:
    if not path.is_file():
        return {}
    with path.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
        counts = Counter(str(row.get("split")) for row in csv.DictReader(file))
    return {name: counts[name] for name in SPLITS if counts[name]}


def model_card(name: str, checkpoint: Checkpoint, files: HubFiles, facts: RunFacts | None, licence: str | None) -> str:
    """The card: metadata for the hub, then what a reader should know, in Markdown."""
    sections = [
        *_head(name, checkpoint, facts),
        *_loading(name, checkpoint, files),
        *_data(facts),
        *_training(facts),
        *_metrics(facts),
        *_calibration(checkpoint, facts, files),
        *_limits(checkpoint, facts),
        *_licence(licence, facts),
        *_files(files),
    ]
    metadata = yaml.safe_dump(_metadata(name, checkpoint, files, facts, licence), sort_keys=False, allow_unicode=True)
    return f"---\n{metadata}---\n" + "\n".join(sections) + "\n"


def _metadata(
    name: str, checkpoint: Checkpoint, files: HubFiles, facts: RunFacts | None, licence: str | None
) -> dict[str, Any]:
    """What the hub reads: how to find the model, what it is for, and how good it is."""
    library = "vitrail" if files.timm is None else "timm"
    tag = "image-classification" if checkpoint.config.num_classes else "image-feature-extraction"
    task = None if checkpoint.config.num_classes and checkpoint.task.labels == "values" else tag  # the hub has none
    others = ["transformers"] if files.timm is not None and checkpoint.config.channels == 3 else []
    metadata: dict[str, Any] = {
        "license": licence and licence.lower(),
        "library_name": library,
        "pipeline_tag": task,
        "tags": ["vision-transformer", "vitrail", *([library] if library != "vitrail" else []), *others],
        "base_model": (facts and facts.base) or None,
    }
    measured = _measured(facts)
    if facts is not None and measured is not None:
        split, top1 = measured
        dataset = {"name": facts.data, "type": facts.data, "split": split}
        metrics = [{"type": "accuracy", "value": round(top1.value, 4)}]
        result = {"task": {"type": task}, "dataset": dataset, "metrics": metrics}
        metadata["model-index"] = [{"name": name.partition("/")[2], "results": [result]}]
    return {key: value for key, value in metadata.items() if value is not None}


def _measured(facts: RunFacts | None) -> tuple[str, Rate] | None:
    """The split of held-out pictures that was measured, and the accuracy on it; None if there is none."""
    if facts is None or facts.run is None:
        return None
    if facts.numbers:
        return str(facts.numbers["split"]), _rate(facts.numbers["top1"])
    for split, score in (("test", facts.run.test), ("val", facts.run.val)):
        if score is not None:
            return split, rate(round(score.accuracy * score.count), score.count)
    return None


def _rate(values: Any) -> Rate:
    try:
        return from_dict(Rate, values)
    except ConfigError as error:
        raise DataError(f"{METRICS} of the run is damaged: {error.message}") from error


# What a label is → what a model does, before the number of its classes, labels or values.
ANSWERS: dict[LabelKind, str] = {
    "class": "classifies pictures into",
    "set": "tells which labels apply to a picture, of",
    "values": "measures in a picture",
}
# And what it says about a picture of anything else.
ELSEWHERE: dict[LabelKind, str] = {
    "class": "It knows only its own classes: a picture of anything else gets one of them too",
    "set": "It knows only its own labels: a picture of anything else may get some of them too",
    "values": "It measures every picture, whatever it shows",
}


def _head(name: str, checkpoint: Checkpoint, facts: RunFacts | None) -> Iterator[str]:
    config, spec = checkpoint.config, checkpoint.preprocess
    yield f"\n# {_text(name.partition('/')[2])}\n"
    what = "embeds pictures"
    if config.num_classes:
        what = f"{ANSWERS[checkpoint.task.labels]} {counted(config.num_classes, *checkpoint.task.noun)}"
    trained = "" if facts is None else f", trained on {_text(facts.data)} with vitrail"
    yield f"A Vision Transformer that {what}{trained}.\n"
    count = sum(tensor.numel() for tensor in checkpoint.tensors.values())
    size = f"{count / 1e6:,.1f} M" if count >= 1e6 else f"{count:,}"
    blocks, heads = counted(config.depth, "block"), counted(config.heads, "head")
    channels = {1: "grey", 3: "RGB"}.get(config.channels, counted(config.channels, "channel"))
    rows = [
        ("architecture", f"{blocks} of width {config.width}, {heads}; {size} parameters"),
        ("pictures", f"{channels}, {spec.size[1]}×{spec.size[0]} pixels, in patches of {_product(config.stride)}"),
    ]
    if config.num_classes:
        rows.append((checkpoint.task.noun[1], _list_classes(checkpoint)))
    if (measured := _measured(facts)) is not None:
        split, top1 = measured
        rows.append(("accuracy", f"{rate_text(top1)} of {counted(top1.total, 'picture')} ({split})"))
    yield from _table(("", ""), rows)


def _list_classes(checkpoint: Checkpoint) -> str:
    names = checkpoint.classes
    if names is None:
        return f"{checkpoint.config.num_classes:,}, without names"
    more = f" and {len(names) - SHOWN:,} more" if len(names) > SHOWN else ""
    return f"{len(names):,}: {', '.join(map(_text, names[:SHOWN]))}{more}"


def _product(sides: Sequence[int]) -> str:
    return f"{sides[1]}×{sides[0]}"


VITRAIL = """
```python
import vitrail

model = vitrail.load("hf://{name}")
print(model.{call}("picture.jpg"))
```

or, in a shell: `vitrail {verb} hf://{name} picture.jpg`
"""
TIMM = """
```python
import timm
import torch
from PIL import Image

model = timm.create_model("hf-hub:{name}", pretrained=True).eval()
transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model))
picture = transform(Image.open("picture.jpg").convert("{mode}"))
with torch.inference_mode():
    answers = model(picture.unsqueeze(0))[0]
{show}
```
"""
TRANSFORMERS = """
```python
from transformers import pipeline

model = pipeline("{task}", model="{name}")
print(model("picture.jpg"))
```
"""


def _loading(name: str, checkpoint: Checkpoint, files: HubFiles) -> Iterator[str]:
    """How to load it in each library that can."""
    config = checkpoint.config
    calibrated = ", which applies its calibration too" if checkpoint.trust is not None else ""
    yield f"\n## How to load it\n\n**vitrail**{calibrated}:"
    call, verb = ("predict", "predict") if config.num_classes else ("embed", "embed")
    yield VITRAIL.format(name=name, call=call, verb=verb).rstrip()
    if files.timm is None:
        yield f"\ntimm and transformers cannot load it: {_text(files.refusal)}."
        return
    if config.channels not in (1, 3):
        yield f'\n**timm**: `timm.create_model("hf-hub:{name}", pretrained=True)`.'
        return
    named = config.num_classes and checkpoint.classes is not None
    show = 'print(model.pretrained_cfg["label_names"][answers.argmax()])' if named else "print(answers)"
    yield "\n**timm**:"
    yield TIMM.format(name=name, mode="L" if config.channels == 1 else "RGB", show=show).rstrip()
    if config.channels == 1:
        yield "\nThe pipelines of transformers open pictures in colour only, so they cannot use it."
        return
    yield "\n**transformers** (which needs timm for it):"
    task = "image-classification" if config.num_classes else "image-feature-extraction"
    yield TRANSFORMERS.format(task=task, name=name).rstrip()


def _data(facts: RunFacts | None) -> Iterator[str]:
    if facts is None:
        return
    yield "\n## Data\n"
    splits = ", ".join(f"{name} {count:,}" for name, count in facts.splits.items())
    yield f"{_text(facts.data)}{f': {splits} pictures' if splits else ''}."
    if facts.check is None:
        yield "\nThe pictures were not checked before training."
        return
    looked = f"A check before training looked at {counted(facts.check.pictures, 'picture')}"
    if not facts.check.serious:
        yield f"\n{looked} and found no problems."
        return
    yield f"\n{looked} and found:\n"
    yield from (f"- {_text(item.finding)} ({item.severity}): {item.count:,}" for item in facts.check.serious)


def _training(facts: RunFacts | None) -> Iterator[str]:
    if facts is None:
        return
    config, run = facts.config, facts.run
    yield "\n## Training\n"
    start = f"[{facts.base}](https://huggingface.co/{facts.base})" if facts.base else ""
    if not start:
        start = _text(Path(config.start.weights).name) if config.start.weights else "random weights"
    rows = [("recipe", _text(config.recipe)), ("started from", start), ("method", config.start.training.called)]
    if run is not None:
        best = f", of which the weights of epoch {run.best_epoch} were kept" if run.best_epoch else ""
        rows.append(("epochs", f"{run.epochs}{best}; {duration(run.seconds)}"))
    yield from _table(("", ""), [(name, text) for name, text in rows if text])


def _metrics(facts: RunFacts | None) -> Iterator[str]:
    yield "\n## Metrics\n"
    measured = _measured(facts)
    if facts is None or measured is None:
        yield "It has not been measured on pictures that were held out: its accuracy is unknown."
        return
    split, top1 = measured
    numbers = facts.numbers
    rows = [("top-1 accuracy", rate_text(top1))]
    if numbers:
        rows += [("top-5 accuracy", rate_text(_rate(numbers["top5"])))] if numbers["top5"] else []
        rows += _optional(numbers, "balanced accuracy", "balanced_accuracy", "{:.2%}")
        rows += _optional(numbers, "macro F1", "macro_f1", "{:.3f}")
        rows += _optional(numbers, "negative log-likelihood", "nll", "{:.4f}")
        rows += _optional(numbers, "Brier score", "brier", "{:.4f}")
        rows += _optional(numbers, "calibration error", "calibration_error", "{:.2%}")
    yield f"On {counted(top1.total, 'picture')} of {_text(facts.data)} ({split}), with 95 % intervals (Wilson's).\n"
    yield from _table(("metric", "value"), rows)
    if numbers.get("split_chose_epoch") or (split == "val" and facts.run and facts.run.val_chose_epoch):
        yield "\nThese pictures also chose which epoch's weights were kept, so this is slightly optimistic."


def _optional(numbers: Mapping[str, Any], title: str, key: str, form: str) -> list[tuple[str, str]]:
    """A row for a number that is defined."""
    return [] if numbers.get(key) is None else [(title, form.format(numbers[key]))]


def _calibration(checkpoint: Checkpoint, facts: RunFacts | None, files: HubFiles) -> Iterator[str]:
    yield "\n## Calibration\n"
    if checkpoint.trust is None:
        yield "It is not calibrated: its probabilities may be too high or too low."
        return
    yield from (f"- {_text(line)}" for line in checkpoint.trust.describe())
    numbers = facts.numbers if facts is not None else {}
    if numbers.get("calibration_error_before") is not None:
        after, before = numbers["calibration_error"], numbers["calibration_error_before"]
        yield f"- calibration error {after:.2%}, without the calibration {before:.2%}"
    if sets := numbers.get("label_sets"):
        held = rate_text(_rate(sets["coverage"]))
        asked = f"label sets for a coverage of {sets['requested']:.0%}"
        yield f"- {asked} hold the truth for {held} and have {sets['mean_size']:.2f} labels on average"
    if files.timm is not None:
        yield "\nOnly vitrail applies it: timm and transformers give the probabilities without it."


def _limits(checkpoint: Checkpoint, facts: RunFacts | None) -> Iterator[str]:
    yield "\n## Limits\n"
    trust = checkpoint.trust
    if checkpoint.config.num_classes:
        tells = ""
        if trust is not None and trust.familiarity is not None:
            tells = "; vitrail marks pictures that are unlike those of the training"
        yield f"- {ELSEWHERE[checkpoint.task.labels]}{tells}."
    measured = _measured(facts)
    if facts is None or measured is None:
        return
    split, top1 = measured
    yield (
        f"- Its figures hold for pictures like those of {_text(facts.data)} ({split}); expect less of others, such as "
        "those of another camera or place."
    )
    width = (top1.high - top1.low) * 100
    yield f"- {counted(top1.total, 'picture')} determine the accuracy only within {width:.1f} percentage points."
    yield from _weakest(facts.numbers)


def _weakest(numbers: Mapping[str, Any]) -> Iterator[str]:
    """The classes that it recognises least, and its most frequent mistake."""
    classes = [each for each in numbers.get("classes", ()) if each["recall"] is not None and each["recall"] < 1]
    weakest = sorted(classes, key=lambda each: each["recall"])[:WEAKEST]
    if weakest:
        listed = ", ".join(f"{_text(each['name'])} ({each['recall']:.0%} of {each['support']:,})" for each in weakest)
        yield f"- It recognises these classes least: {listed}."
    if mistakes := numbers.get("mistakes"):
        first = mistakes[0]
        times = counted(first["count"], "time")
        yield f"- Its most frequent mistake: {_text(first['true'])} taken for {_text(first['predicted'])}, {times}."


def _licence(licence: str | None, facts: RunFacts | None) -> Iterator[str]:
    yield "\n## Licence\n"
    yield f"{_text(licence)}." if licence else "Its owner has not stated a licence."
    if facts is not None and facts.base:
        listed = find(facts.base)
        terms = f", which is under {listed.licence}" if listed else ""
        yield f"\nIt started from hf://{facts.base}{terms}; that licence also applies to what is derived from it."


def _files(files: HubFiles) -> Iterator[str]:
    yield "\n## Files\n"
    yield "Each was read back before it was pushed, and gives the same outputs as the original for the same pixels.\n"
    rows = [(f"`{OURS}`", "vitrail", files.ours.agreement.describe())]
    if files.timm is not None:
        rows.append(("`model.safetensors`, `config.json`", "timm, transformers", files.timm.agreement.describe()))
    yield from _table(("file", "read by", "proof"), rows)
    notes = [note for note in files.timm.notes if note not in files.ours.notes] if files.timm is not None else []
    if notes:
        yield "\nWhat timm does differently, or its files do not keep:\n"
        yield from (f"- {_text(note)}" for note in notes)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield from (f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows))


def _text(text: str) -> str:
    """A text that is no Markdown, in one line: names are anybody's."""
    return re.sub(r"([\\`*_{}\[\]<>#~$|])", r"\\\1", " ".join(plain(text).split()))
