"""`vitrail --show-completion`: the script that lets a shell complete verbs and flags."""

from typing import Literal

from vitrail.cli.printing import print_text


def show_completion(shell: Literal["bash", "zsh", "fish"]) -> int:
    """Print the completion script of a shell; nothing is installed.

    Parameters
    ----------
    shell
        bash, zsh or fish.
    """
    from vitrail.cli.main import build_app

    print_text(build_app().generate_completion(prog_name="vitrail", shell=shell))
    return 0
