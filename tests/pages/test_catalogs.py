"""The catalogs: everything that is marked is translated, keeps its marks, and what is compiled is what is written."""

import ast
import gettext
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import pytest
from django.conf import settings
from django.utils.translation.template import templatize

ROOT = Path(settings.BASE_DIR)
LANGUAGES = [code for code, _ in settings.LANGUAGES if code != "en"]
FORMS = {"ru": 3, "vi": 1}
APPS = ("accounts", "billing", "quotas", "routing", "config")
CALLS = {"_", "gettext", "gettext_lazy", "gettext_noop", "ngettext", "ngettext_lazy", "pgettext", "pgettext_lazy", "npgettext"}
MARK = re.compile(r"%\(\w+\)[sd]|%[sd]|\{\w*\}|<[^>]+>")


@dataclass
class Entry:
    msgid: str = ""
    context: str = ""
    plural: str = ""
    texts: dict[int, str] = field(default_factory=dict)

    @property
    def key(self) -> str:
        return f"{self.context}\x04{self.msgid}" if self.context else self.msgid


@lru_cache
def catalog(language: str) -> dict[str, Entry]:
    """The entries of a .po file, by context and msgid."""
    entries: dict[str, Entry] = {}
    entry, target = Entry(), ""
    text = (ROOT / "locale" / language / "LC_MESSAGES" / "django.po").read_text()
    for line in [*text.splitlines(), ""]:
        if line.startswith("#"):
            assert "fuzzy" not in line
            continue
        if not line:
            if entry.texts:
                assert entry.key not in entries, f"twice: {entry.key}"
                entries[entry.key] = entry
            entry = Entry()
            continue
        if not line.startswith('"'):
            target, line = line.split(" ", 1)
        value = ast.literal_eval(line)
        if target == "msgid":
            entry.msgid += value
        elif target == "msgctxt":
            entry.context += value
        elif target == "msgid_plural":
            entry.plural += value
        else:
            number = int(target[7:-1]) if "[" in target else 0
            entry.texts[number] = entry.texts.get(number, "") + value
    return entries


def in_python(source: str, path: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source, path)):
        if isinstance(node, ast.Call) and node.args:
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            values = [one.value for one in node.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]
            if name in CALLS and values:
                yield "\x04".join(values[:2]) if "pgettext" in name else values[0]


def in_template(path: Path) -> Iterator[str]:
    """By Django's own reader, which writes what `xgettext` reads."""
    text = templatize(path.read_text(), origin=str(path))
    for name, arguments in re.findall(r"\b(gettext|pgettext|ngettext|npgettext|_)\((.*?)\) ", text, re.DOTALL):
        values = re.findall(r"u?('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")", arguments)
        if values:
            read = [ast.literal_eval(value) for value in values]
            yield "\x04".join(read[:2]) if "pgettext" in name else read[0]


@lru_cache
def marked() -> dict[str, str]:
    """Every marked text and where one finds it."""
    found: dict[str, str] = {}
    for app in APPS:
        for path in (ROOT / app).rglob("*.py"):
            if "migrations" not in path.parts:
                found.update(dict.fromkeys(in_python(path.read_text(), str(path)), str(path.relative_to(ROOT))))
    for path in (ROOT / "templates").rglob("*.html"):
        found.update(dict.fromkeys(in_template(path), str(path.relative_to(ROOT))))
    return found


def test_the_marked_texts_are_found() -> None:
    assert len(marked()) > 1500
    assert marked()["Sign out"].startswith("templates/")


@pytest.mark.parametrize("language", LANGUAGES)
def test_everything_marked_is_translated(language: str) -> None:
    known = catalog(language)
    assert {text: where for text, where in marked().items() if text not in known} == {}
    assert [key for key, entry in known.items() if not all(entry.texts.values())] == []


@pytest.mark.parametrize("language", LANGUAGES)
def test_translations_keep_their_marks(language: str) -> None:
    """A placeholder that is lost or made up breaks the page that fills it; a tag that is lost breaks its links."""
    wrong = []
    for key, entry in catalog(language).items():
        if not key:
            continue
        if entry.plural:
            assert len(entry.texts) == FORMS[language], key
            allowed = set(MARK.findall(entry.msgid)) | set(MARK.findall(entry.plural))
            wrong += [key for text in entry.texts.values() if set(MARK.findall(text)) - allowed]
        elif sorted(MARK.findall(entry.texts[0])) != sorted(MARK.findall(entry.msgid)):
            wrong.append(key)
        wrong += [key for text in entry.texts.values() if '"' in text and '"' not in entry.msgid + entry.plural]
    assert wrong == []


@pytest.mark.parametrize("language", LANGUAGES)
def test_what_is_compiled_is_what_is_written(language: str) -> None:
    with (ROOT / "locale" / language / "LC_MESSAGES" / "django.mo").open("rb") as file:
        compiled = gettext.GNUTranslations(file)._catalog  # type: ignore[attr-defined]
    written: dict[object, str] = {}
    for key, entry in catalog(language).items():
        if entry.plural:
            written.update({(key, number): text for number, text in entry.texts.items()})
        elif key:
            written[key] = entry.texts[0]
    assert {key: text for key, text in compiled.items() if key != ""} == written
