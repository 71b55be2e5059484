"""What every test run shares."""

import signal

from hypothesis import settings

# No test passes or fails by the clock; CI machines are slow and shared.
settings.register_profile("seglog", deadline=None, print_blob=True)
settings.load_profile("seglog")

# A shell has its background jobs ignore Ctrl-C, and so would every process that a test interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
