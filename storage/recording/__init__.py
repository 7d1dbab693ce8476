"""Write the records of a trainer: `writer` (queue and thread), `batch` (rows of one flush), `statements` (SQL).

For example, `DatabaseRecorder.record_snapshot` queues a snapshot. `batch` packs its arrays with `storage.blobs`, and
`statements` writes it in one transaction with all other records of the same flush.
"""
