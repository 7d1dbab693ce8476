"""From a trainer's records to rows: `writer` (queue and thread), `batch` (rows of one flush), `statements` (SQL).

A snapshot comes in at `DatabaseRecorder.record_snapshot`, is packed by `batch` and `storage.blobs`, and is written with
everything else of its flush in one transaction.
"""
