"""Training of one run: main loop, episodic part, evaluation, checkpoints.

Each other package of `emtc_core` is one stage of the data flow and imports only earlier stages. Code that needs all
stages is in this package. Modules directly in `emtc_core` (records, control, metrics, errors) are shared by all stages
and import no stage.
"""
