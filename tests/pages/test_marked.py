"""Every text of the templates is marked for translation, and none is glued from pieces around a value."""

import re
from pathlib import Path

import pytest
from django.conf import settings

TEMPLATES = Path(settings.BASE_DIR) / "templates"
SAME_EVERYWHERE = {
    "Weir", "· Weir", "CSV", "ZIP", "Excel", "Esc", "curl", "Python", "Node", "Anthropic SDK", "Codex CLI", "ChatGPT", "× Plus",
    "SHA-256", "· SHA-256", "OpenID Connect", "export WEIR_KEY=…", "Authorization: Bearer wt_…", "wr_", "wt_",
    "# ~/.codex/config.toml;",
    "https://…", "req_…", "http://127.0.0.1:1455/auth/callback?code=…",
}  # fmt: skip
TAG = r"\{%.*?%\}|\{\{.*?\}\}|\{#.*?#\}"
QUOTED = rf'"(?:[^"{{}}]|{TAG})*"'
BLOCK = re.compile(r"\{% blocktranslate.*?\{% endblocktranslate %\}|\{% comment %\}.*?\{% endcomment %\}", re.DOTALL)
CODE = re.compile(r"<(pre|script)\b.*?</\1>", re.DOTALL)
PIECE = re.compile(rf"{TAG}|<(?:[^<>{{}}\"']|{QUOTED}|{TAG}|'[^']*')*>", re.DOTALL)
ATTRIBUTE = re.compile(rf"\b(?:aria-label|placeholder|title|alt)=({QUOTED})")
VALUE = r"\{% (?:moment|full_moment|clock|day|countdown|countdown_since) [\w.]+ %\}"
TEXT = r"\{% translate (?:\"[^\"]*\"|'[^']*') %\}"
PAGES = sorted(str(path.relative_to(TEMPLATES)) for path in TEMPLATES.rglob("*.html"))


def _source(name: str) -> str:
    return (TEMPLATES / name).read_text(encoding="utf-8")


def _texts(source: str) -> list[str]:
    bare = CODE.sub("", BLOCK.sub("", source))
    attributes = [re.sub(TAG, "", one[1:-1]) for one in ATTRIBUTE.findall(bare)]
    return [text.strip() for text in [*PIECE.split(bare), *attributes] if re.search(r"[A-Za-z]{2}", text)]


@pytest.mark.parametrize("name", PAGES)
def test_every_text_of_a_page_is_marked(name: str) -> None:
    assert [text for text in _texts(_source(name)) if text not in SAME_EVERYWHERE] == []


def test_a_text_that_is_not_marked_is_found() -> None:
    assert _texts('<p title="Say it">{% if one %}Not marked{% endif %} {% translate "marked" %}</p>') == ["Not marked", "Say it"]


@pytest.mark.parametrize("name", PAGES)
def test_a_moment_stands_inside_its_sentence(name: str) -> None:
    """Word order differs by language: `{% moment … as … %}` and one `blocktranslate` instead."""
    assert re.findall(rf"{TEXT} {VALUE}|{VALUE} {TEXT}", _source(name)) == []


@pytest.mark.parametrize("name", PAGES)
def test_a_block_holds_names_alone(name: str) -> None:
    for block in re.findall(r"\{% blocktranslate.*?%\}(.*?)\{% endblocktranslate %\}", _source(name), re.DOTALL):
        assert [one for one in re.findall(r"\{\{ (.*?) \}\}", block) if not one.isidentifier()] == []
