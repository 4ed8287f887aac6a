"""Settings: what holds for the whole organization, the API tokens, the audit trail."""

from django.urls import path

from quotas import settings_audit_page, settings_models_page, settings_page, settings_sign_in_page, settings_tokens_page

urlpatterns = [
    path("o/<slug:slug>/settings", settings_page.settings_page, name="settings"),
    path("o/<slug:slug>/overview/begun", settings_page.put_away_first_run, name="put_away_first_run"),
    path("o/<slug:slug>/settings/name", settings_page.rename, name="rename_organization"),
    path("o/<slug:slug>/settings/zone", settings_page.change_zone, name="change_zone"),
    path("o/<slug:slug>/settings/unpriced", settings_page.set_unpriced_models, name="set_unpriced_models"),
    path("o/<slug:slug>/settings/pool", settings_page.show_pool, name="show_pool_to_developers"),
    path("o/<slug:slug>/settings/terms", settings_page.accept_terms, name="accept_terms"),
    path("o/<slug:slug>/settings/sign-in", settings_sign_in_page.settings_sign_in, name="settings_sign_in"),
    path("o/<slug:slug>/settings/sign-in/policy", settings_sign_in_page.set_policy, name="set_second_factor"),
    path("o/<slug:slug>/settings/models", settings_models_page.settings_models, name="settings_models"),
    path("o/<slug:slug>/settings/models/fallback", settings_models_page.set_fallback, name="set_fallback"),
    path("o/<slug:slug>/settings/models/block", settings_models_page.block_models, name="block_models"),
    path("o/<slug:slug>/settings/models/<uuid:uuid>/allow", settings_models_page.unblock_models, name="unblock_models"),
    path("o/<slug:slug>/settings/tokens", settings_tokens_page.settings_tokens, name="settings_tokens"),
    path("o/<slug:slug>/settings/tokens/issue", settings_tokens_page.issue_token, name="issue_token"),
    path("o/<slug:slug>/settings/tokens/<uuid:uuid>/revoke", settings_tokens_page.revoke_token, name="revoke_token"),
    path("o/<slug:slug>/settings/audit", settings_audit_page.settings_audit, name="settings_audit"),
    path("o/<slug:slug>/settings/audit.csv", settings_audit_page.settings_audit_csv, name="settings_audit_csv"),
]
