"""The files of runs outside the database: `places` (where they are), `remote` (files at a URL), `trainer_files`.

`trainer_files` are small files of a trainer: its lease, the reason why its recorder waits, and the reserved disk space.
File permissions and links are handled in `storage.private_files`, which the engine uses as well.
"""
