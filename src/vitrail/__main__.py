"""`python -m vitrail`, and therefore also `torchrun -m vitrail`."""

from vitrail.cli.main import entry

if __name__ == "__main__":
    entry()
