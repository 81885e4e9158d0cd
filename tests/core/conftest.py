"""Hypothesis measures behaviour here, not time: a busy machine must not fail a test."""

from hypothesis import HealthCheck, settings

settings.register_profile("harken", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("harken")
