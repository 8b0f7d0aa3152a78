"""A model's card, the README.md of its repository on the hub: filled from the checkpoint and from its training run."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from vitrail.registry import LabelKind
from vitrail.report.run_facts import RunFacts, measured_of, read_rate
from vitrail.tasks.rates import rate_text
from vitrail.weights.addresses import OURS
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.hub_repository import HubFiles
from vitrail.weights.pretrained import find
from vitrail.wording import counted, duration, plain

SHOWN = 20  # names of classes
WEAKEST = 3  # classes that are named
REGRESSION = "image-regression"  # which is none of the hub's pipelines
# What a model does, and what it does not know, by the kind of its labels.
DOES: dict[LabelKind, str] = {
    "class": "classifies pictures into {}",
    "set": "tells which of {} pictures have",
    "values": "estimates {} from pictures",
    "none": "embeds pictures",
}
KNOWS: dict[LabelKind, str] = {
    "class": "It knows only its own classes: a picture of anything else gets one of them too",
    "set": "It knows only its own labels, and finds nothing else in a picture",
    "values": "It estimates values for every picture, also for one in which there is nothing to measure",
    "none": "It knows only pictures like those of its training",
}


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
    task = _hub_task(checkpoint)
    others = ["transformers"] if files.timm is not None and _in_transformers(checkpoint) else []
    metadata: dict[str, Any] = {
        "license": licence and licence.lower(),
        "library_name": library,
        "pipeline_tag": None if task == REGRESSION else task,
        "tags": ["vision-transformer", "vitrail", *([library] if library != "vitrail" else []), *others],
        "base_model": (facts and facts.base) or None,
    }
    measured = measured_of(facts)
    if facts is not None and measured is not None:
        dataset = {"name": facts.data, "type": facts.data, "split": measured.split}
        metrics = [{"type": name, "value": round(value, 4)} for name, value in measured.first.items()]
        result = {"task": {"type": task}, "dataset": dataset, "metrics": metrics}
        metadata["model-index"] = [{"name": name.partition("/")[2], "results": [result]}]
    return {key: value for key, value in metadata.items() if value is not None}


def _hub_task(checkpoint: Checkpoint) -> str:
    """What the hub calls it."""
    if not checkpoint.config.num_classes:
        return "image-feature-extraction"
    return REGRESSION if checkpoint.task.labels == "values" else "image-classification"


def _in_transformers(checkpoint: Checkpoint) -> bool:
    """Whether its pipelines give what the model means: they take pictures in colour, and one class of each."""
    return checkpoint.config.channels == 3 and checkpoint.task.labels == "class"


def _head(name: str, checkpoint: Checkpoint, facts: RunFacts | None) -> Iterator[str]:
    config, spec = checkpoint.config, checkpoint.preprocess
    yield f"\n# {_text(name.partition('/')[2])}\n"
    noun, nouns = checkpoint.task.noun
    what = DOES[checkpoint.task.labels].format(counted(config.num_classes, noun, nouns))
    what = what if config.num_classes else "embeds pictures"
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
        rows.append((nouns, _list_classes(checkpoint)))
    if (measured := measured_of(facts)) is not None:
        name, text = measured.rows[0]
        where = f"{counted(measured.pictures, 'picture')} ({measured.split})"
        rows.append((_text(name.removeprefix("top-1 ")), f"{_text(text)} of {where}"))
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
    named = config.num_classes and checkpoint.classes is not None and checkpoint.task.labels == "class"
    show = 'print(model.pretrained_cfg["label_names"][answers.argmax()])' if named else "print(answers)"
    yield "\n**timm**:"
    yield TIMM.format(name=name, mode="L" if config.channels == 1 else "RGB", show=show).rstrip()
    if config.channels == 1:
        yield "\nThe pipelines of transformers open pictures in colour only, so they cannot use it."
        return
    if not _in_transformers(checkpoint):
        yield "\nThese are the outputs themselves, which only vitrail turns into what they mean."
        return
    yield "\n**transformers** (which needs timm for it):"
    yield TRANSFORMERS.format(task=_hub_task(checkpoint), name=name).rstrip()


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
    measured = measured_of(facts)
    if facts is None or measured is None:
        yield "It has not been measured on pictures that were held out: its accuracy is unknown."
        return
    split, numbers = measured.split, facts.numbers
    how = " (Wilson's)" if measured.top1 is not None else ""
    yield f"On {counted(measured.pictures, 'picture')} of {_text(facts.data)} ({split}), with 95 % intervals{how}.\n"
    yield from _table(("metric", "value"), [(_text(name), _text(text)) for name, text in measured.rows])
    if numbers.get("split_chose_epoch") or (split == "val" and facts.run and facts.run.val_chose_epoch):
        yield "\nThese pictures also chose which epoch's weights were kept, so this is slightly optimistic."


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
    if (sets := numbers.get("label_sets")) and "coverage" in sets:
        held = rate_text(read_rate(sets["coverage"]))
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
        yield f"- {KNOWS[checkpoint.task.labels]}{tells}."
    measured = measured_of(facts)
    if facts is None or measured is None:
        return
    yield (
        f"- Its figures hold for pictures like those of {_text(facts.data)} ({measured.split}); expect less of others, "
        "such as those of another camera or place."
    )
    if (top1 := measured.top1) is not None:
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
