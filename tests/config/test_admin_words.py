"""The admin in other languages: every name is translated and migrations see none of it; times are in the reader's zone."""

import ast
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from django import forms
from django.conf import settings
from django.contrib import admin
from django.contrib.admin.utils import label_for_field
from django.core.cache import cache
from django.core.management import call_command
from django.db.models import Model
from django.test import Client, RequestFactory
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import override

from accounts.backoffice import OperatorAdmin
from accounts.models import ApiKey, Job, Organization, User
from billing import ratecard_forms
from billing.admin_money import AdjustForm, GrantForm
from billing.models import RateOverride
from config import admin_words
from tests import factories
from tests.pages.test_catalogs import catalog

pytestmark = pytest.mark.django_db
LANGUAGES = [code for code, _ in settings.LANGUAGES if code != "en"]
FORMS = (
    GrantForm, AdjustForm, ratecard_forms.CardForm, ratecard_forms.FallbackForm, ratecard_forms.AliasForm,
    ratecard_forms.OverrideForm,
)  # fmt: skip
Said = list[tuple[str, str]]


@pytest.fixture(autouse=True)
def no_attempts_counted() -> Iterator[None]:
    cache.clear()
    yield
    cache.clear()


@pytest.fixture
def operator() -> User:
    return User.objects.create_superuser(f"{factories.unique('operator')}@weir.example", factories.password())


def said(operator: User) -> Said:
    """Every name that the admin's pages show and where, in the language that is active."""
    request = RequestFactory().get("/")
    request.user = operator
    found: Said = []
    pages: dict[type[Model], Any] = dict(admin.site._registry)
    for model, page in pages.items():
        of = model._meta
        found += [
            (of.app_label, str(of.app_config.verbose_name)),
            (of.label, str(of.verbose_name)),
            (of.label, str(of.verbose_name_plural)),
        ]
        shown = dict.fromkeys([*page.get_list_display(request), *page.get_fields(request, model())])
        found += [(f"{of.label}.{name}", str(label_for_field(name, model, page))) for name in shown if name != "__str__"]
        for field in (*of.fields, *of.many_to_many):
            if field.name in shown:
                found.append((f"{of.label}.{field.name}, hint", str(field.help_text)))
                found += [(f"{of.label}.{field.name}, choice", str(label)) for _, label in field.flatchoices or ()]
        changes = page.get_changelist_instance(request)
        found += [(f"{of.label}, filter", str(one.title)) for one in changes.filter_specs]
        actions = [(name, getattr(page, name)) for name in page.actions or ()]
        found += [(f"{of.label}.{name}, action", str(action.short_description)) for name, action in actions]
        found += [(f"{of.label}, action of the list", str(one.method.short_description)) for one in page.get_actions_list(request)]
        found += [(f"{of.label}, fieldset", str(name or "")) for name, _ in page.get_fieldsets(request)]
        found.append((f"{of.label}, search", str(page.search_help_text or "")))
    for form in FORMS:
        for name, asked in form().fields.items():
            if not isinstance(asked.widget, forms.HiddenInput):
                found += [(f"{form.__name__}.{name}", str(asked.label)), (f"{form.__name__}.{name}, hint", str(asked.help_text))]
    return found


def untranslated(english: Said, there: Said, language: str) -> Said:
    """What is said as in English, unless the catalog says that it is the same."""
    assert [where for where, _ in english] == [where for where, _ in there]
    known = catalog(language)

    def is_same(text: str) -> bool:
        entries = [known[key] for key in (f"{admin_words.CONTEXT}\x04{text}", text) if key in known]
        return any(entry.texts[0] == text for entry in entries)

    pairs = zip(english, there, strict=True)
    return [(where, text) for (where, text), (_, other) in pairs if text and text == other and not is_same(text)]


def test_every_page_is_one_of_ours() -> None:
    """Those that are not keep their own names, of which nothing is known here."""
    assert [model for model, page in admin.site._registry.items() if not isinstance(page, OperatorAdmin)] == []


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_name_is_translated(operator: User, language: str) -> None:
    with override("en"):
        english = said(operator)
    with override(language):
        there = said(operator)
    assert len(english) > 1200
    assert untranslated(english, there, language) == []
    assert untranslated([("somewhere", "Not a word")], [("somewhere", "Not a word")], language) == [("somewhere", "Not a word")]


def test_english_names_are_those_that_django_makes(operator: User) -> None:
    """A word of the list that is in no page's name is not wanted any more."""
    with override("en"):
        names = {text for _, text in said(operator)} | {field.verbose_name for field in RateOverride._meta.fields}
        for model, page in admin.site._registry.items():
            for field in model._meta.fields:
                if field._verbose_name is None and field.name not in page.hidden:  # type: ignore[attr-defined]
                    assert field.verbose_name == field.name.replace("_", " "), field
        words = [*admin_words.APPS, *admin_words.MODELS, *admin_words.FIELDS, *admin_words.HINTS]
        assert [str(word) for word in words if str(word) not in {str(name) for name in names}] == []


def test_what_actions_say_is_in_the_list() -> None:
    with override("en"):
        known = {str(word) for word in admin_words.DONE}
    calls = set()
    for app in ("accounts", "billing", "quotas", "routing"):
        for path in (Path(settings.BASE_DIR) / app).glob("admin*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "apply":
                    words = [one.value for one in node.args if isinstance(one, ast.Constant)]
                    calls.update(words if len(node.args) == 4 else [])
    assert calls == known


@pytest.mark.parametrize("language", ["en", *LANGUAGES])
def test_migrations_see_none_of_it(language: str, capsys: pytest.CaptureFixture[str]) -> None:
    with override(language):
        call_command("makemigrations", check=True, dry_run=True)
    assert capsys.readouterr().out.strip() == "No changes detected"


# -------------------------------------------------------------------------------------------------------------------- pages


def signed_in(user: User | None, language: str = "en") -> Client:
    assert user is not None
    User.objects.filter(pk=user.pk).update(language=language)
    client = Client(headers={"accept-language": language})
    client.force_login(user)
    return client


@pytest.mark.parametrize(
    ("language", "expected"),
    [
        ("ru", ["Участники", "Присоединение", "Удалено", "Запретить быстрый режим", "участники: 2", "Люди и организации"]),
        ("vi", ["Thành viên", "Tham gia lúc", "Gỡ lúc", "Cấm chế độ nhanh", "2 thành viên", "Người và tổ chức"]),
        ("en", ["Members", "Joined at", "Removed at", "Forbid fast mode", "2 members", "Accounts"]),
    ],
)
def test_a_list_speaks_the_readers_language(language: str, expected: list[str]) -> None:
    organization = factories.organization()
    owner = factories.member(organization, role="owner")
    factories.member(organization)
    page = signed_in(owner.user, language).get("/admin/accounts/member/").content.decode()
    assert [text for text in expected if text.lower() not in page.lower()] == []


@pytest.mark.parametrize(
    ("language", "done", "same"),
    [
        ("en", "1 stopped.", "1 not stopped: it was so already, or over."),
        ("ru", "Остановлено: 1.", "Не остановлено: 1 — так уже и было, или поздно."),
        ("vi", "Đã dừng: 1.", "Không dừng: 1, vì đã như vậy hoặc đã kết thúc."),
    ],
)
def test_what_an_action_did_is_said_in_the_readers_language(operator: User, language: str, done: str, same: str) -> None:
    member = factories.member(factories.organization())
    job = Job.objects.create(organization=member.organization, member=member, kind="export", title="x")
    client = signed_in(operator, language)
    sent = {"action": "stop", "_selected_action": [job.pk], "index": "0"}
    for expected in (done, same):
        page = client.post("/admin/accounts/job/", sent, follow=True).content.decode()
        assert expected in page


# -------------------------------------------------------------------------------------------------------------------- times


def a_key(organization: Organization) -> ApiKey:
    key = factories.api_key(factories.member(organization)).row
    ApiKey.objects.filter(pk=key.pk).update(created_at=datetime(2026, 3, 1, 20, 30, tzinfo=UTC))
    return key


def test_times_are_in_the_organizations_zone_for_its_own_and_in_utc_for_operators(operator: User) -> None:
    organization = factories.organization(timezone="Asia/Ho_Chi_Minh")
    key = a_key(organization)
    for url in ("/admin/accounts/apikey/", reverse("admin:accounts_apikey_change", args=[key.pk])):
        own = signed_in(factories.member(organization, role="owner").user).get(url).content.decode()
        assert "Times in Asia/Ho_Chi_Minh (+07)" in own
        assert ("March 2, 2026, 3:30 a.m." in own, "March 1, 2026" in own) == (True, False)
        all_ = signed_in(operator).get(url).content.decode()
        assert "Times in UTC" in all_
        assert ("March 1, 2026, 8:30 p.m." in all_, "March 2, 2026" in all_) == (True, False)
    assert timezone.get_current_timezone_name() == "UTC"


def test_the_days_that_lists_are_narrowed_to_are_the_zones(operator: User) -> None:
    organization = factories.organization(timezone="Asia/Ho_Chi_Minh")
    key = a_key(organization)
    found = reverse("admin:accounts_apikey_change", args=[key.pk])
    day = "/admin/accounts/apikey/?created_at__year=2026&created_at__month=3&created_at__day="
    owner = signed_in(factories.member(organization, role="lead").user)
    assert [found in owner.get(f"{day}{number}").content.decode() for number in (1, 2)] == [False, True]
    assert [found in signed_in(operator).get(f"{day}{number}").content.decode() for number in (1, 2)] == [True, False]


def test_a_moment_that_is_typed_in_is_the_one_that_is_shown(operator: User) -> None:
    """Moments are typed in by operators alone, and their fields say that they are UTC."""
    organization = factories.organization(timezone="Asia/Ho_Chi_Minh")
    client = signed_in(operator)
    sent = {"organization": organization.slug, "model": "own", "input": "1", "cached_input": "1", "output": "1"}
    answer = client.post("/admin/billing/rateoverride/set/", {**sent, "valid_from": "2036-01-02 03:04:05"})
    assert answer.status_code == 302
    row = RateOverride.objects.get(organization=organization)
    assert row.valid_from == datetime(2036, 1, 2, 3, 4, 5, tzinfo=UTC)
    shown = reverse("admin:billing_rateoverride_change", args=[row.pk])
    assert "Jan. 2, 2036, 3:04 a.m." in client.get(shown).content.decode()
    own = signed_in(factories.member(organization, role="owner").user).get(shown).content.decode()
    assert "Jan. 2, 2036, 10:04 a.m." in own


def test_members_type_no_moment_in() -> None:
    """Else the field would have to say in which zone it is."""
    fields = [(page, name) for page in admin.site._registry.values() for name in getattr(page, "editable", ())]
    assert len(fields) > 20
    assert [name for page, name in fields if page.model._meta.get_field(name).get_internal_type() == "DateTimeField"] == []


@pytest.mark.parametrize(
    ("language", "shown"), [("en", "March 1, 2026, 8:30 p.m."), ("ru", "01.03.2026, 20:30"), ("vi", "1/3/2026, 20:30")]
)
def test_moments_are_written_as_the_language_does(operator: User, language: str, shown: str) -> None:
    key = a_key(factories.organization())
    page = signed_in(operator, language).get(reverse("admin:accounts_apikey_change", args=[key.pk])).content.decode()
    assert shown in page


@pytest.mark.parametrize("language", ["en", *LANGUAGES])
def test_what_is_found_by_typing_speaks_the_readers_language(operator: User, language: str) -> None:
    """The widget's own words come from a file of the language; its box is named after its label by static/js/admin.js."""
    page = signed_in(operator, language).get("/admin/billing/creditlot/add/").content.decode()
    assert f"/select2/i18n/{language}.js" in page
    assert 'src="/static/js/admin.js"' in page
    assert re.search(r'<label[^>]* for="id_organization"', page)
