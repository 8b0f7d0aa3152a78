"""What three of the mistakes cost the bundled model on CIFAR-10's 10,000 test pictures.

    python docs/tutorial/measure_mistakes.py cifar10

The argument is CIFAR-10: its name, or a folder with its files. The model averages its patches, so its last LayerNorm
comes before the mean.
"""

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import vitrail
from vitrail.data import open_data

IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
model = vitrail.load().model
Answer = Callable[[Tensor], Tensor]


def normalize(pictures: Tensor, mean: Any, std: Any) -> Tensor:
    """(B, 3, 32, 32) bytes → what the model sees."""
    return (pictures / 255 - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)


def right(pictures: Tensor) -> Tensor:
    return model(normalize(pictures, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)))


def imagenet(pictures: Tensor) -> Tensor:
    return model(normalize(pictures, *IMAGENET))


def by_width(pictures: Tensor) -> Tensor:
    def mix(_: int, query: Tensor, key: Tensor, value: Tensor, *__: Any, scale: float) -> Tensor:
        return (query @ key.mT / model.config.width**0.5).softmax(dim=-1) @ value

    embedded = model.embed_images(normalize(pictures, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)))
    return model.classify(model.summarize(model.encode(embedded, mix=mix)[0]))


def without_last_norm(pictures: Tensor) -> Tensor:
    embedded = model.embed_images(normalize(pictures, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)))
    return model.classify(model.encode(embedded)[0].mean(dim=1))


@torch.no_grad()
def measure(answer: Answer, pictures: Tensor, labels: Tensor) -> tuple[float, float]:
    """Accuracy, and the mean probability of the answers."""
    scores = torch.cat([answer(batch).softmax(dim=1) for batch in pictures.split(250)])
    return (scores.argmax(dim=1) == labels).float().mean().item(), scores.max(dim=1).values.mean().item()


def main(cifar: str) -> None:
    test = open_data(cifar).splits["test"]
    pictures = torch.stack([torch.as_tensor(test.picture(index)) for index in range(len(test))])
    labels = torch.as_tensor(test.labels)
    for answer in (right, without_last_norm, imagenet, by_width):
        accuracy, confidence = measure(answer, pictures, labels)
        print(f"{answer.__name__:18} accuracy {accuracy:.2%}  mean confidence {confidence:.1%}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
