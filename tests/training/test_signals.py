"""A closed terminal asks a run to stop, as Ctrl-C does; while a run is planned, signals end the process at once."""

import signal
import sys
import threading

from processes import run
from vitrail.training.signals import PromptEnd, Signals


def _hang_up() -> None:
    """In a process of its own: signals go to the main thread, which a test need not run in."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests themselves may run below nohup
    with Signals() as signals:
        signal.raise_signal(signal.SIGHUP)
        assert signals.received == signal.SIGHUP
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with Signals() as signals:
        signal.raise_signal(signal.SIGHUP)
        assert not signals.received


def test_a_hangup_is_a_wish_like_others_unless_nohup_ignores_it() -> None:
    assert run(_hang_up) == 0


def _plan() -> None:
    """Asked to stop while a thread computes, for which Python would wait for ever."""
    PromptEnd().cancel()
    assert signal.set_wakeup_fd(-1) == -1
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    PromptEnd()
    threading.Thread(target=threading.Event().wait).start()
    signal.raise_signal(signal.SIGTERM)


def test_while_planning_a_signal_ends_the_process_whatever_it_computes() -> None:
    assert run(_plan) == 143
