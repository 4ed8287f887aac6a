"""Security. Stands before allauth's URLs: its overviews are one page of ours, and no row's id is in an address."""

from django.urls import path
from django.views.generic import RedirectView

from accounts import security_page

to_security = RedirectView.as_view(pattern_name="security")

urlpatterns = [
    path("security/", security_page.security, name="security"),
    path("security/sessions/end", security_page.end_session, name="end_session"),
    path("security/sessions/end-others", security_page.end_other_sessions, name="end_other_sessions"),
    path("security/passkeys/<slug:name>/rename", security_page.rename_passkey, name="rename_passkey"),
    path("security/passkeys/<slug:name>/remove", security_page.remove_passkey, name="remove_passkey"),
    path("2fa/", to_security),
    path("2fa/webauthn/", to_security),
    path("2fa/webauthn/add/", security_page.add_passkey),
    path("2fa/webauthn/keys/<int:pk>/remove/", security_page.gone),
    path("2fa/webauthn/keys/<int:pk>/edit/", security_page.gone),
    path("sessions/", to_security),
]
