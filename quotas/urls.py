"""Pages that answer what is left, and the ones where limits are set."""

from django.urls import path

from quotas import alerts_page, files_page, jobs_page, limits_page, members_page, pages, request_pages, settings_urls

urlpatterns = [
    path("o/<slug:slug>/key", pages.key, name="key"),
    path("o/<slug:slug>/key/issue", pages.issue_key, name="issue_key"),
    path("o/<slug:slug>/key/ask", pages.ask_for_more, name="ask_for_more"),
    path("o/<slug:slug>/key/requests/<uuid:uuid>/withdraw", pages.withdraw_request, name="withdraw_request"),
    path("o/<slug:slug>/key/<uuid:uuid>/rotate", pages.rotate_key, name="rotate_key"),
    path("o/<slug:slug>/key/<uuid:uuid>/revoke", pages.revoke_key, name="revoke_key"),
    path("o/<slug:slug>/members", members_page.members_page, name="members"),
    path("o/<slug:slug>/members.csv", jobs_page.members_csv, name="members_csv"),
    path("o/<slug:slug>/members/invite", members_page.invite, name="invite_member"),
    path("o/<slug:slug>/members/limits", limits_page.set_limit, name="set_limit"),
    path("o/<slug:slug>/members/limits/<uuid:uuid>", limits_page.change_limit, name="change_limit"),
    path("o/<slug:slug>/members/limits/<uuid:uuid>/remove", limits_page.remove_limit, name="remove_limit"),
    path("o/<slug:slug>/members/limits/<uuid:uuid>/boost", limits_page.boost, name="boost_limit"),
    path("o/<slug:slug>/members/boosts/<uuid:uuid>/end", limits_page.end_boost, name="end_boost"),
    path("o/<slug:slug>/members/requests/<uuid:uuid>", limits_page.decide, name="decide_request"),
    path("o/<slug:slug>/members/<uuid:uuid>", members_page.member_page, name="member"),
    path("o/<slug:slug>/members/<uuid:uuid>/change", members_page.change_member, name="change_member"),
    path("o/<slug:slug>/members/<uuid:uuid>/remove", members_page.remove_member, name="remove_member"),
    path("o/<slug:slug>/alerts", alerts_page.alerts_page, name="alerts"),
    path("o/<slug:slug>/alerts/rules", alerts_page.set_rule, name="set_alert_rule"),
    path("o/<slug:slug>/alerts/endpoints", alerts_page.add_endpoint, name="add_endpoint"),
    path("o/<slug:slug>/alerts/endpoints/<uuid:uuid>/test", alerts_page.test_endpoint, name="test_endpoint"),
    path("o/<slug:slug>/alerts/endpoints/<uuid:uuid>/rotate", alerts_page.rotate_endpoint, name="rotate_endpoint"),
    path("o/<slug:slug>/alerts/endpoints/<uuid:uuid>/resume", alerts_page.resume_endpoint, name="resume_endpoint"),
    path("o/<slug:slug>/alerts/endpoints/<uuid:uuid>/remove", alerts_page.remove_endpoint, name="remove_endpoint"),
    path("o/<slug:slug>/alerts/<uuid:uuid>/acknowledge", alerts_page.acknowledge, name="acknowledge_alert"),
    path("o/<slug:slug>/overview", pages.overview_page, name="overview"),
    path("o/<slug:slug>/jobs", jobs_page.jobs_page, name="jobs"),
    path("o/<slug:slug>/jobs/<uuid:uuid>", jobs_page.job, name="job"),
    path("o/<slug:slug>/jobs/<uuid:uuid>/file", files_page.job_file, name="job_file"),
    path("o/<slug:slug>/jobs/<uuid:uuid>/stop", jobs_page.stop_job, name="stop_job"),
    path("files/<str:token>", files_page.signed_file, name="signed_file"),
    path("o/<slug:slug>/requests", request_pages.request_log_page, name="request_log"),
    path("o/<slug:slug>/requests/<str:name>", request_pages.request_page, name="request"),
    *settings_urls.urlpatterns,
]
