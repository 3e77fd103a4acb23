"""`caprompt serve`: an HTTP interface to model folders, and a page on which people teach and try them (extra `serve`).

`http_server` runs the whole: `app` assembles the routes (`api_models`, `api_predict`, `api_teach`, `page`) behind the checks of
`security`, and `service` holds what they share. `served_models` are the models, `batching` gathers the predictions of several
clients, `uploads` stages images, `jobs` supervises lessons and exports, which run in a process of their own (`worker`).
"""

from __future__ import annotations
