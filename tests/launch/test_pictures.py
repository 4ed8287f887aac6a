"""The pages of the running demo, as the command that takes their pictures sees them."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from config.launch import embedded
from demo import pictures
from tests.clients import chromium
from tests.launch.launching import Stack, run

NOT_PAGES = re.compile(r"csv|/file$")


@pytest.mark.stack
@pytest.mark.browser
@pytest.mark.timeout(300)
def test_nothing_is_wrong_with_any_page(launch: Callable[..., Stack], environ: dict[str, str], tmp_path: Path) -> None:
    """In light with the keyboard, in dark, and on a phone in the language with the longest words."""
    chromium.executable()
    stack = launch("demo", embedded.free_port())
    stack.wait_until((stack.var / "demo.json").exists)
    modes = ("light", "dark", "ru-phone")
    beside = {**environ, "WEIR_VAR": str(stack.var)}
    arguments = ["pictures", "--to", str(tmp_path), *(word for mode in modes for word in ("--mode", mode))]
    done = run(*arguments, environ=beside, timeout=280)
    count = len(modes) * len(pictures.PAGES)
    assert done.stdout.splitlines()[-1:] == [f"{count} pictures in {tmp_path}, 0 problems"], done.stdout + done.stderr
    assert done.returncode == 0
    assert len(list(tmp_path.glob("*.png"))) == count
    assert all(path.stat().st_size > 5_000 for path in tmp_path.iterdir())
