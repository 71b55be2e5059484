"""What every test run shares."""

from hypothesis import settings

# No test passes or fails by the clock; CI machines are slow and shared.
settings.register_profile("seglog", deadline=None, print_blob=True)
settings.load_profile("seglog")
