"""The roofline plot."""

import builtins
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from octavo.bench.measure import MachineLimits
from octavo.bench.roofline import Point, Roof, check_plot, plot_roofline
from octavo.errors import ConfigError

POINTS = [
    Point("decode", "decode 1 x 256", 1.0, 20.0),
    Point("decode", "decode 16 x 256", 16.0, 300.0),
    Point("prefill", "prefill 1 x 1024", 900.0, 2500.0),
]


@pytest.mark.parametrize("peak", [5e12, 0.0])
def test_an_svg_shows_every_label_and_limit(peak: float, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "roof.svg"
    plot_roofline(POINTS, MachineLimits(30e9, peak), path, "Steps of a model")
    drawn = path.read_text()
    for text in ("Steps of a model", "memory 30.0 GB/s", *(point.label for point in POINTS)):
        assert f">{text}<" in drawn
    assert (">AMX 5.00 Tflop/s<" in drawn) == (peak > 0)


def test_a_png_with_many_points(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "roof.png"
    points = [Point(f"series {i % 12}", str(i), 1.0 + i, 20.0 + 9 * i) for i in range(60)]
    plot_roofline(points, MachineLimits(30e9, 5e12), path, "Kernels")
    assert path.read_bytes().startswith(b"\x89PNG")


def test_all_points_and_the_ridge_are_inside_the_axes() -> None:
    roof = Roof.over(POINTS, MachineLimits(30e9, 5e12))
    assert roof.ridge == pytest.approx(5e12 / 30e9)
    for point in POINTS:
        assert roof.left < point.intensity < roof.right
        assert roof.bottom < point.gigaflops < roof.top
    assert roof.left < roof.ridge < roof.right


def test_impossible_plots_are_rejected_before_measuring(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"must end with \.svg or \.png"):
        check_plot(Path("roof.pdf"))
    real_import = builtins.__import__

    def without_matplotlib(name: str, *arguments: Any, **keywords: Any) -> ModuleType:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real_import(name, *arguments, **keywords)

    monkeypatch.setattr(builtins, "__import__", without_matplotlib)
    with pytest.raises(ConfigError, match=r"pip install 'octavo\[bench\]'"):
        check_plot(Path("roof.svg"))
