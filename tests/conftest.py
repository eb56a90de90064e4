"""What holds for all tests."""

from hypothesis import settings

# No stopwatch: what is tried here is right or wrong, and a busy machine is slow at either.
settings.register_profile("flakelog", deadline=None)
settings.load_profile("flakelog")
