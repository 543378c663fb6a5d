"""The package, its tests and its scenarios are typed, strictly."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parents[1]


@pytest.mark.skipif(importlib.util.find_spec("mypy") is None, reason="mypy is not installed")
def test_types(tmp_path: Path) -> None:
    # What it knows of the libraries is worth keeping, where they are.
    cache = Path(sys.prefix) / "mypy" if sys.prefix != sys.base_prefix and os.access(sys.prefix, os.W_OK) else tmp_path
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--cache-dir", str(cache)], cwd=HERE, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_there_is_py_typed() -> None:
    import locksidecar

    assert locksidecar.__file__ is not None
    assert (Path(locksidecar.__file__).parent / "py.typed").exists()
