"""Settings: `base` is true everywhere; `dev`, `prod` and `test` hold only the differences; `env` reads the environment."""
