"""A processor's name and flags as Linux writes them."""

from pathlib import Path

import pytest

from vitrail import processor


@pytest.mark.parametrize(
    ("text", "name", "bf16"),
    [
        ("processor\t: 0\nmodel name\t: Xeon 1\nflags\t\t: fpu avx512f avx512_bf16\n", "Xeon 1", True),
        ("model name\t: Xeon 2\nflags\t\t: fpu avx512f avx512_vnni\n\nmodel name\t: Xeon 2\n", "Xeon 2", False),
        ("processor\t: 0\nFeatures\t: fp asimd i8mm bf16\n", None, True),
        ("", None, False),
    ],
)
def test_what_linux_says_about_the_processor(
    text: str, name: str | None, bf16: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpuinfo").write_text(text)
    monkeypatch.setattr(processor, "CPUINFO", tmp_path / ("cpuinfo" if text else "missing"))
    processor._line.cache_clear()
    assert processor.computes_bf16() is bf16
    assert processor.processor_name() == name or (name is None and processor.processor_name())
    processor._line.cache_clear()
