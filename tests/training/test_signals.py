"""A closed terminal asks a run to stop, as Ctrl-C does."""

import signal

from processes import run
from vitrail.training.signals import Signals


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
