"""The REST API, `/api/v1/`: doors to the same domain functions as the pages. Nobody imports it but the URL table.

To read first: `people.py` as the example of a resource, `base.py` for what every call goes through, `fields.py` for what is taken.
"""
