"""The files of runs outside the database: where they lie (`places`), behind a URL (`remote`), who wrote them last.

`writer_lease` and `recorder_state` are the two small files that a trainer leaves there. How files are made private and
never followed through a link is in `storage.private_files`, which the engine needs, too.
"""
