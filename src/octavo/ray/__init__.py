"""Octavo on a Ray cluster."""

from octavo.ray.batch import generate

__all__ = ["generate"]
