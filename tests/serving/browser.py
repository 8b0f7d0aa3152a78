"""A browser for tests, which watches what a page does."""

import random
import re
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from playwright.sync_api import ConsoleMessage, Error, Page, Route, expect, sync_playwright

from processes import SECONDS

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
QUIET = (
    "--headless --no-sandbox --disable-gpu --disable-background-networking --disable-component-update --disable-sync "
    "--no-first-run"
)
Script = Callable[[Page], Any]
ASKED = re.compile("/v1/|/examples/.*")  # by scripts; also by <img>, before they run
FRAME = "() => new Promise(requestAnimationFrame)"  # time for a page to ask for more


class Held:
    """Answers that a page waits for until the test gives them, in an order of its choice."""

    def __init__(self, page: Page, pattern: str) -> None:
        self.page = page
        self.routes: list[Route] = []
        page.route(re.compile(pattern), lambda route: self.routes.append(route))

    def wait(self, count: int) -> None:
        """Until the page has asked so many questions, counted from the first."""
        ends = time.monotonic() + SECONDS
        while len(self.routes) < count:
            assert time.monotonic() < ends, f"{len(self.routes)} questions"
            self.page.evaluate(FRAME)

    def give(self, *order: int) -> None:
        """The answers to questions by their numbers, each before the next."""
        for number in order:
            self.routes[number].fulfill(response=self.routes[number].fetch())
        self.page.evaluate(FRAME)


def shuffle_answers(page: Page) -> None:
    """Hold every answer until the page has had time to ask for more, and give one of those held, whichever."""
    rng, held = random.Random(0), list[Route]()

    def hold(route: Route) -> None:
        held.append(route)
        with suppress(Error):  # the page was left
            page.evaluate(FRAME)
            page.evaluate(FRAME)
        held.pop(rng.randrange(len(held))).continue_()

    page.route(ASKED, hold)


class Chromium:
    """A browser in a thread of its own, because Playwright's event loop would get in the way of other tests'."""

    def __init__(self) -> None:
        self.thread = ThreadPoolExecutor(1)
        self.thread.submit(self._start).result()

    def _start(self) -> None:
        self.playwright = sync_playwright().start()
        expect.set_options(timeout=1000 * SECONDS)  # the machine may be busy
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
        context.set_default_timeout(1000 * SECONDS)
        page = context.new_page()
        try:
            page.on("console", hear)
            page.on("pageerror", lambda error: errors.append(str(error)))
            page.on("request", lambda request: hosts.add(re.sub(r"^(blob:)?(\w+://[^/]+).*", r"\2", request.url)))
            shuffle_answers(page)
            page.goto(url)
            result = script(page)
        finally:
            page.unroute_all(behavior="ignoreErrors")
            context.close()
        assert not errors  # a violated Content Security Policy is one, too
        assert hosts == {url}
        return result
