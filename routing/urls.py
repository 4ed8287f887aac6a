"""The pool's page and what is done there; and where the person of a pooled sign-in takes it out again."""

from django.urls import path

from routing import account_page, joining_page, pages, pool_page

urlpatterns = [
    path("withdraw/<str:token>", pages.withdraw, name="withdraw"),
    path("o/<slug:slug>/pool", pool_page.pool_page, name="pool"),
    path("o/<slug:slug>/pool/new", account_page.make_pool, name="make_pool"),
    path("o/<slug:slug>/pool/add/browser", joining_page.begin_browser, name="begin_browser"),
    path("o/<slug:slug>/pool/add/browser/<uuid:uuid>", joining_page.end_browser, name="end_browser"),
    path("o/<slug:slug>/pool/add/device", joining_page.begin_device, name="begin_device"),
    path("o/<slug:slug>/pool/add/device/<uuid:uuid>", joining_page.poll_device, name="poll_device"),
    path("o/<slug:slug>/pool/add/files", joining_page.add_files, name="add_files"),
    path("o/<slug:slug>/pool/add/key", joining_page.add_key, name="add_key"),
    path("o/<slug:slug>/pool/accounts/<uuid:uuid>", account_page.change_account, name="change_account"),
    path("o/<slug:slug>/pool/accounts/<uuid:uuid>/pause", account_page.pause_account, name="pause_account"),
    path("o/<slug:slug>/pool/accounts/<uuid:uuid>/resume", account_page.resume_account, name="resume_account"),
    path("o/<slug:slug>/pool/accounts/<uuid:uuid>/poll", account_page.poll_account, name="poll_account"),
    path("o/<slug:slug>/pool/accounts/<uuid:uuid>/move", account_page.move_account, name="move_account"),
    path("o/<slug:slug>/pool/accounts/<uuid:uuid>/link", account_page.new_link, name="new_withdrawal_link"),
    path("o/<slug:slug>/pool/accounts/<uuid:uuid>/remove", account_page.remove_account, name="remove_account"),
    path("o/<slug:slug>/pool/<uuid:uuid>/strategy", account_page.set_strategy, name="set_strategy"),
]
