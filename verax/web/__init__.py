"""The planner and the run viewer in a browser, and the same as a JSON API: ``verax serve``.

It needs the extra ``web``, loads nothing from outside and works offline. Importing this package
loads nothing; the application is :func:`verax.web.app.create_app`.
"""
