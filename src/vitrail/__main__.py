"""`python -m vitrail`, and so `torchrun -m vitrail`."""

from vitrail.cli.main import entry

if __name__ == "__main__":
    entry()
