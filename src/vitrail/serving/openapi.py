"""The description of the service that it serves itself."""

from typing import Any

from vitrail import __version__
from vitrail.serving.settings import ServeSettings


def describe_api(settings: ServeSettings) -> dict[str, Any]:
    return {"openapi": "3.1.0", "info": {"title": "vitrail", "version": __version__}, "paths": {}}
