"""Train on a folder with one folder per class, then classify a picture with the result.

    python examples/train_on_a_folder.py flowers rose.jpg --minutes 10

Photographs start from pretrained weights by default; `--weights` names others, as in
`--weights hf://google/vit-base-patch16-224`.
"""

import argparse

import vitrail


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="one folder per class")
    parser.add_argument("picture", help="to classify with the trained model")
    parser.add_argument("--weights", help="a checkpoint to start from")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--minutes", type=float)
    length.add_argument("--epochs", type=int)
    given = {name: value for name, value in vars(parser.parse_args()).items() if value is not None}
    folder, picture = given.pop("folder"), given.pop("picture")

    run = vitrail.train(folder, **given)
    accuracy = run.test.accuracy if run.test else float("nan")
    print(f"{accuracy:.1%} of the test pictures are classified correctly; see {run.report}")

    prediction = vitrail.load(run.folder).predict(picture)
    print(f"{picture}: {prediction.label} ({prediction.score:.1%})")


if __name__ == "__main__":
    main()
