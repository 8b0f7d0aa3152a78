"""Show which parts of a picture an answer rests on, and whether that explanation can be trusted.

python examples/explain.py docs/images/ship.png why.png
"""

import sys

import vitrail


def main(picture: str, overlay: str) -> None:
    model = vitrail.load()  # the bundled model; or vitrail.load("runs/train-1")
    why = vitrail.explain(model, picture, score=True)
    print(f"{picture}: {why.explanation.label} ({why.explanation.probability:.1%}), explained by {why.method}")
    if why.faithfulness is not None:
        print(f"score {why.faithfulness.score:.2f}: what covering the bright parts costs, and showing them gains")
    why.save(overlay)
    print(f"wrote {overlay}: bright parts counted most")


if __name__ == "__main__":
    main(*sys.argv[1:])
