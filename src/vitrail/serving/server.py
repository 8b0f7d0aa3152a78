"""The front process: it binds the port, runs the app, and drains when it is asked to end."""

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections.abc import Callable, Mapping
from functools import partial
from types import FrameType
from typing import Any, cast

import uvicorn

from vitrail.errors import ConfigError
from vitrail.serving.app import build_app
from vitrail.serving.connections import Connection, Room, open_files
from vitrail.serving.dispatch import Service
from vitrail.serving.settings import ServeSettings
from vitrail.serving.telemetry import AccessLog
from vitrail.wording import reason

LINGER = 0.5  # seconds after a signal in which requests are still taken, each with a note that the connection ends
GRACE = 0.5  # seconds after that in which those who asked before may ask once more
POLL = 0.05  # seconds between two looks at the connections that are left
BACKLOG = 512  # connections that are taken at once, or an eighth of the files that this process may open

Ready = Callable[[str, Service], None]


class Server(uvicorn.Server):
    """uvicorn's server, which tells clients with open connections before it closes them."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service
        self.signal: int | None = None  # that ended it

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.signal = sig
        if self._service.draining:  # asked twice: at once
            self.should_exit = self.force_exit = True
            return
        self._service.draining = True
        asyncio.get_running_loop().call_soon_threadsafe(self._end_soon)

    def _end_soon(self) -> None:
        asyncio.get_running_loop().call_later(LINGER, self._end)

    def _end(self) -> None:
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take no more connections, answer what still comes over the open ones, then end.

        A connection that has not asked anything yet was made for a request: it is kept for its `client_timeout`.
        """
        if not self.force_exit:
            loop = asyncio.get_running_loop()
            for listener in sockets or []:
                loop.remove_reader(listener)
                for connection in stop_listening(listener):
                    await loop.connect_accepted_socket(self._open_connection, connection)
            await asyncio.sleep(GRACE)
            while not self.force_exit and any(map(_has_yet_to_ask, self.server_state.connections)):
                await asyncio.sleep(POLL)
        await super().shutdown(sockets)

    def _open_connection(self) -> asyncio.Protocol:
        opener = cast("Callable[..., asyncio.Protocol]", self.config.http_protocol_class)
        return opener(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)


def _has_yet_to_ask(connection: Any) -> bool:
    return isinstance(connection, Connection) and not connection.cycle and not connection.transport.is_closing()


def run(models: Mapping[str, str], settings: ServeSettings, say: Callable[[str], None], on_ready: Ready) -> None:
    """Serve until a signal ends it."""
    logging.getLogger("python_multipart").setLevel(logging.CRITICAL)  # clients' mistakes are theirs to hear about
    listener = bind(settings)
    service = Service(models, settings, say)
    log = AccessLog(settings.access_log)
    app = build_app(service, log)
    room = Room(settings.max_client_connections, say)
    config = uvicorn.Config(
        app,
        http=cast("Any", partial(Connection, client_timeout=settings.client_timeout, report=app.report, room=room)),
        loop="asyncio",  # with httptools, uvloop was no faster
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # a client's address is its own, not what it claims
        backlog=min(BACKLOG, open_files() // 8),
        timeout_keep_alive=30,
    )
    server = Server(config, service)

    async def serve() -> None:
        asyncio.get_running_loop().set_exception_handler(room.note_error)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        starting = asyncio.create_task(service.start())
        try:
            await asyncio.wait((serving, starting), return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                starting.result()
                on_ready(address_of(listener), service)
            await serving
        except BaseException:
            server.should_exit = server.force_exit = True
            raise
        finally:
            starting.cancel()
            await asyncio.gather(serving, starting, return_exceptions=True)
            await service.stop()
            log.close()

    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        runner.run(serve())
    if server.signal is not None:  # everything is answered: end as this signal usually ends a process
        signal.raise_signal(server.signal)


def bind(settings: ServeSettings) -> socket.socket:
    """The listening socket; an address that cannot be used is an error before anything is loaded."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise ConfigError(
            f"cannot listen on `host={settings.host!r}` with `port={settings.port}`: {reason(error)}; another "
            "process may be using the port."
        ) from error
    return listener


def stop_listening(listener: socket.socket) -> list[socket.socket]:
    """Refuse further connections, and hand out those that the system has made already, which would be cut off.

    asyncio must find the descriptor open when it closes its server, so that another socket takes the listener's place.
    """
    connections: list[socket.socket] = []
    with contextlib.suppress(OSError):  # until none is left
        while True:
            connections.append(listener.accept()[0])
    with socket.socket(listener.family) as placeholder:
        os.dup2(placeholder.fileno(), listener.fileno())
    return connections


def address_of(listener: socket.socket) -> str:
    """As people type it."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
