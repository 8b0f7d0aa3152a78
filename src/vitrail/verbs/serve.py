"""`vitrail.serve`: a model as a service on one machine."""

import os
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, Unpack

from vitrail.errors import ConfigError, MissingExtraError
from vitrail.serving.settings import (
    Models,
    ServeSettings,
    cores_here,
    name_models,
    share_cores,
    with_token_from_environment,
)
from vitrail.verbs.settings import ServiceSettings, check_settings
from vitrail.weights.resolve import locate

NEEDED = ("starlette", "uvicorn", "httptools", "prometheus_client", "python_multipart")


def serve(
    model: Models = None,
    *,
    say: Callable[[str], None] = lambda _: None,
    on_ready: Callable[[str, dict[str, Any]], None] = lambda _, __: None,
    **settings: Unpack[ServiceSettings],
) -> None:
    """Serve models over HTTP until a signal (Ctrl-C, SIGTERM) ends it; what was accepted is answered first.

    Args:
        model: what `vitrail.load` takes, several of them, or a dictionary from names to sources; a text NAME=SOURCE
            gives a name too. Without one, the bundled CIFAR-10 model.
        say: is told in one line what happens to the models while they are served.
        on_ready: is told the address, and the facts of each model by name, once all of them are loaded.
        settings: the fields of `ServeSettings`: host, port, token, max_batch, …; see docs/serve.md.
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
