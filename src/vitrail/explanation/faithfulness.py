"""Which explanation to trust: deletion and insertion curves ("RISE", Petsiuk et al., 2018).

deletion    patches disappear, the most important first, under the picture's own mean colour; if the map is right, the
            class's probability falls at once, so a small area under the curve is good
insertion   patches appear, the most important first, on a blurred picture (Gaussian, σ a tenth of the shorter side); if
            the map is right, the probability rises at once, so a large area is good

Of a measured value, what falls and rises is how close it stays to the value of the whole picture (`Task.support`).

The score is insertion − deletion. A random map shows what a map without any information scores. `choose` selects the
best method on given pictures by its score.
"""

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.errors import ExplanationError
from vitrail.explanation.occlusion import answer_in_batches, mean_colour
from vitrail.explanation.passes import on_model
from vitrail.explanation.saliency import Explanation, Method, Subject, explain_by
from vitrail.model import ViT
from vitrail.prediction import Predictor
from vitrail.progress import Advance
from vitrail.tasks.one import ONE
from vitrail.tasks.task import Task
from vitrail.wording import counted

STEPS = 12
BLUR = 0.1  # σ, as a share of the shorter side
# What `auto` chooses from. Not occlusion: it costs a forward pass per patch, and was no better where it was measured.
CANDIDATES: tuple[Method, ...] = ("relevance", "gradient-rollout", "rollout", "attention")
JUDGED = 4  # pictures on which `auto` scores the methods, at most
MARGIN = 0.01  # by which a score must exceed the random map's to mean anything


@dataclass(frozen=True, kw_only=True)
class Faithfulness:
    """Areas under the two curves, each between 0 and 1."""

    deletion: float
    insertion: float

    @property
    def score(self) -> float:
        """Higher is better; what a map without information scores depends on the picture: see `random_map`."""
        return self.insertion - self.deletion


def measure(
    model: ViT, image: Tensor, target: int, cells: Tensor, steps: int = STEPS, task: Task = ONE
) -> Faithfulness:
    """How well the map `cells` (h, w) orders the patches of a prepared picture (C, H, W) for the target."""
    image = on_model(model, image)
    removed = removals(cells.to(image.device), steps)  # (steps + 1, h, w)

    def area(baseline: Tensor, shown: Tensor) -> float:
        """Under what is left of the answer, by trapezoids; the curve has equal steps up to whole patches."""
        outputs = answer_in_batches(model, image, baseline, shown)
        whole = outputs[shown.flatten(1).all(dim=1)][0]  # of the picture itself
        places = shown.flatten(1).float().mean(dim=1)
        return abs(torch.trapezoid(task.support(whole, outputs, target), places).item())

    with torch.inference_mode():
        return Faithfulness(
            deletion=area(mean_colour(image), ~removed),
            insertion=area(blurred(image), removed),
        )


def removals(cells: Tensor, steps: int) -> Tensor:
    """Which patches have been taken after 0, 1, …, `steps` equal steps, the most important first."""
    count = cells.numel()
    rank = torch.empty(count, dtype=torch.long, device=cells.device)
    rank[cells.flatten().argsort(descending=True, stable=True)] = torch.arange(count, device=cells.device)
    taken = torch.linspace(0, count, min(steps, count) + 1, device=cells.device).round()
    return (rank < taken[:, None]).view(-1, *cells.shape)


def blurred(image: Tensor) -> Tensor:
    """A picture (C, H, W) blurred so far that colours remain but no shapes."""
    sigma = BLUR * min(image.shape[-2:])
    radius = math.ceil(3 * sigma)
    places = torch.arange(-radius, radius + 1, device=image.device, dtype=torch.float32)
    kernel = (-(places**2) / (2 * sigma**2)).exp()
    kernel = (kernel / kernel.sum()).to(image.dtype)
    padded = F.pad(image[:, None], (radius,) * 4, mode="replicate")  # (C, 1, H + 2r, W + 2r)
    return F.conv2d(F.conv2d(padded, kernel[None, None, None, :]), kernel[None, None, :, None])[:, 0]


def random_map(grid: tuple[int, int], seed: int) -> Tensor:
    """A map without information, the same for each seed."""
    return torch.rand(grid, generator=torch.Generator().manual_seed(seed))


@dataclass(frozen=True, kw_only=True)
class MethodChoice:
    """The best method on some pictures, and how all of them did."""

    method: Method
    reason: str
    scores: dict[str, Faithfulness]  # method, or "random" → the mean over the pictures
    each: dict[str, list[Faithfulness]]  # the same for each picture
    failures: dict[str, str]  # method → why it cannot explain these pictures


def choose(
    predictor: Predictor,
    subjects: Sequence[Subject],
    target: int | str | None = None,
    layers: tuple[int, ...] | None = None,
    heads: tuple[int, ...] | None = None,
    candidates: Sequence[Method] = CANDIDATES,
    steps: int = STEPS,
    progress: Advance = lambda _: None,
) -> MethodChoice:
    """Score the candidates on the pictures and choose the best; one that fails on any picture is out."""
    if not predictor.model.config.num_classes:
        reason = "rollout, because a model without classes has no probability to score by"
        return MethodChoice(method="rollout", reason=reason, scores={}, each={}, failures={})

    def judge(subject: Subject, explanation: Explanation, cells: Tensor) -> Faithfulness:
        assert explanation.target is not None
        return measure(predictor.model, subject.image, explanation.target, cells, steps, predictor.task)

    each: dict[str, list[Faithfulness]] = {}
    failures: dict[str, str] = {}
    explained: list[tuple[Subject, Explanation]] = []  # by any of the methods: all explain the same class
    for method in candidates:
        try:
            explained = [(item, explain_by(predictor, item, method, target, layers, heads)) for item in subjects]
            each[method] = [judge(subject, explanation, explanation.map) for subject, explanation in explained]
        except ExplanationError as error:
            failures[method] = str(error)
        progress(1)
    if not each:
        raise ExplanationError("no method can explain these pictures: " + " ".join(dict.fromkeys(failures.values())))
    each["random"] = [judge(*pair, random_map(pair[1].grid, seed)) for seed, pair in enumerate(explained)]
    progress(1)
    scores = {method: mean_of(results) for method, results in each.items()}
    usable: list[Method] = [method for method in candidates if method not in failures]
    best = max(usable, key=lambda method: scores[method].score)
    reason = _reason(best, scores, len(subjects))
    return MethodChoice(method=best, reason=reason, scores=scores, each=each, failures=failures)


def mean_of(results: Sequence[Faithfulness]) -> Faithfulness:
    """The mean of both areas."""
    deletion, insertion = (sum(areas) / len(results) for areas in zip(*map(astuple, results), strict=True))
    return Faithfulness(deletion=deletion, insertion=insertion)


def _reason(best: str, scores: dict[str, Faithfulness], count: int) -> str:
    on = counted(count, "picture")
    score, floor = scores[best].score, scores["random"].score
    numbers = f"insertion − deletion {score:.3f} on {on}, random {floor:.3f}"
    if score < floor + MARGIN:
        return f"{best}, the best of them ({numbers}); but none beats a random map, so trust none of them here"
    return f"{best}, the most faithful ({numbers})"
