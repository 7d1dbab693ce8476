"""The files of runs outside the database: where they lie (`places`), behind a URL (`remote`), a trainer's own notes.

`trainer_files` are the small ones that a trainer leaves there: its lease, why it waits, room for bad times. How files
are made private and never followed through a link is in `storage.private_files`, which the engine needs, too.
"""
