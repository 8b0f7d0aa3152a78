"""A closed terminal asks a run to stop, as Ctrl-C does."""

import signal

from vitrail.training.signals import Signals


def test_a_hangup_is_a_wish_like_others_unless_nohup_ignores_it() -> None:
    with Signals() as signals:
        signal.raise_signal(signal.SIGHUP)
        assert signals.received == signal.SIGHUP
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Signals() as signals:
            signal.raise_signal(signal.SIGHUP)
            assert not signals.received
    finally:
        signal.signal(signal.SIGHUP, before)
