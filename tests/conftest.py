"""Fixtures for every test."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def assets() -> Callable[[str], Path]:
    """`assets("name")` is the path of a real model or tokenizer; the test is skipped where it is absent."""

    def find(name: str) -> Path:
        folder = os.environ.get("OCTAVO_TEST_ASSETS")
        if not folder:
            pytest.skip("OCTAVO_TEST_ASSETS is not set: it names the folder with the real test models")
        path = Path(folder) / name
        if not path.exists():
            pytest.skip(f"{name} is not in OCTAVO_TEST_ASSETS ({folder})")
        return path

    return find
