"""`vitrail.serve`: a model as a service on one machine."""

import os
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, Unpack

from vitrail.errors import ConfigError, MissingExtraError
from vitrail.progress import SteadyConsole
from vitrail.serving.settings import (
    Models,
    ServeSettings,
    cores_here,
    name_models,
    share_cores,
    with_token_from_environment,
)
from vitrail.verbs import Output
from vitrail.verbs.keywords import ServiceSettings, check_settings
from vitrail.weights.resolve import locate
from vitrail.wording import counted, plain

NEEDED = ("starlette", "uvicorn", "httptools", "prometheus_client", "python_multipart")


def serve(
    model: Models = None,
    *,
    say: Callable[[str], None] = lambda _: None,
    on_ready: Callable[[str, dict[str, Any]], None] = lambda _, __: None,
    **settings: Unpack[ServiceSettings],
) -> None:
    """Serve models over HTTP until a signal (Ctrl-C, SIGTERM) ends it; what was accepted is answered first.

    The `settings` are the fields of `ServeSettings`: host, port, token, max_batch, …; see docs/serve.md.

    Args:
        model: Checkpoints or exports: a file, a run folder, hf://owner/name or google://NAME, each with a name of its
            own if it is written NAME=MODEL [default: the bundled cifar10]. In Python, one of them, several, or a
            dictionary from names to sources.
        say: Is told in one line what happens to the models while they are served.
        on_ready: Is told the address, and the facts of each model by name, once all of them are loaded.
    """
    check_settings(serve, settings, ServeSettings)
    models = name_models(model)
    settings["token"] = with_token_from_environment(settings.get("token"))
    chosen = share_cores(ServeSettings(**settings), len(models), cores_here())
    if os.name != "posix":
        raise ConfigError("serve runs on Linux and macOS; on Windows, run it in WSL.")
    for source in models.values():
        located = locate(source, allow_export=True)
        if chosen.reload and located.path is None:
            raise ConfigError(f"`reload=True` watches files, and {source} has none here; name a file or a folder.")
    if any(find_spec(name) is None for name in NEEDED):
        raise MissingExtraError("serving a model", "serve")
    from vitrail.serving.server import run

    for name, source in models.items():
        say(f"loading {name}" if name == source else f"loading {name} from {source}")
    run(
        models,
        chosen,
        say,
        lambda address, service: on_ready(address, {name: host.facts for name, host in service.hosts.items()}),
    )


def run_serve(arguments: dict[str, Any], _: Output) -> None:
    """`vitrail serve`: it prints where the service is, and what happens."""
    serve(say=_say, on_ready=_tell, **arguments)


def _say(text: str) -> None:
    SteadyConsole(stderr=True, highlight=False, markup=False, soft_wrap=True).print(plain(text))


def _tell(address: str, models: dict[str, Any]) -> None:
    from vitrail.tasks.task import make_task

    for name, facts in models.items():
        for note in facts["notes"]:
            _say(f"note: {name}: {note}")
        outputs, threads = (
            counted(facts["classes"], *make_task(facts["task"]).noun),
            counted(facts["threads"], "thread"),
        )
        _say(
            f"{name}: {outputs} on {facts['runtime']}, {threads}, "
            f"batches of up to {facts['max_batch']}, max wait {facts['max_wait_ms']:g} ms, version {facts['version']}"
        )
    _say(f"serving on {address} (Ctrl-C to stop); try: curl --data-binary @PICTURE {address}/v1/predict")
