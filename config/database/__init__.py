"""The database backend: PostgreSQL, with row level security by `config.scope`."""
