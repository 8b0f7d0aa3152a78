"""A browser for tests, which watches what a page does."""

import re
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from playwright.sync_api import ConsoleMessage, Page, sync_playwright

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
QUIET = (
    "--headless --no-sandbox --disable-gpu --disable-background-networking --disable-component-update --disable-sync "
    "--no-first-run"
)
Script = Callable[[Page], Any]


class Chromium:
    """A browser in a thread of its own, because Playwright's event loop would get in the way of other tests'."""

    def __init__(self) -> None:
        self.thread = ThreadPoolExecutor(1)
        self.thread.submit(self._start).result()

    def _start(self) -> None:
        self.playwright = sync_playwright().start()
        self.browser = self.playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET.split())

    def _end(self) -> None:
        self.browser.close()
        self.playwright.stop()

    def end(self) -> None:
        self.thread.submit(self._end).result()
        self.thread.shutdown()

    def visit(self, url: str, script: Script, expected: str, options: dict[str, Any]) -> Any:
        """Run a script on a fresh page; it may cause no error but the expected ones, and ask no other host."""
        errors: list[str] = []
        hosts: set[str] = set()

        def hear(message: ConsoleMessage) -> None:
            if message.type in ("error", "warning") and not (expected and re.search(expected, message.text)):
                errors.append(message.text)

        context = self.browser.new_context(**options)
        context.set_default_timeout(15_000)
        try:
            page = context.new_page()
            page.on("console", hear)
            page.on("pageerror", lambda error: errors.append(str(error)))
            page.on("request", lambda request: hosts.add(re.sub(r"^(blob:)?(\w+://[^/]+).*", r"\2", request.url)))
            page.goto(url)
            result = script(page)
        finally:
            context.close()
        assert not errors  # a violated Content Security Policy is one, too
        assert hosts == {url}
        return result
