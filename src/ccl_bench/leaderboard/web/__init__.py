"""The web server: `app` joins the routes of `api`, `publish_routes` and `page_routes`.

`dependencies` gives routes the store and the caller, `upload` receives archives, `security` sets headers, and
`server` runs the application.
"""
