"""Find the pictures of a folder that are most similar to one of yours, by their embeddings.

python examples/search.py photos cat.jpg
"""

import sys

import numpy as np

import vitrail


def main(folder: str, picture: str) -> None:
    model = vitrail.load()  # the bundled model; larger ones, such as hf://facebook/dinov2-small, find more
    library = vitrail.embed(model, folder)
    wanted = model.embed(picture).vector

    lengths = np.linalg.norm(library.features, axis=1) * np.linalg.norm(wanted)
    similarity = library.features @ wanted / lengths  # cosines, from -1 to 1
    for index in similarity.argsort()[::-1][:5]:
        print(f"{similarity[index]:.3f}  {library.pictures[index]}")


if __name__ == "__main__":
    main(*sys.argv[1:])
