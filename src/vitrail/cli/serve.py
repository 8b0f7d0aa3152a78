"""`vitrail serve`: parses, and prints where the service is."""

from typing import Annotated, Any

from cyclopts import Parameter

from vitrail.cli.commands import given, optional_fields
from vitrail.cli.printing import SteadyConsole, plain, print_note
from vitrail.serving.settings import ServeSettings
from vitrail.wording import counted

_Flags = optional_fields("ServeFlags", ServeSettings, default="{}")
_FLAGS: Any = Annotated[_Flags, Parameter(name="*")]
_NOTHING = _Flags()


def serve(
    *models: str,
    flags: _FLAGS = _NOTHING,  # pyright: ignore[reportInvalidTypeForm, reportUnknownParameterType]
) -> None:
    """Serve models over HTTP.

    Parameters
    ----------
    models
        Checkpoints or exports: a file, a run folder, hf://owner/name or google://NAME, each with a name of its own if
        it is written NAME=MODEL [default: the bundled cifar10].
    """
    from vitrail.verbs.serve import serve as serve_models

    serve_models(models or None, say=_say, on_ready=_tell, **given(flags))


def _say(text: str) -> None:
    SteadyConsole(stderr=True, highlight=False, markup=False, soft_wrap=True).print(plain(text))


def _tell(address: str, models: dict[str, Any]) -> None:
    for name, facts in models.items():
        for note in facts["notes"]:
            print_note(f"{name}: {note}")
        classes = counted(facts["classes"], "class")
        _say(
            f"{name}: {classes} on {facts['runtime']}, {counted(facts['threads'], 'thread')}, batches of up to "
            f"{facts['max_batch']}, max wait {facts['max_wait_ms']:g} ms, version {facts['version']}"
        )
    _say(f"serving on {address} (Ctrl-C to stop); try: curl --data-binary @PICTURE {address}/v1/predict")
