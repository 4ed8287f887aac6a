"""The scripted upstream, the seeder and the tour of `manage.py demo`; the tests use them too."""
