"""Signing in by an organization's provider. Stands before allauth's URLs: its views of the same addresses are never reached, for
they believe a token without asking for its signature."""

from django.urls import path

from accounts import identity_login

urlpatterns = [
    path("sso/", identity_login.sso, name="sso"),
    path("sso/<slug:slug>", identity_login.sso_organization, name="sso_organization"),
    path("oidc/<str:provider_id>/login/", identity_login.login, name="openid_connect_login"),
    path("oidc/<str:provider_id>/login/callback/", identity_login.callback, name="openid_connect_callback"),
    # Nobody connects, disconnects or signs up by themselves.
    path("3rdparty/", identity_login.gone),
    path("3rdparty/signup/", identity_login.gone),
    path("social/connections/", identity_login.gone),
    path("social/signup/", identity_login.gone),
]
