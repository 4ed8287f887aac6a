"""What was not written here: VENDOR.json names every file of static/vendor, its version, its licence and its digest."""

import hashlib
import json
from pathlib import Path

from django.conf import settings

FOLDER = Path(settings.BASE_DIR) / "static" / "vendor"
LISTED = json.loads((FOLDER / "VENDOR.json").read_text())


def test_every_vendored_file_is_listed_and_every_listed_file_is_there() -> None:
    files = {path.name for path in FOLDER.iterdir()} - {"VENDOR.json"}
    assert {entry["file"] for entry in LISTED} == files
    assert len(LISTED) == len(files)


def test_every_vendored_file_is_the_one_that_was_listed() -> None:
    for entry in LISTED:
        assert hashlib.sha256((FOLDER / entry["file"]).read_bytes()).hexdigest() == entry["sha256"], entry["file"]


def test_every_entry_names_package_version_and_a_known_licence() -> None:
    for entry in LISTED:
        assert entry["package"]
        assert entry["licence"] in {"MIT", "0BSD"}
        assert entry["version"].count(".") == 2


def test_no_template_has_inline_code_or_a_style_attribute() -> None:
    """The policy is default-src 'self': what is inline would not run, silently."""
    for path in (Path(settings.BASE_DIR) / "templates").rglob("*.html"):
        text = path.read_text()
        assert "<style" not in text, path
        assert " style=" not in text, path
        assert " onclick=" not in text, path
        assert "javascript:" not in text, path
        for script in text.split("<script")[1:]:
            assert script.startswith(" src="), path
