"""Settings shared by all tests."""

from hypothesis import HealthCheck, settings

# No deadline: no test may depend on how fast the machine is. Few examples keep the whole suite short.
settings.register_profile("default", deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("thorough", deadline=None, max_examples=1000, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("default")
